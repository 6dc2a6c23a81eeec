"""Answers on real pages, written anew: the answer changes where it stands, and nothing else does."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from texturevlm_lab.train.reader.pages import ReaderPage
from texturevlm_lab.train.reader.questions import ReaderQuestion
from texturevlm_lab.train.reader.rewritten import AnswerWriter, similar_word
from texturevlm_lab.train.render import find_fonts

FONTS = find_fonts()
TEXTS = ["Total:", "RM", "12.50", "Date", "31/12/2018", "Shop:", "GREEN", "HOUSE", "GREEN"]


@pytest.fixture(name="page")
def page_of_words() -> ReaderPage:
    """One word per line, as wide as it is printed, in boxes like those of OCR."""
    image = Image.new("L", (220, 30 * len(TEXTS) + 10), 235)
    draw, words = ImageDraw.Draw(image), []
    font = ImageFont.truetype(FONTS[0], 18)
    for number, text in enumerate(TEXTS):
        draw.text((20, 30 * number + 8), text, fill=20, font=font)
        end = 20 + float(font.getlength(text))
        words.append((text, (20.0, 30.0 * number + 5, end, 30.0 * number + 30)))
    boxes = [box for _, box in words]
    asked = [
        ReaderQuestion("sroie", "What is the total?", "12.50", (boxes[2],)),
        ReaderQuestion("sroie", "What is the date?", "31/12/2018", (boxes[4],)),
        ReaderQuestion("docvqa_half", "Who wrote it?", "W. Shakespeare", (boxes[5],)),  # OCR reads something else
        ReaderQuestion("sroie", "What is the colour?", "GREEN", (boxes[6],)),  # stands twice
    ]
    return ReaderPage(np.asarray(image).copy(), words, asked)


def rewritten(page: ReaderPage, seed: int = 0, share: float = 1.0, changed: Sequence[int] = (0, 1, 3)) -> ReaderPage:
    writer = AnswerWriter(FONTS, ["alpha", "gamma", "delta"])
    for later in range(20):  # a font that is too wide is not used
        found = writer.rewrite(page, np.random.default_rng([seed, later]), share)
        if share == 0 or all(found.questions[one].answer != page.questions[one].answer for one in changed):
            return found
    pytest.fail("no font fits")


def test_only_the_place_of_the_answer_changes(page):
    before = page.image.copy()
    found = rewritten(page)
    total, date, writer, colour = found.questions
    assert total.answer != "12.50" and date.answer != "31/12/2018"
    assert [sign if not sign.isdigit() else "#" for sign in date.answer] == list("##/##/####")
    assert found.words[2][0] == total.answer and found.words[4][0] == date.answer
    assert total.boxes == (found.words[2][1],)
    assert writer == page.questions[2]
    assert found.words[6][0] == found.words[8][0] == colour.answer and colour.boxes == (found.words[6][1],)
    changed = (found.image != before).any(1)
    rows = np.zeros(len(before), bool)
    for line in (2, 4, 6, 8):
        rows[line * 30 + 5 : line * 30 + 30] = True
    assert changed[rows].mean() > 0.4 and not changed[~rows].any()
    assert (page.image == before).all() and page.words[2][0] == "12.50"  # the page that was given stays


def test_a_drawn_box_is_printed_over_where_ocr_reads_something_else(page):
    x0, y0, _, y1 = page.words[5][1]
    asked = ReaderQuestion("funsd", "Writer", "W. S. Poe", ((x0, y0, x0 + 100, y1),))
    found = rewritten(page._replace(questions=[*page.questions[:2], asked, page.questions[3]]))
    writer = found.questions[2]
    assert writer.answer != "W. S. Poe" and len(writer.boxes) == 3
    assert found.words[-3:] == list(zip(writer.answer.split(), writer.boxes))
    assert "Shop:" not in [text for text, _ in found.words] and len(found.words) == len(page.words) + 2
    assert all(one[2] <= two[0] for one, two in zip(writer.boxes, writer.boxes[1:])) and writer.boxes[0][0] == x0


def test_words_that_a_question_names_stay(page):
    names_it = page.questions[0]._replace(named=(page.words[8][1],))  # the other place of the colour
    asked = [names_it, *page.questions[1:]]
    found = rewritten(page._replace(questions=asked), changed=(0, 1))
    assert found.questions[3] == asked[3] and found.words[6][0] == found.words[8][0] == "GREEN"


def test_words_that_two_questions_ask_for_stay(page):
    twice = [*page.questions[:2], page.questions[2], page.questions[3], page.questions[3]._replace(text="Green?")]
    found = rewritten(page._replace(questions=twice), changed=(0, 1))
    assert found.questions[3:] == twice[3:] and found.words[6][0] == "GREEN"


def test_it_is_printed_dark_on_the_paper_of_the_page(page):
    found = rewritten(page)
    x0, y0, x1, y1 = map(round, found.words[4][1])
    spot = found.image[y0:y1, x0:x1].astype(float)
    assert abs(np.percentile(spot, 90) - 235) < 8 and spot.min() < 120
    assert 0.05 < (spot < 150).mean() < 0.6


def test_the_same_numbers_give_the_same_page(page):
    one, other = rewritten(page, 3), rewritten(page, 3)
    assert one.questions == other.questions and (one.image == other.image).all()
    assert rewritten(page, 4).questions != one.questions


def test_none_is_asked_for(page):
    assert rewritten(page, share=0.0) is page


@pytest.mark.parametrize("word", ["12,066.31", "(1074617-K)", "Sdn.", "MR-7", "0.00", "--"])
def test_a_similar_word_keeps_signs_digits_and_case(word):
    for seed in range(20):
        found = similar_word(word, random.Random(seed), {3: ["cat", "dog"], 2: ["ab"]})
        assert len(found) == len(word)
        for old, new in zip(word, found):
            assert (old.isdigit(), old.isupper(), old.islower()) == (new.isdigit(), new.isupper(), new.islower())
            assert old.isalnum() or old == new


def test_other_words_are_printed_anew_as_well(page):
    """New print would otherwise tell where an answer stands."""
    row = [(f"word{number}", (20.0 + number, 5.0, 60.0 + number, 30.0)) for number in range(100)]
    many = page._replace(words=[*page.words, *row])
    new = sum(one != two for one, two in zip(rewritten(many).words[len(TEXTS) :], row))
    assert 0 < new <= 20
    asked = {text for text in TEXTS if text in "What is the total? What is the date? Who wrote it? What is the colour?"}
    assert asked <= {text for text, _ in rewritten(many).words}
