"""Relevance by pages: less than 2 % of a large image is read, where it matters; the same as from memory."""

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.virtual.conftest import SIZE, WORDS
from tests.virtual.sources import ArraySource, LargeSheet
from texturevlm.relevance import AttentionScorer, find_relevance, refine, words
from texturevlm.relevance.ocr import Page, Word
from texturevlm.relevance.words import WordsScorer
from texturevlm.virtual import PageKey, open_paged, pages
from texturevlm.virtual.sources import TiffSource

QUESTION = "What is the total amount due?"


def finest_inside(allocation, box):
    """Pixels per sample of the finest token whose centre lies in a box (top, left, bottom, right)."""
    top, left, bottom, right = box
    x, y = allocation.centre[0].unbind(-1)
    inside = allocation.valid[0] & (x > left) & (x < right) & (y > top) & (y < bottom)
    return float(2 ** allocation.level[0][inside].min()) if inside.any() else np.inf


LINE = "Total amount due: 4711 EUR"


def words_at(box, size):
    """The line of the image as OCR's page, evenly over a box (x0, y0, x1, y1)."""
    x0, y0, x1, y1 = box
    texts = LINE.split()
    step = (x1 - x0) / len(texts)
    return Page(
        tuple(Word(text, (x0 + i * step, y0, x0 + (i + 0.9) * step, y1), 0, 1.0) for i, text in enumerate(texts)), size
    )


def near_the_words(found):
    rows, columns = found.grid
    top, left = int((WORDS[1] - 60) / SIZE[0] * rows), int((WORDS[0] - 60) / SIZE[1] * columns)
    near = found.mass[0, top : top + round(200 / SIZE[0] * rows), left : left + round(760 / SIZE[1] * columns)]
    return float(near.sum())


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Two windows per question."""
    monkeypatch.setattr(refine, "FEW_PAGES", 8)


def test_less_than_2_percent_of_a_large_image_is_read_and_the_label_is_seen_finely(monkeypatch):
    texture = open_paged(LargeSheet())
    relevance = find_relevance(texture, relevance="none")
    top, left, bottom, right = (edge * 640 // 20480 for edge in LargeSheet.label)
    assert relevance.legible_scale[0, top:bottom, left:right].min() < 12  # the overview has texels of 16 pixels
    allocation = tv.choose_tokens(texture, relevance=relevance, allocator="layers")
    patches = tv.sample(texture, allocation)
    done = texture.pages.counters
    assert done.bytes_read < 0.02 * LargeSheet().total_bytes and not done.errors
    assert 25 < done.pages_read < 0.02 * texture.pages.pages
    assert texture.pages.pool.texels.numel() <= pages.POOL_BYTES
    assert finest_inside(allocation, LargeSheet.label) < 3
    # The stripes are seen: black and white where the coarse levels have grey.
    inside = (allocation.centre[0] - torch.tensor([12300.0, 9300.0])).abs().amax(-1) < 250
    inside &= allocation.valid[0]
    assert patches.pixels[0, inside].std() > 0.25
    unread = open_paged(LargeSheet())
    monkeypatch.setattr(unread.pages, "fetch", lambda wanted: 0)
    assert tv.sample(unread, allocation).pixels[0, inside].std() < 0.05


@pytest.fixture(scope="module")
def in_memory(pyramid):
    """The file, with all of its levels loaded."""
    import tifffile

    with tifffile.TiffFile(pyramid) as tiff:
        return [level.asarray() for level in tiff.series[0].levels]


def test_the_same_traversal_over_the_loaded_image_gives_the_same_tokens(pyramid, in_memory):
    by_pages = tv.Texture.open(pyramid)
    loaded = open_paged(ArraySource(in_memory, page=(256, 256)))
    one, other = (tv.choose_tokens(texture, QUESTION, relevance="scout") for texture in (by_pages, loaded))
    assert one.to_json() == other.to_json()
    assert torch.equal(tv.sample(by_pages, one).pixels, tv.sample(loaded, other).pixels)


def test_what_was_asked_before_changes_nothing(pyramid):
    questions = (QUESTION, "Who signed?", QUESTION)
    memo = tv.prepare(tv.Texture.open(pyramid)).memo
    first, _, again = (memo.find(question, scorer="scout").mass for question in questions)
    assert torch.equal(first, again)


def test_a_question_finds_its_words(pyramid, monkeypatch):
    monkeypatch.setattr(refine, "FEW_PAGES", 32)
    texture = tv.Texture.open(pyramid)
    found = find_relevance(texture, QUESTION, relevance="scout")
    assert found.size == SIZE and found.scorer == "scout" and found.mass.sum() == pytest.approx(1, abs=1e-3)
    assert near_the_words(found) > 0.5  # of 0.9 % of the area
    x, y = WORDS
    allocation = tv.choose_tokens(texture, relevance=found)
    assert finest_inside(allocation, (y - 60, x - 60, y + 140, x + 700)) < 2


def test_words_are_read_in_windows(pyramid, monkeypatch):
    sizes = []

    def read_dark_marks(image):
        sizes.append(tuple(image.shape[2:]))
        y, x = (image[0].mean(0) < 0.3).nonzero().unbind(1)
        if len(x) == 0:
            return Page((), sizes[-1])
        return words_at((float(x.min()), float(y.min()), float(x.max()), float(y.max())), sizes[-1])

    monkeypatch.setattr(words, "read_page", read_dark_marks)
    found = find_relevance(tv.Texture.open(pyramid), QUESTION, relevance="words")
    assert sizes[0] == (1025, 1050) and len(sizes) > 1 and max(map(max, sizes[1:])) <= 512
    assert found.scorer == "words" and near_the_words(found) > 0.8


def test_words_that_are_known_of_the_whole_image(pyramid, monkeypatch):
    monkeypatch.setattr(words, "read_page", None)  # nothing is read again
    x, y = WORDS
    scorer = WordsScorer(words_at((x, y, x + 620, y + 48), SIZE))
    found = find_relevance(tv.Texture.open(pyramid), QUESTION, relevance=scorer)
    assert found.scorer == "words" and near_the_words(found) > 0.8


def test_a_map_of_the_whole_image_is_not_spread_over_each_window(pyramid):
    attention = torch.zeros(1, 8, 8)
    attention[0, 0, 7] = 1.0
    found = find_relevance(tv.Texture.open(pyramid), "Where?", relevance=AttentionScorer(attention))
    rows, columns = found.grid
    assert found.mass[0, : rows // 4, columns * 3 // 4 :].sum() > 0.7


def test_other_allocators_and_a_shared_budget(pyramid):
    texture = tv.Texture.open(pyramid)
    relevance = find_relevance(texture, relevance="none")
    for allocator in ("density", "resize", "fit", "atlas"):
        allocation = tv.choose_tokens(texture, relevance=relevance, allocator=allocator, budget=64)
        assert allocation.size == SIZE and 0 < int(allocation.valid.sum()) <= 64
    shared = tv.choose_tokens([texture, tv.Texture(torch.rand(1, 3, 300, 200))], share=True, budget=64)
    assert sum(int(one.valid.sum()) for one in shared) <= 64


def test_the_pool_may_be_smaller_than_a_window(pyramid):
    texture = open_paged(pyramid, pool_bytes=2 * 3 * 256 * 256)
    allocation = tv.choose_tokens(texture, QUESTION, relevance="scout")
    assert torch.isfinite(tv.sample(texture, allocation).pixels).all() and len(texture.pages.pool.slots) <= 2


def test_a_tiff_counts_its_header_too(pyramid):
    source = TiffSource(pyramid)
    whole = source.read_pages([PageKey(2, row, column) for row in range(5) for column in range(5)])
    read = open_paged(source).pages.counters.bytes_read
    assert source.opened_with > 1000 and read == source.opened_with + sum(page.bytes for page in whole)
