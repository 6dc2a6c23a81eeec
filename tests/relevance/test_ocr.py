"""Words of a page: cut out of an engine's lines, kept as JSON, and read from pixels where RapidOCR is installed."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from texturevlm.relevance import ocr
from texturevlm.relevance.ocr import MOST_PIXELS, Page, Word, read_page, split_line, words_of_lines
from texturevlm_lab.train.pages import load_page

INVOICE = Path(__file__).parents[2] / "examples" / "invoice.png"


def corners(x0, y0, x1, y1):
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def pieces(*row):
    return [(text, 0.9, corners(*box)) for text, box in row]


def texts(line, own, box):
    return [text for text, _, _ in split_line(line, own, corners(*box))]


def test_a_torn_word_is_put_together_again():
    own = pieces(("so", (0, 0, 20, 20)), ("m", (30, 0, 40, 20)), ("uch", (46, 0, 76, 20)))
    words = list(split_line("so much", own, corners(0, 0, 76, 20)))
    assert [text for text, _, _ in words] == ["so", "much"]
    assert words[1][1] == (30, 0, 76, 20)


def test_a_wide_gap_parts_words_without_a_space():
    own = pieces(("X", (0, 0, 20, 30)), ("Yes", (60, 0, 110, 30)))
    assert texts("XYes", own, (0, 0, 110, 30)) == ["X", "Yes"]


@pytest.mark.parametrize(
    "line, words",
    [
        ("DATE:July", ["DATE:", "July"]),
        ("10:30", ["10:30"]),
        ("1,234.50", ["1,234.50"]),
        ("otherInvestment", ["other", "Investment"]),
        ("McDonald", ["McDonald"]),
        ("total(net)", ["total", "(net)"]),
        ("f(x)", ["f(x)"]),
        ("日期2020", ["日", "期", "2020"]),
        ("한국어 텍스트", ["한국어", "텍스트"]),
    ],
)
def test_glued_words_are_cut_in_proportion(line, words):
    found = list(split_line(line, [(line, 1.0, corners(0, 0, 10 * len(line), 12))], corners(0, 0, 10 * len(line), 12)))
    assert [text for text, _, _ in found] == words
    for text, (x0, _, x1, _), _ in found:
        start = line.index(text)
        assert (x0, x1) == pytest.approx((10 * start, 10 * (start + len(text))))


def test_a_turned_line_is_cut_downwards():
    found = list(split_line("up down", [("up down", 1.0, corners(0, 0, 12, 70))], corners(0, 0, 12, 70)))
    assert [box for _, box, _ in found] == [
        pytest.approx((0, 0, 12, 20)),
        pytest.approx((0, 30, 12, 70)),
    ]


def test_lost_pieces_do_not_shift_the_lines_after_them():
    lines = [(corners(0, 0, 40, 10), "one", 0.9), (corners(0, 20, 50, 30), "a two", 0.8)]
    kept = [pieces(("a", (0, 20, 10, 30)), ("two", (20, 20, 50, 30)))]
    words = list(words_of_lines(lines, kept, size=(100, 100)))
    assert [(word.text, word.line) for word in words] == [("one", 0), ("a", 1), ("two", 1)]
    assert words[0].box == (0, 0, 40, 10)
    assert words[2].box == (20, 20, 50, 30)


def test_words_stay_on_the_page_and_empty_ones_are_dropped():
    lines = [(corners(-5, -5, 200, 10), "wide", 1.0), (corners(150, 0, 160, 10), "outside", 1.0)]
    words = list(words_of_lines(lines, [], size=(100, 100)))
    assert [(word.text, word.box) for word in words] == [("wide", (0, 0, 100, 10))]


def test_json_gives_the_page_back():
    page = Page((Word("Größe", (1.0, 2.5, 3.0, 4.0), 0, 0.875), Word("日", (5.0, 6.0, 7.0, 8.0), 3, 1.0)), (30, 40))
    assert Page.from_json(page.to_json()) == page


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"size": [1, 1]}', '{"size": [1, 1], "words": [["a", [1, 2], 0, 1]]}',
     '{"size": [1, 1], "words": [["a", [0, 0, NaN, 1], 0, 1]]}',
     '{"size": [1, 1], "words": [["a", [0, 0, 1, 1], -1, 1]]}'],
)  # fmt: skip
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match=r"Page.from_json"):
        Page.from_json(text)


def test_a_page_must_have_a_size():
    with pytest.raises(ValueError, match="height"):
        Page((), (0, 5))


@pytest.mark.parametrize(("size", "wanted"), [((3000, 1), (3000, 187)), ((3000, 400), (3000, 400)), ((9, 7), (32, 32))])
def test_a_tall_strip_is_padded_because_the_engine_enlarges_its_width(monkeypatch, size, wanted):
    """To 736 pixels: minutes of work for a strip that is one pixel wide."""
    seen = []

    def engine(image, **how):
        seen.append(image.shape)
        return SimpleNamespace(boxes=None, txts=None)

    monkeypatch.setattr(ocr, "_engine", lambda: engine)
    assert read_page(np.full((*size, 3), 255, np.uint8)) == Page((), size)
    assert seen == [(*wanted, 3)]


class TestWithRapidOCR:
    @pytest.fixture(autouse=True)
    def needs_the_engine(self):
        pytest.importorskip("rapidocr")
        pytest.importorskip("onnxruntime")

    def test_invoice(self, tmp_path):
        head = tmp_path / "head.png"
        Image.open(INVOICE).crop((0, 340, 1240, 520)).save(head)  # all of it would take half a minute
        page = load_page(head, tmp_path)
        text = " ".join(word.text for word in page.words)
        assert "Invoice" in text or "INVOICE" in text
        height, width = page.size
        for word in page.words:
            x0, y0, x1, y1 = word.box
            assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height
            assert 0 <= word.confidence <= 1
        assert [word.line for word in page.words] == sorted(word.line for word in page.words)
        kept = tmp_path / "head.png.json"
        kept.write_text(kept.read_text().replace("nvoice", "ndication").replace("NVOICE", "NDICATION"))
        assert "ndication" in load_page(head, tmp_path).to_json().lower()

    @pytest.mark.parametrize("size", [(1, 1), (1, 400), (300, 1), (5, 7), (40, 40)])
    def test_nothing_to_read(self, size):
        assert read_page(np.full((*size, 3), 255, np.uint8)) == Page((), size)

    def test_an_enormous_page_is_shrunk_and_its_places_are_not(self):
        from PIL import ImageDraw, ImageFont

        side = 2 * int(MOST_PIXELS**0.5)
        picture = Image.new("L", (side, side), 255)
        ImageDraw.Draw(picture).text((side // 2, side // 2), "Albatross", fill=0, font=ImageFont.load_default(120))
        page = read_page(picture)
        assert [word.text for word in page.words] == ["Albatross"]
        x0, y0, x1, y1 = page.words[0].box
        assert abs(x0 - side / 2) < 40 and abs(y0 - side / 2) < 60 and 300 < x1 - x0 < 900 and y1 - y0 > 60

    def test_a_batch_is_refused(self):
        with pytest.raises(ValueError, match=r"read_page: image must be one image"):
            read_page(torch.zeros(2, 3, 8, 8))
