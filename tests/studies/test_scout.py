"""The judge of the scout: shares of boxes by hand, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluate.folders import write_folder, write_rows
from texturevlm.relevance.ocr import Page, Word
from texturevlm.scout import encode
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import scout
from texturevlm_lab.studies.relevance import TOPS, found_within, of_another_page, shares_within
from texturevlm_lab.studies.study import evenly


def sample(*boxes, size=(100, 100)):
    return Sample("1", Path("page.png"), size, "Where?", boxes=boxes)


def marked(*cells):
    """10 × 10 cells, the first ones named the highest."""
    values = np.zeros((10, 10))
    for rank, cell in enumerate(cells):
        values[cell] = 100 - rank
    return values


# ---- shares of answers ---------------------------------------------------------------------------------------------


def test_shares_of_boxes_in_the_top_cells():
    top = [(0, column) for column in range(10)]  # the upper row, from left to right: 10% of the page
    shares = shares_within(marked(*top), [(0, 0, 20, 10), (60, 0, 80, 20), (0, 90, 10, 100)], (100, 100))
    assert shares.shape == (len(TOPS), 3)
    assert shares[0, :2].tolist() == [1, 0] and shares[1, :2].tolist() == [1, 0.5]
    assert (np.diff(shares, axis=0) >= 0).all()


def test_an_answer_is_one_of_its_boxes_or_all_of_them():
    top = [(0, column) for column in range(5)]
    asked = sample((0, 0, 20, 10), (0, 50, 60, 60))
    apart = scout.answer_shares(marked(*top), asked, together=False)
    joined = scout.answer_shares(marked(*top), asked, together=True)
    assert apart[0] == 1 and joined[0] == pytest.approx(0.25)


@pytest.mark.parametrize("share, found", [(9, True), (8, False)])
def test_nine_tenths_of_a_box_are_the_whole(share, found):
    cells = [(0, column) for column in range(share)]
    rest = [(9, column) for column in range(10 - share)]  # what else is in the top tenth
    assert found_within(marked(*cells, *rest), [(0, 0, 100, 10)], (100, 100))[1] is found


def test_the_oracle_has_everything_that_fits():
    asked = sample((3, 4, 27, 33), (41, 41, 44, 43))
    for together, boxes in ((False, [asked.boxes[1]]), (True, asked.boxes)):
        values = scout.answer_map(boxes, (10, 10), asked.size)
        assert values.sum() == pytest.approx(sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes))
        assert scout.answer_shares(values, asked, together=together)[2] == 1
    assert scout._enough(asked, False) == [(41, 41, 44, 43)] and scout._enough(asked, True) == asked.boxes


def test_the_question_of_another_page():
    one, two = sample(), Sample("2", Path("other.png"), (9, 9), "Who?")
    assert of_another_page([one, one, two], 0) is two and of_another_page([two, one], 1) is two
    assert of_another_page([one, one], 1) is one


def test_comparisons_are_paired():
    ours, blind = np.full((4, len(TOPS)), 0.95), np.full((4, len(TOPS)), 0.5)
    shares = {scout.SCOUT: ours, scout.BLIND: blind, scout.OTHER: blind, scout.WORDS: ours}
    found = scout._compared(shares, ["a", "a", "b", "c"])
    assert found["share"]["difference"][scout.WORDS][0] == [0, 0, 0]
    assert found["share"]["difference"][scout.BLIND][0] == pytest.approx([0.45] * 3)
    assert found["share"]["ratio"][0] == pytest.approx([1.9] * 3)
    assert found["whole"]["mean"][scout.SCOUT][0] == 1 and found["whole"]["ratio"][0] is None


def test_the_parts_of_a_question_are_all_of_it():
    question = encode(["What is the total amount?"])
    words, kind = scout.parts_of(question).values()
    assert torch.equal(words.letters, question.letters) and not words.asked.any() and question.asked.any()
    assert torch.equal(kind.asked, question.asked) and not kind.traits.any() and (kind.letters == -1).all()


def test_pages_evenly_spread():
    assert evenly(list("abcdef"), 3) == ["a", "c", "e"]
    assert evenly(list("ab"), 9) == evenly(list("ab"), None) == ["a", "b"]
    assert evenly([], 3) == []


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Two pages with two questions each, and the words of the pages, so that no engine need read them."""
    data = write_folder(tmp_path / "funsd")
    cache = tmp_path / "cache"
    cache.mkdir()
    words: dict[str, list[Word]] = {}
    for row in map(json.loads, (data / "questions.jsonl").read_text().splitlines()):
        line = words.setdefault(Path(row["image"]).name, [])
        line.append(Word(row["answers"][0], tuple(row["boxes"][0]), len(line), 1.0))
    for name, found in words.items():
        (cache / f"{name}.json").write_text(Page(tuple(found), (160, 240)).to_json())
    return data


def run(data: Path, *options: str) -> int:
    return scout.main([str(data), "--pages", str(data.parent / "cache"), "--out", str(data.parent / "out"), *options])


def test_the_command(folder):
    assert run(folder) == 0
    record = json.loads((folder.parent / "out" / "scout.json").read_text())
    assert record["questions"] == 4 and record["pages"] == 2 and record["together"] is True
    means = record["whole"]["mean"]
    assert list(means)[:3] == [scout.SCOUT, scout.BLIND, scout.OTHER] and len(means) == 11
    assert means["oracle"] == [1] * len(TOPS) and means[scout.WORDS][-1] == 1
    assert all(0 <= value <= 1 for values in record["share"]["mean"].values() for value in values)
    text = (folder.parent / "out" / "scout.md").read_text()
    assert "all of the answer's boxes together" in text


def test_what_is_wrong_is_told(folder, capsys):
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    write_rows(folder, [{**row, "boxes": []} for row in rows])
    assert run(folder) == 2 and "eval questions with boxes" in capsys.readouterr().err
