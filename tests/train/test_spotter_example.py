"""Every spot lies in its word, wherever the page was put and however it was scaled."""

import numpy as np
import pytest
import torch

from tests.train.papers import drawn
from texturevlm.scout.question import LONGEST, letter_codes
from texturevlm.scout.spotter import SPOT
from texturevlm.text.strings import KINDS
from texturevlm_lab.train import spotter_task
from texturevlm_lab.train.spotter_task import SMALLEST, SPOTS_PER_WORD, collate, kinds_by_line, spotter_example


@pytest.fixture(autouse=True)
def small_canvas(monkeypatch):
    monkeypatch.setattr(spotter_task, "CANVAS", (192, 256))


def shaded(size=(200, 240), *, high=20, wide=48):
    """A page on which each word's box has a shade of its own, and the shades by word."""
    image = np.full(size, 255, np.uint8)
    words, shades = [], {}
    for row in range(size[0] // (high + 12)):
        for column in range(size[1] // (wide + 12)):
            x, y = 6 + column * (wide + 12), 6 + row * (high + 12)
            shade = 10 + 6 * len(words) % 216
            image[y : y + high, x : x + wide] = shade
            word = f"word{chr(97 + len(words) % 26)}{len(words)}"
            words.append((word, (float(x), float(y), float(x + wide), float(y + high))))
            shades[tuple(letter_codes([word])[0].tolist())] = shade
    return (image, words), shades


def middles(image, reach):
    """(h, w, pixels): those around the middle of each spot."""
    cells = image.int().unfold(0, SPOT, SPOT).unfold(1, SPOT, SPOT)
    near = slice(SPOT // 2 - reach, SPOT // 2 + reach)
    return cells[:, :, near, near].flatten(2)


@pytest.mark.parametrize("number", range(12))
def test_spots_lie_in_their_words(number):
    page, shades = shaded()
    one = spotter_example(*page, np.random.default_rng([1, number]))
    assert one.image.shape == (192, 256) and one.text.shape == (24, 32) and len(one.spots) > 3 * SPOTS_PER_WORD
    assert len(one.spots) == SPOTS_PER_WORD * len(one.letters)
    wanted = torch.tensor([shades[tuple(row.tolist())] for row in one.letters[one.word].long()])
    around = middles(one.image, 2)[one.spots[:, 0], one.spots[:, 1]]
    assert ((around - wanted[:, None]).abs() <= 2).any(1).all()
    assert one.text[one.spots[:, 0], one.spots[:, 1]].all()


@pytest.mark.parametrize("number", range(8))
def test_text_is_where_words_are(number):
    """Also where nothing is asked, and where the canvas cuts a word."""
    page, _ = shaded()
    one = spotter_example(*page, np.random.default_rng([2, number]))
    ink = middles(one.image, 2) < 240
    assert one.text[ink.all(2)].all()
    inner = np.s_[1:-1, 1:-1]  # at the canvas's edge a sliver of a word counts
    assert one.text[inner][~ink.any(2)[inner]].sum() == 0
    assert 0.2 < one.text.float().mean() < 0.8


def test_words_beyond_the_most_are_still_text(monkeypatch):
    page, _ = shaded()
    every = spotter_example(*page, np.random.default_rng(0))
    monkeypatch.setattr(spotter_task, "MOST_WORDS", 2)
    few = spotter_example(*page, np.random.default_rng(0))
    assert len(few.letters) <= 2 < len(every.letters) and torch.equal(few.text, every.text)


def test_height_and_scale(monkeypatch):
    page, _ = shaded()
    for scale in (0.8, 1.0, 1.3):
        monkeypatch.setattr(spotter_task, "SCALES", (scale, scale))
        one = spotter_example(*page, np.random.default_rng(3))
        torch.testing.assert_close(one.height.exp(), torch.full_like(one.height, 20 * scale), atol=0.2, rtol=0)


def test_what_is_too_low_to_read_is_not_asked(monkeypatch):
    monkeypatch.setattr(spotter_task, "SCALES", (0.7, 0.7))
    page, _ = shaded(high=7)
    assert SMALLEST > 0.7 * 7
    one = spotter_example(*page, np.random.default_rng(0))
    assert one.spots.shape == (0, 2) and one.letters.shape == (0, LONGEST) and one.kinds.shape == (0, len(KINDS))


def test_a_small_page_stands_on_its_own_paper():
    one = spotter_example(np.full((40, 50), 77, np.uint8), [], np.random.default_rng(0))
    assert (one.image == 77).all() and one.text.sum() == 0 and len(one.word) == 0


def test_a_page_is_known_from_its_number():
    page = drawn([("Total", "940.00"), ("Date", "3 May")], (192, 256))
    first, again, other = (spotter_example(*page, np.random.default_rng([9, number])) for number in (4, 4, 5))
    assert all(torch.equal(one, two) for one, two in zip(first, again)) and not torch.equal(first.image, other.image)


def test_words_of_punctuation_are_text_and_are_not_asked():
    image = np.full((192, 256), 255, np.uint8)
    one = spotter_example(image, [("—", (60.0, 60.0, 140.0, 100.0))], np.random.default_rng(0))
    assert one.text.sum() > 0 and len(one.spots) == 0


def test_kinds_of_a_line_are_found_together():
    line = [("3", (0.0, 0.0, 8.0, 10.0)), ("May", (12.0, 0.0, 40.0, 10.0)), ("1998", (44.0, 0.0, 70.0, 10.0))]
    apart = [("3", (0.0, 0.0, 8.0, 10.0)), ("May", (0.0, 30.0, 40.0, 40.0)), ("1998", (200.0, 30.0, 230.0, 40.0))]
    date, year = list(KINDS).index("date"), list(KINDS).index("year")
    assert (
        kinds_by_line(line)[:, date].all() and not kinds_by_line(apart)[:, date].any() and kinds_by_line(apart)[2, year]
    )
    assert kinds_by_line([]).shape == (0, len(KINDS))


def test_collate():
    page, _ = shaded()
    blank = (np.full((40, 50), 255, np.uint8), [])
    each = [spotter_example(*one, np.random.default_rng(n)) for n, one in enumerate((page, blank, page))]
    batch = collate(each)
    assert batch.image.shape == (3, 1, 192, 256) and batch.text.shape == (3, 24, 32)
    assert (
        len(batch.spots)
        == len(batch.word)
        == len(batch.kinds)
        == len(batch.height)
        == sum(len(one.spots) for one in each)
    )
    start = 0
    for number, one in enumerate(each):
        mine = slice(start, start + len(one.spots))
        assert (batch.spots[mine, 0] == number).all() and torch.equal(batch.spots[mine, 1:], one.spots)
        assert torch.equal(batch.letters[batch.word[mine]], one.letters[one.word])
        assert torch.equal(batch.image[number, 0], one.image)
        start += len(one.spots)
