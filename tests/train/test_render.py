"""Rendered pages: the same seed gives the same page, every word's box holds that word's ink and lies on the page."""

import json
import math
import pickle
import random
import re
from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import status
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.train.render import RenderedPage, Vocabulary, find_fonts, render_page
from texturevlm_lab.train.render.fonts import Face, cached_face, families, is_usable
from texturevlm_lab.train.render.page import LAYOUTS, compose
from texturevlm_lab.train.render.prose import wrapped
from texturevlm_lab.train.render.scan import bend, legible_words, moved_words, scanned, smooth, threshold, turn
from texturevlm_lab.train.render.sheet import FINE, Pen, Sheet, make_style
from texturevlm_lab.train.render.vocabulary import fact

SEED = 20


@pytest.fixture(scope="module")
def fonts() -> list[Path]:
    try:
        return find_fonts()
    except ValueError as error:
        pytest.skip(f"no fonts on this machine: {error}")


@pytest.fixture(scope="module")
def pages(fonts) -> list[RenderedPage]:
    vocabulary = Vocabulary(["What is the date of the invoice?", "Zymurgy"])
    return [render_page(np.random.default_rng([SEED, i]), fonts, vocabulary) for i in range(12)]


def test_the_same_seed_gives_the_same_page(fonts, pages):
    vocabulary = pickle.loads(pickle.dumps(Vocabulary(["What is the date of the invoice?", "Zymurgy"])))
    again = render_page(np.random.default_rng([SEED, 3]), fonts, vocabulary)
    assert np.array_equal(again.image, pages[3].image)
    assert again.words == pages[3].words
    assert not np.array_equal(pages[3].image, pages[4].image)


def test_words_lie_on_the_page(pages):
    assert sum(len(page.words) for page in pages) > 12 * 40
    for page in pages:
        assert page.image.shape == (1100, 850) and page.image.dtype == np.uint8
        for text, (x0, y0, x1, y1) in page.words:
            assert text and " " not in text
            assert 0 <= x0 < x1 <= 850 and 0 <= y0 < y1 <= 1100


def test_boxes_hold_ink_where_the_paper_around_them_has_less(pages):
    held = []
    for page in pages:
        image = page.image.astype(float)
        for _, (x0, y0, x1, y1) in page.words:
            inside = image[int(y0) : math.ceil(y1), int(x0) : math.ceil(x1)]
            held.append(np.ptp(inside) >= 25)
    assert np.mean(held) > 0.99


def test_every_layout_writes_words_that_do_not_overlap(fonts):
    known = families(tuple(fonts))
    for seed, kind in enumerate(LAYOUTS):
        rng = random.Random(seed)
        sheet = Sheet((1100, 850), rng, Vocabulary(), make_style(rng, known, size=12))
        compose(sheet, LAYOUTS[kind])
        assert len(sheet.words) > 5, kind
        taken = np.zeros(sheet.ink.shape, int)
        for _, box in sheet.words:
            x0, y0, x1, y1 = (int(edge * FINE) for edge in box)
            taken[y0:y1, x0:x1] += 1
        assert (taken > 1).sum() < 0.03 * (taken > 0).sum(), kind


@pytest.mark.parametrize("size", [(64, 64), (301, 517), (1200, 400)])
def test_any_size_of_page(fonts, size):
    for index in range(4):
        page = render_page(np.random.default_rng([SEED, index]), fonts, Vocabulary(), size)
        assert page.image.shape == size
        for _, (x0, y0, x1, y1) in page.words:
            assert 0 <= x0 < x1 <= size[1] and 0 <= y0 < y1 <= size[0]


def test_a_written_word_is_where_its_box_says(fonts):
    rng = random.Random(0)
    sheet = Sheet((60, 200), rng, Vocabulary(), make_style(rng, families(tuple(fonts))))
    end = sheet.write("Alpha beta", 10, 40, Pen(cached_face(fonts[0], 40)))
    assert [text for text, _ in sheet.words] == ["Alpha", "beta"]
    ink = np.flatnonzero(sheet.ink.any(axis=0)) / FINE
    assert sheet.words[0][1][0] == ink[0] and sheet.words[1][1][2] == ink[-1] + 1 / FINE
    assert sheet.words[1][1][2] <= end + 2
    sheet.write("outside", 190, 40, Pen(cached_face(fonts[0], 40)))
    assert len(sheet.words) == 2


def test_a_space_has_its_least_width_whatever_was_measured_before(fonts):
    """The glyph of a space replaced its width, so that a page depended on the pages before it."""
    for path in fonts:
        face = Face(path, 24)
        assert face.width("a b") == pytest.approx(face.width("a") + face.space + face.width("b")), path


def test_lines_are_no_wider_than_asked(fonts):
    pen = Pen(cached_face(fonts[0], 24))
    words = ["a", "few", "words", "incomprehensibilities", "of", "different", "width"] * 3
    lines = list(wrapped(words, pen, 60))
    assert all(pen.width(" ".join(line)) <= 60 + 1e-6 for line in lines)
    assert [word for line in lines for word in line] == [word for word in words if pen.width(word) <= 60]


@pytest.mark.parametrize("move", [turn, bend])
def test_boxes_follow_the_paper(move):
    for seed in range(8):
        scale = FINE if move is turn else 1
        ink = np.zeros((400 * scale, 300 * scale), np.uint8)
        ink[200 * scale : 212 * scale, 120 * scale : 160 * scale] = 255
        moved_ink, words = move(ink, [("bar", (120.0, 200.0, 160.0, 212.0))], random.Random(seed))
        rows, columns = np.nonzero(moved_ink > 127)
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert words[0][1] == pytest.approx([edge / scale for edge in found], abs=1.5)


def test_words_that_leave_the_page_are_dropped():
    words = [("stays", (10.0, 10.0, 30.0, 20.0)), ("goes", (80.0, 10.0, 99.0, 20.0))]
    assert [text for text, _ in moved_words(words, lambda points: points + np.array([10, 0]), (50, 100))] == ["stays"]


def test_threshold_gives_two_tones_and_keeps_pale_print():
    ink = np.zeros((200, 200), np.uint8)
    ink[40:160, 50:54] = 120
    for seed in range(10):
        tones = threshold(np.random.default_rng(seed), ink, [("l", (25.0, 20.0, 27.0, 80.0))], random.Random(seed))
        assert set(np.unique(tones)) <= {0, 255}
        assert (tones[60:140, 51:53] == 255).mean() > 0.5


def test_smooth_keeps_the_amount_of_ink():
    ink = np.random.default_rng(0).integers(0, 2, (40, 50), dtype=np.uint8) * 252
    ink[:2], ink[-2:], ink[:, :2], ink[:, -2:] = 0, 0, 0, 0
    assert smooth(ink).sum() == pytest.approx(int(ink.sum()), rel=0.02)


def test_a_word_that_vanished_or_drowned_is_not_labelled():
    before = np.zeros((40, 120), np.uint8)
    before[10:20, ::4] = 255
    after = before.copy()
    after[:, :40] = 0
    after[:, 80:] = 255
    words = [(name, (x / FINE, 5.0, (x + 40) / FINE, 10.0)) for name, x in (("gone", 0), ("kept", 40), ("bar", 80))]
    assert [text for text, _ in legible_words(words, before, after)] == ["kept"]


def test_degrading_blank_paper_works():
    for seed in range(20):
        page, words = scanned(np.random.default_rng(seed), np.zeros((80, 60), np.uint8), [], random.Random(seed))
        assert page.shape == (40, 30) and words == []


def test_given_words_are_written_and_unprintable_ones_are_not():
    vocabulary = Vocabulary(["Zymurgy “quoted” naïve", "   "])
    words = [vocabulary.word(random.Random(seed)) for seed in range(400)]
    assert {"Zymurgy", '"quoted"'} <= set(words) and "naïve" not in words
    assert 0.5 < sum(word in ("Zymurgy", '"quoted"') for word in words) / 400 < 0.7


def test_a_vocabulary_needs_no_list():
    vocabulary, rng = Vocabulary(), random.Random(0)
    assert all(vocabulary.nonsense(rng).isalpha() for _ in range(50))
    assert len({vocabulary.word(rng) for _ in range(400)}) > 150
    digits_only = Vocabulary(["1 2 3"])
    assert digits_only.nonsense(rng)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("number", r"\(?[\d,]+(\.\d\d?)?\)?"),
        ("amount", r"(RM|\$ ?)?[\d,]+(\.\d\d?)?( million|/-)?"),
        ("percentage", r"\d+(\.\d+)?( ?%| per cent)"),
        ("date", r"\d[\d/.-]+\d|\d{4}|[A-Z][a-z]+\.?( \d+,?)?( \d{4})?|\d+ [A-Z][a-z]+ \d{4}|\d+-[A-Z]{3}-\d\d"),
        ("phone", r"[+(]?\d[\d) /-]+\d"),
        ("code", r"(No\. )?[A-Z\d -]+"),
        ("person", r"((Dr|Mr)\. )?[A-Z][A-Za-z., ]+|(DR|MR)\. [A-Z]+( [A-Z]+)?"),
        ("company", r"[A-Z][A-Za-z]+ [A-Z][A-Za-z]+ [A-Z&][A-Za-z. ]+"),
        ("web", r"(http://)?[a-z.]+(@[a-z.]+)?"),
        ("quantity", r"\(?[\d,.]+\)? [a-z.]+"),
    ],
)
def test_facts_look_like_their_kind(kind, pattern):
    rng = random.Random(0)
    found = {fact(rng, kind) for _ in range(200)}
    assert len(found) > 50 and not [one for one in found if not re.fullmatch(pattern, one)]


def test_facts_are_of_all_kinds():
    facts = [fact(random.Random(seed)) for seed in range(400)]
    assert any("$" in one for one in facts) and any("%" in one for one in facts) and any("www" in one for one in facts)


def test_no_fonts_is_a_clear_error(tmp_path):
    with pytest.raises(ValueError, match="find_fonts: folder must hold"):
        find_fonts(tmp_path)
    (tmp_path / "broken.ttf").write_bytes(b"no font at all")
    assert not is_usable(tmp_path / "broken.ttf")
    with pytest.raises(ValueError, match="render_page: fonts must be at least one"):
        render_page(np.random.default_rng(0), [], Vocabulary())


def test_symbol_fonts_are_refused():
    matplotlib = pytest.importorskip("matplotlib")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = {path.name for path in find_fonts(folder)}
    assert {"DejaVuSans.ttf", "DejaVuSansMono-Bold.ttf"} <= found
    assert not found & {"cmsy10.ttf", "cmex10.ttf", "STIXSizOneSymReg.ttf"}
    styles = {family.name: family for family in families(tuple(find_fonts(folder)))}
    assert styles["DejaVu Sans Mono"].fixed_width and not styles["DejaVu Serif"].fixed_width
    assert styles["DejaVu Sans"].file(bold=True, italic=True).name == "DejaVuSans-BoldOblique.ttf"


def test_the_command_writes_pictures_and_words(fonts, tmp_path, capsys):
    words = tmp_path / "words.txt"
    words.write_text("alpha beta\ngamma\n")
    command = ["render-pages", "--out", str(tmp_path / "out"), "--count", "2", "--words", str(words)]
    assert status(*command, "--size", "300", "200") == 0 and "2 pages" in capsys.readouterr().out
    assert (tmp_path / "out" / "page_0001.png").exists()
    assert isinstance(json.loads((tmp_path / "out" / "page_0001.json").read_text()), list)
    assert (
        status(*command, "--count", "0") == 2
        and "--count: must be a whole number from 1, got '0'" in capsys.readouterr().err
    )


def test_the_command_writes_questions_that_eval_reads(fonts, tmp_path):
    assert status("render-pages", "--out", str(tmp_path), "--count", "2", "--questions", "held_out") == 0
    data = load_data(tmp_path, split="eval")
    assert [sample.id for sample in data.samples] == ["rendered-0", "rendered-1"] and not data.skipped
    assert all(sample.answers[0] and sample.boxes for sample in data.samples)
