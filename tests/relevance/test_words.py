"""Which words are the answer: on pages made by hand, where everybody can see which."""

import json
import random
import re
import time
import unicodedata

import numpy as np
import pytest

from texturevlm.relevance.features import FEATURE_NAMES, word_features
from texturevlm.relevance.ocr import Page, Word
from texturevlm.relevance.words import WordRanker, answer_probability, load_word_ranker, overlaps, spread, words_map
from texturevlm.text.strings import ASKED, KINDS, asked_kinds, kinds, plain, terms, word_similarity

LETTER, HEIGHT = 11, 20  # pixels


def page_of(*lines, size=(1100, 850)):
    """A page from (x, y, text): words of a text stand side by side."""
    words = []
    for number, (x, y, text) in enumerate(lines):
        for word in text.split():
            words.append(Word(word, (x, y, x + LETTER * len(word), y + HEIGHT), number, 0.99))
            x += LETTER * (len(word) + 1)
    return Page(tuple(words), size)


def best(page, question):
    """The text of the line that has the greatest share of the answer."""
    line = [word.line for word in page.words]
    chosen = np.bincount(line, answer_probability(page, question)).argmax()
    return " ".join(word.text for word in page.words if word.line == chosen)


def clue(page, question, name, word):
    index = [entry.text for entry in page.words].index(word)
    return float(word_features(page, question, {})[index, FEATURE_NAMES.index(name)])


FORM = page_of(
    (300, 40, "PURCHASE ORDER"),
    (60, 150, "Vendor:"), (250, 150, "Oakfield Trading"),
    (60, 200, "Delivery date:"), (250, 200, "04/12/1987"),
    (60, 250, "Order number:"), (250, 250, "A-77120"),
    (60, 300, "Contact person:"), (250, 300, "Martha Quill"),
    (60, 700, "Payment is due within thirty days of receipt"),
)  # fmt: skip

TABLE = page_of(
    (60, 100, "Region"), (250, 100, "Wheat"), (400, 100, "Barley"), (550, 100, "Maize"),
    (60, 150, "Northland"), (250, 150, "412"), (400, 150, "178"), (550, 150, "903"),
    (60, 200, "Southmark"), (250, 200, "655"), (400, 200, "221"), (550, 200, "340"),
    (60, 250, "Westerley"), (250, 250, "518"), (400, 250, "764"), (550, 250, "127"),
)  # fmt: skip

BELOW = page_of(
    (60, 100, "Policy holder"), (300, 100, "Policy number"), (550, 100, "Renewal date"),
    (60, 125, "Edith Farrow"), (300, 125, "CAP1325958"), (550, 125, "12/1/1975"),
    (60, 500, "Please quote these details whenever you write to us about this matter"),
)  # fmt: skip


class TestWhereAnswersSit:
    @pytest.mark.parametrize(
        "question, answer",
        [
            ("What is the delivery date?", "04/12/1987"),
            ("What is the order number?", "A-77120"),
            ("Who is the contact person?", "Martha Quill"),
            ("Which vendor is given?", "Oakfield Trading"),
        ],
    )
    def test_right_of_a_label(self, question, answer):
        assert best(FORM, question) == answer

    @pytest.mark.parametrize(
        "question, answer",
        [
            ("What is the policy number?", "CAP1325958"),
            ("What is the renewal date?", "12/1/1975"),
            ("What is the name of the policy holder?", "Edith Farrow"),
        ],
    )
    def test_below_a_label(self, question, answer):
        assert best(BELOW, question) == answer

    @pytest.mark.parametrize("row, values", [(1, "412 178 903"), (2, "655 221 340"), (3, "518 764 127")])
    def test_row_and_column_of_a_table(self, row, values):
        region = ("Northland", "Southmark", "Westerley")[row - 1]
        for crop, value in zip(("wheat", "barley", "maize"), values.split()):
            question = f"What is the value of {crop} in {region}?"
            numbers = [word.text for word in TABLE.words if word.text.isdigit()]
            crossing = {number: clue(TABLE, question, "share_table", number) for number in numbers}
            assert max(crossing, key=lambda number: crossing[number]) == value
            chance = answer_probability(TABLE, question)
            rank = [TABLE.words[index].text for index in np.argsort(-chance)]
            assert value in rank[:3]

    def test_the_title_is_at_the_top(self):
        assert best(FORM, "What is the title of the document?") == "PURCHASE ORDER"

    def test_the_question_counts(self):
        date, name = (answer_probability(FORM, f"What is the {label}?") for label in ("delivery date", "vendor"))
        assert np.abs(date - name).sum() > 0.3


class TestMatching:
    def test_rare_words_count_more(self):
        page = page_of(
            *((60, 100 + 40 * row, f"sales of item {row}") for row in range(10)),
            (60, 600, "sales of zinc"), (300, 600, "4711"), (300, 140, "9000"),
        )  # fmt: skip
        question = "sales of zinc"
        assert clue(page, question, "share_row", "4711") > 2 * clue(page, question, "share_row", "9000")

    def test_words_common_in_questions_count_less(self):
        common = {"mentioned": 0.9}
        page = page_of((60, 100, "mentioned"), (200, 100, "one"), (60, 300, "quorum"), (200, 300, "two"))
        found = word_features(page, "mentioned quorum", common)[:, FEATURE_NAMES.index("share_right")]
        assert found[3] > 3 * found[1]

    def test_a_run_counts_more_than_its_words_apart(self):
        page = page_of(
            (60, 100, "net asset value"), (400, 100, "11"), (60, 300, "net"), (400, 300, "22"), (60, 500, "asset"),
            (400, 500, "33"),
        )  # fmt: skip
        question = "What is the net asset value?"
        assert clue(page, question, "label_right", "11") > 2 * clue(page, question, "label_right", "22")

    @pytest.mark.parametrize(
        "page_word", ["Registration", "registratlon", "REGISTRATIONS", "Regstration", "Registrations:"]
    )
    def test_in_spite_of_reading_errors(self, page_word):
        assert word_similarity(["registration"], [plain(page_word)])[0, 0] > 0.6

    @pytest.mark.parametrize(
        "ours, theirs, low, high",
        [
            ("date", "date", 1, 1),
            ("companies", "company", 0.9, 1),
            ("number", "no", 0.7, 0.9),
            ("birth", "dateofbirth", 0.6, 0.8),
            ("1975", "1976", 0, 0),
            ("date", "wheat", 0, 0.2),
            ("", "", 1, 1),
        ],
    )
    def test_likeness(self, ours, theirs, low, high):
        assert low <= word_similarity([ours], [theirs])[0, 0] <= high

    def test_terms(self):
        found = terms("What is the ‘Net Weight’ of Étoile-7?")
        assert [term for term, _ in found] == ["what", "is", "the", "net", "weight", "of", "etoile", "7"]
        emphasis = dict(found)
        assert emphasis["net"] > emphasis["etoile"] > emphasis["what"]
        assert [term for term, _ in terms("日期是什么")] == list("日期是什么")

    def test_kinds(self):
        text = "Paid $ 1,200.50 on March 3, 1964 call (212) 555-0199 or 12% to Acme Inc."
        line = text.split()
        table = kinds(line)
        found = {name: [line[row] for row in np.flatnonzero(table[:, column])] for column, name in enumerate(KINDS)}
        assert found["money"] == ["$", "1,200.50"]
        assert found["date"] == ["March", "3,", "1964"]
        assert found["phone"] == ["(212)", "555-0199"]
        assert found["percent"] == ["12%"]
        assert found["firm"] == ["Inc."]

    def test_asked(self):
        def of(question):
            return {name for name, value in zip(ASKED, asked_kinds(question)) if value}

        assert "date" in of("When was it sent?") and "date" not in of("Who sent it?")
        assert "money" in of("How much was paid?") and "percent" in of("What percentage is it?")
        assert "yes" in of("Is it signed?") and "yes" not in of("What is signed?")

    def test_asked_word_by_word_is_asked_of_the_whole_question(self):
        """Most patterns are searched in single words, which are kept; the text is that of the patterns' own words."""
        words = re.findall(r"[\w#$%']+", " ".join(ASKED.values()))
        words += [*"?!,.-/()", "a.m.", "o'clock", "e-mail", "per", "IS", "how", "many", "of", "number", "web"]
        draw = random.Random(0)
        for _ in range(400):
            question = draw.choice([" ", " ", "", "\n", "\u3000"]).join(draw.choices(words, k=draw.randint(0, 9)))
            text = unicodedata.normalize("NFKC", question)
            wanted = [bool(re.search(pattern, text, re.IGNORECASE)) for pattern in ASKED.values()]
            assert asked_kinds(question).astype(bool).tolist() == wanted, question


class TestProbabilities:
    @pytest.mark.parametrize(
        "question", ["What is the vendor?", "zzz", "Wie lautet die Bestellnummer?", "납품 날짜는?"]
    )
    @pytest.mark.parametrize("page", [FORM, TABLE, BELOW])
    def test_sum_to_at_most_one(self, page, question):
        chance = answer_probability(page, question)
        assert chance.shape == (len(page.words),) and chance.dtype == np.float32
        assert (chance >= 0).all() and 0 < chance.sum() <= 1 + 1e-5

    @pytest.mark.parametrize("question", ["", "   ", "?!…", "\x00"])
    def test_no_question_is_everywhere_the_same(self, question):
        assert answer_probability(FORM, question) == pytest.approx(1 / len(FORM.words))

    @pytest.mark.parametrize("unit", ["delivery date ", "x", "日", "🙂 ", "a" * 1000 + " ", "' "])
    def test_an_enormous_question_is_no_slower_than_it_need_be(self, unit):
        question = (unit * (1_000_000 // len(unit) + 1))[:1_000_000]
        before = time.perf_counter()
        chance = answer_probability(FORM, question)
        assert np.isfinite(chance).all()
        assert time.perf_counter() - before < 2  # seconds; tens of milliseconds when nothing else runs

    @pytest.mark.parametrize(
        "label, value, question",
        [
            ("日期", "2020年3月4日", "日期是什么？"),
            ("Дата:", "04.12.1987", "Какая дата?"),
            ("تاريخ", "1987", "ما هو تاريخ"),
            ("Datum:", "04.12.1987", "Welches Datum?"),
            ("Número:", "4711", "¿Cuál es el numero?"),
        ],
    )
    def test_any_language(self, label, value, question):
        page = page_of((60, 100, label), (200, 100, value), (60, 500, "Lorem ipsum"), (60, 700, "dolor sit amet"))
        assert best(page, question) == value

    def test_a_page_without_words(self):
        page = Page((), (100, 100))
        assert answer_probability(page, "What is the date?").shape == (0,)
        assert answer_probability(page, "").shape == (0,)
        assert not words_map(page, "What is the date?", (4, 5)).any()

    def test_wrong_types_are_named(self):
        with pytest.raises(TypeError, match="answer_probability: page and question"):
            answer_probability(FORM, None)
        with pytest.raises(TypeError, match="answer_probability: page and question"):
            answer_probability("page", "question")


class TestMap:
    def test_sums_to_the_probabilities_and_peaks_at_the_answer(self):
        values = words_map(FORM, "What is the delivery date?", (69, 54))
        assert values.shape == (69, 54) and values.dtype.is_floating_point
        assert float(values.sum()) == pytest.approx(float(answer_probability(FORM, "What is the delivery date?").sum()))
        row, column = divmod(int(values.argmax()), 54)
        x, y = (column + 0.5) * 850 / 54, (row + 0.5) * 1100 / 69
        assert 240 < x < 375 and 190 < y < 230

    @pytest.mark.parametrize("cells", [(1, 1), (2, 3), (500, 700)])
    def test_any_cells(self, cells):
        values = words_map(FORM, "vendor", cells)
        assert values.shape == cells and 0 < float(values.sum()) <= 1 + 1e-5

    def test_a_words_cells_all_have_its_value(self):
        page = Page((Word("lone", (32, 32, 96, 48), 0, 1.0),), (160, 160))
        values = spread(page, np.array([0.5]), (10, 10)).numpy()
        rows, columns = np.nonzero(values)
        assert (rows.min(), rows.max(), columns.min(), columns.max()) == (1, 3, 1, 6)
        assert np.allclose(values[values > 0], 0.5 / (3 * 6))

    def test_cells_are_checked(self):
        with pytest.raises(ValueError, match="spread"):
            words_map(FORM, "vendor", (0, 3))

    def test_overlaps(self):
        found = overlaps(np.array([-1.0, 2.5]), np.array([1.0, 9.0]), 4, 8.0)
        assert found.tolist() == [[1, 0, 0, 0], [0, 1.5, 2, 2]]


def test_weights_for_other_clues_are_refused():
    record = {"names": ["other"], "mean": [], "scale": [], "members": [], "sharpness": 1}
    with pytest.raises(ValueError, match=r"WordRanker"):
        WordRanker(json.dumps(record))


def test_weights_fit_the_clues():
    trained = load_word_ranker()
    for member in trained.members:
        width = len(member["inner_bias"])
        assert member["inner"].shape == (len(FEATURE_NAMES), width) and member["outer"].shape == (5 * width, width)
