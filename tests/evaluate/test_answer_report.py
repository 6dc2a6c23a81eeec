"""The table of answers and its decision rule, from rows that were made up."""

import pytest

from texturevlm_lab.evaluate.answer_report import answer_lines, answers_page, decision
from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import BLANK, CHOSEN, FULL, OWN, Condition

PAGES = 40
QUESTIONS = [(str(number), f"{number // 2}.png") for number in range(2 * PAGES)]  # two about each page


def rows(path, scores, *, metric="anls"):
    """A file of answers: condition → (score of each question, visual tokens)."""
    found = AnswerRows.open(path / "answers.jsonl", {"data set": "docvqa", "metric": metric, "timed": 5}, QUESTIONS)
    for condition, (given, tokens) in scores.items():
        costs = {0: (10.0, 5.0), 1: (30.0, 7.0)}
        made = {n: AnswerRow(score, -1.0, tokens, score > 0, *costs.get(n, ())) for n, score in enumerate(given)}
        found.add(condition, made)
    return AnswerRows.read(path / "answers.jsonl")


def share(right):
    """Scores of which so many of ten pages are right, with both of their questions."""
    return [float(number // 2 % 10 < right) for number in range(2 * PAGES)]


def test_a_run_that_was_not_timed_says_so(tmp_path):
    found = rows(tmp_path, {Condition(FULL): (share(8), 1000)})
    assert "those of the first 5 questions" in answers_page(found)
    found.settings["timed"] = 0
    text = answers_page(found)
    assert "Time and memory were not measured." in text and "first 0" not in text


SCOUT, NONE = (("auto", relevance) for relevance in ("scout", "none"))


def test_scores_differences_and_costs(tmp_path):
    found = rows(tmp_path, {Condition(FULL): (share(8), 1000), Condition(OWN, budget=64): (share(5), 60)})
    lines = answer_lines(found)
    full, own = lines[Condition(FULL)], lines[Condition(OWN, budget=64)]
    assert full.score.mean == pytest.approx(0.8) and full.score.low < 0.7 and full.score.high > 0.88
    assert own.to_full.mean == pytest.approx(-0.3) and own.to_full.high < -0.1
    assert full.to_full is None and own.to_resize is None
    assert (full.ms, full.mb, full.tokens, full.questions) == (20.0, 7.0, 1000, 80)


def test_intervals_resample_pages_not_questions(tmp_path):
    """Both questions of a page are alike here, so there are half as many independent ones."""
    together = answer_lines(rows(tmp_path, {Condition(FULL): (share(5), 1)}))[Condition(FULL)].score
    (tmp_path / "b").mkdir()
    apart = [float(number % 2) for number in range(2 * PAGES)]  # each page has a right and a wrong one
    even = answer_lines(rows(tmp_path / "b", {Condition(FULL): (apart, 1)}))[Condition(FULL)].score
    assert even.low == even.high == 0.5 and together.high - together.low > 0.25
    (tmp_path / "c").mkdir()
    both = {Condition(FULL): (share(0), 1), Condition(CHOSEN, *SCOUT, 4): (apart, 1)}
    gain = answer_lines(rows(tmp_path / "c", both))[Condition(CHOSEN, *SCOUT, 4)].to_full
    assert gain.low == gain.high == 0.5


def test_the_decision_rule(tmp_path):
    found = rows(
        tmp_path,
        {
            Condition(FULL): (share(8), 1000),
            Condition(OWN, budget=32): (share(2), 30),
            Condition(OWN, budget=64): (share(5), 60),
            Condition(CHOSEN, *SCOUT, 32): (share(7), 32),
            Condition(CHOSEN, *SCOUT, 64): (share(8), 64),
            Condition(CHOSEN, *NONE, 32): (share(2), 32),
            Condition(CHOSEN, *NONE, 64): (share(4), 64),
        },
    )
    assert decision(answer_lines(found)) == [
        "resized by the model's own processor (max_pixels): at no budget within 2 points of full resolution; "
        "it is what others are compared with.",
        "auto, scout: within 2 points of full resolution at 6.4% of its tokens (64); "
        "wins over resize by more than the interval at 32, 64.",
        "auto, none: at no budget within 2 points of full resolution; "
        "loses to resize by more than the interval at 64, "
        "does not differ from resize by more than the interval at 32.",
    ]


def test_near_full_resolution_without_being_sure(tmp_path):
    """One page lost and one won: the mean is the same, the interval reaches 5 points down."""
    moved = share(8)
    moved[0:2], moved[16:18] = moved[16:18], moved[0:2]
    found = rows(tmp_path, {Condition(FULL): (share(8), 100), Condition(CHOSEN, *SCOUT, 20): (moved, 20)})
    (line,) = decision(answer_lines(found))
    assert "at 20.0% of its tokens (20), though the interval reaches further down" in line


def test_a_gain_within_the_interval_is_no_win(tmp_path):
    better = share(5)
    better[10:12], better[0:2] = [1.0, 1.0], [0.0, 1.0]  # one page won, half of one lost
    found = rows(tmp_path, {Condition(OWN, budget=64): (share(5), 60), Condition(CHOSEN, *SCOUT, 64): (better, 64)})
    assert answer_lines(found)[Condition(CHOSEN, *SCOUT, 64)].to_resize.mean > 0
    assert decision(answer_lines(found))[1].endswith("; does not differ from resize by more than the interval at 64.")


def test_our_resize_is_the_rival_where_the_model_has_none(tmp_path):
    resize, auto, blank = (
        Condition(CHOSEN, "resize", "none", 64),
        Condition(CHOSEN, *SCOUT, 64),
        Condition(BLANK, budget=64),
    )
    lines = answer_lines(rows(tmp_path, {resize: (share(3), 60), auto: (share(6), 64), blank: (share(0), 60)}))
    assert lines[auto].to_resize.mean == pytest.approx(0.3)
    assert lines[resize].to_resize is None and lines[blank].to_resize is None
    assert decision(lines)[1].startswith("auto, scout: full resolution was not measured; wins over resize")


def test_without_resize_nothing_is_said_to_be_what_others_are_compared_with(tmp_path):
    (line,) = decision(answer_lines(rows(tmp_path, {Condition(CHOSEN, *SCOUT, 64): (share(6), 64)})))
    assert line.endswith("; resize was not measured.")


def test_only_questions_that_both_answered_are_compared(tmp_path):
    found = rows(tmp_path, {Condition(FULL): (share(8), 9), Condition(CHOSEN, *SCOUT, 4): (share(8)[:20], 4)})
    line = answer_lines(found)[Condition(CHOSEN, *SCOUT, 4)]
    assert line.questions == 20 and line.to_full.mean == 0


def test_field_f1_of_receipts(tmp_path):
    """Of 80 fields 40 were answered, all right: precision 1, recall .5."""
    found = rows(tmp_path, {Condition(FULL): (share(5), 9)}, metric="exact_match")
    assert answer_lines(found)[Condition(FULL)].field_f1 == pytest.approx(2 / 3)
    page = answers_page(found)
    assert "| field F1 |" in page and "| 0.667 |" in page
    assert "80 questions about 40 pages, scored by exact_match" in page
