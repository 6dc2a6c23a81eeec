"""Words as numbers: what is near in spelling is near in numbers, and any text at all has some."""

import pytest
import torch

from texturevlm.scout.question import (
    ALPHABET,
    LETTER_FEATURES,
    LONGEST,
    OTHER_LETTER,
    PARTS,
    SYMBOLS,
    letter_codes,
    letter_features,
)


def of(*words):
    return letter_features(letter_codes(words))


def alike(first, second):
    return torch.cosine_similarity(*of(first, second), dim=0).item()


def test_codes_are_the_letters_in_order_and_nothing_after():
    rows = letter_codes(["Total:", "50%", "#7", ""])
    assert rows.shape == (4, LONGEST) and rows.dtype == torch.int64
    spelt = ["".join(ALPHABET[code] for code in row if code >= 0) for row in rows.tolist()]
    assert spelt == ["total", "50%", "#7", ""]
    assert (rows[0, 5:] == -1).all() and (rows[3] == -1).all()


def test_case_accents_and_punctuation_do_not_count():
    assert torch.equal(letter_codes(["Éclair's"]), letter_codes(["eclairs"])) and torch.equal(
        letter_codes(["（ＡＢ）"]), letter_codes(["ab"])
    )


def test_letters_of_other_scripts_are_one_symbol():
    rows = letter_codes(["合計", "итог", "αβγ"])
    assert [(row >= 0).sum().item() for row in rows] == [2, 4, 3]
    assert all(set(row[row >= 0].tolist()) == {OTHER_LETTER} for row in rows)
    assert of("合計")[0].isfinite().all()


def test_long_words_are_cut():
    long = "a" * (LONGEST - 1) + "bc"
    assert torch.equal(letter_codes([long])[0], letter_codes([long[:LONGEST]])[0]) and torch.equal(
        of(long), of(long + "xyz")
    )


def test_what_the_numbers_count():
    where, rest = of("abba", "x")[:, : SYMBOLS * PARTS].unflatten(1, (SYMBOLS, PARTS)), of("abba", "x")
    torch.testing.assert_close(where[0].sum(1)[:2], torch.tensor([2.0, 2.0]))  # each letter once
    assert where[0, 2:].eq(0).all() and where[1].sum().item() == pytest.approx(1)
    torch.testing.assert_close(where[0, 0], where[0, 0].flip(0))  # a palindrome
    assert rest[0, SYMBOLS * PARTS : -1].sum() == 3 and rest[1, SYMBOLS * PARTS : -1].sum() == 0
    torch.testing.assert_close(rest[:, -1], torch.tensor([4.0, 1.0]) / LONGEST)


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 13, LONGEST])
def test_every_letter_counts_once_however_long_the_word(length):
    where = of("z" * length)[0, : SYMBOLS * PARTS].unflatten(0, (SYMBOLS, PARTS))
    assert where[25].sum().item() == pytest.approx(length, abs=1e-4) == where.sum().item()


def test_near_spellings_are_near():
    assert alike("invoice", "lnvoice") > 0.7 > 0.4 > alike("invoice", "chairman")
    assert alike("invoice", "invoices") > alike("invoice", "voice") > alike("invoice", "date")
    assert alike("listen", "silent") < 0.6  # the same letters elsewhere


def test_nothing_is_nothing():
    assert of("", "?!").eq(0).all() and of().shape == (0, LETTER_FEATURES) and letter_codes([]).shape == (0, LONGEST)


def test_one_word_does_not_depend_on_the_others():
    torch.testing.assert_close(of("total", "a", "invoice")[2], of("invoice")[0])
