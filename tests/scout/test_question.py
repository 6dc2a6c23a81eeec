"""Questions: which words are looked for, in which order they are given up, and what is said of each."""

import torch

from texturevlm.scout.question import LONGEST, TRAITS, WORDS, encode, letter_codes, search_words
from texturevlm.text.strings import ASKED, STOP

HERE, COMMON, EMPHASIS, NUMBER, LENGTH, STOPS, STAND_IN = range(TRAITS)


def words(question):
    return [word for word, _, _ in search_words(question)]


def traits(question, word):
    return encode([question]).traits[0, words(question).index(word)]


def test_words_their_aliases_and_the_other_number_of_nouns():
    found = search_words("What are the telephone numbers?")
    stand_in = {word: stands for word, _, stands in found}
    assert not stand_in["telephone"] and not stand_in["numbers"]
    assert stand_in["tel"] and stand_in["phone"] and stand_in["number"] and stand_in["telephones"]
    assert {"no", "#"} <= set(words("account number"))


def test_a_word_of_the_question_is_never_its_own_stand_in():
    found = {word: stands for word, _, stands in search_words("phone or telephone")}
    assert not found["phone"] and not found["telephone"] and found["tel"]


def test_stop_words_come_last_and_stand_ins_before_them():
    found = search_words("What is the total amount of the Kestrel invoice?")
    groups = [2 if word in STOP else int(stands) for word, _, stands in found]
    assert groups == sorted(groups) and set(groups) == {0, 1, 2}
    assert found[0][0] == "kestrel"  # nobody asks for it often


def test_a_long_question_keeps_its_own_rare_words():
    rare = [f"zyx{letter}q{letter}" for letter in "abcdefghijklmnopqrst"]
    question = "what is the " + " ".join(rare) + " of the total amount and the date in this and that number"
    assert len(words(question)) == WORDS and set(rare) <= set(words(question))
    assert encode([question]).traits[0, :, HERE].sum() == WORDS
    assert len(words(" ".join(f"w{i}x" for i in range(100)))) == WORDS


def test_traits():
    question = 'Is "Kestrel" the total of 1998?'
    assert traits(question, "kestrel")[EMPHASIS] > 0 and traits(question, "total")[EMPHASIS] == 0
    assert traits(question, "1998")[NUMBER] == 1 and traits(question, "total")[NUMBER] == 0
    assert traits(question, "the")[STOPS] == 1 and traits(question, "tot")[STAND_IN] == 1
    assert traits(question, "total")[COMMON] > traits(question, "kestrel")[COMMON] == 0
    assert traits(question, "kestrel")[LENGTH].item() == torch.tensor(0.7).item()


def test_a_batch_is_its_questions_one_by_one():
    questions = ["What is the date?", "", "Who signed?", "合計はいくらですか", "¿Cuál es la fecha?"]
    together = encode(questions)
    assert together.letters.shape == (5, WORDS, LONGEST) and together.traits.shape == (5, WORDS, TRAITS)
    assert together.asked.shape == (5, len(ASKED)) and together.asked.dtype == torch.float32
    for row, question in enumerate(questions):
        for part, alone in zip(together, encode([question])):
            assert torch.equal(part[row], alone[0])


def test_nothing_asked():
    for question in ("", "  ", "?!…"):
        letters, what, _ = encode([question])
        assert (letters == -1).all() and what.eq(0).all() and search_words(question) == []
    assert encode([""]).asked.sum() == 0
    assert [len(part) for part in encode([])] == [0, 0, 0] and encode([]).asked.shape == (0, len(ASKED))


def test_any_language():
    for question in ("合計はいくらですか", "Какова сумма?", "¿Cuál es la fecha?", "ما هو المبلغ", "🦆 " * 200):
        letters, what, asked = encode([question])
        assert what.isfinite().all() and asked.isfinite().all() and ((letters >= -1) & (letters < 39)).all()
    assert "fecha" in words("¿Cuál es la fecha?") and encode(["¿Cuál es la fecha?"]).asked[0, 0] == 1
    assert "合" in words("合計はいくらですか")


def test_letters_are_those_of_the_words():
    question = "Total due for ORRINWOLD?"
    assert torch.equal(encode([question]).letters[0, : len(words(question))], letter_codes(words(question)))
