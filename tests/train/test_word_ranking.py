"""The word ranker learns, on pages whose words are already read, that the answer follows its label."""

import json

import pytest

from tests.test_cli import status
from texturevlm.relevance.ocr import Page, Word
from texturevlm_lab.train import word_ranking
from texturevlm_lab.train.word_ranking import QUESTION_WEIGHTS, answer_places, commonness

LABELS = {"Total": "940.00", "Date": "3/5/98", "Phone": "5550199"}


def page():
    words = []
    for line, (label, value) in enumerate(LABELS.items()):
        y = 20.0 + 40 * line
        words += [Word(label, (10, y, 80, y + 20), line, 0.9), Word(value, (100, y, 180, y + 20), line, 0.9)]
    return Page(tuple(words), (200, 300))


@pytest.fixture
def data(tmp_path):
    for name in QUESTION_WEIGHTS:
        (tmp_path / "words" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "images").mkdir(parents=True)
        rows = []
        for number in range(5):
            image = f"images/{number}.png"
            (tmp_path / "data" / name / image).touch()
            (tmp_path / "words" / name / f"{number}.png.json").write_text(page().to_json())
            row = {"image": image, "size": [400, 600], "split": "eval" if number == 4 else "train"}
            for line, label in enumerate(LABELS):
                box = [200, 40 + 80 * line, 360, 80 + 80 * line]  # of an image twice as large as the page
                rows.append({**row, "question": f"What is the {label.lower()}?", "boxes": [box]})
        (tmp_path / "data" / name / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_places_of_an_answer():
    boxes = [[200, 40, 360, 80], [200, 120, 360, 160], [0, 380, 10, 400]]
    assert [place.tolist() for place in answer_places(page(), boxes, (400, 600), together=False)] == [[1], [3]]
    assert [place.tolist() for place in answer_places(page(), boxes, (400, 600), together=True)] == [[1, 3]]


def test_commonness():
    rows = [{"question": "What is the total?"}] * 9 + [{"question": "Who signed?"}]
    assert commonness(rows) == dict.fromkeys(("is", "the", "total", "what"), 0.954)


def test_the_command_fits_and_writes_weights(data, monkeypatch, capsys):
    monkeypatch.setattr(word_ranking, "MEMBERS", 1)
    monkeypatch.setattr(word_ranking, "FOLDS", 2)
    monkeypatch.setattr(word_ranking, "EPOCHS", 30)
    command = ["fit-words", str(data / "data"), "--words", str(data / "words"), "--out", str(data / "own.json")]
    assert status(*command) == 0
    record = json.loads((data / "own.json").read_text())
    assert record["trained"]["questions"] == 24 and len(record["members"]) == 1
    assert record["trained"]["held_out_loss"] < 0.8  # log 6 by chance, with all words of one size
    assert (
        status(*command, "--limit", "0") == 2
        and "--limit: must be a whole number from 1, got '0'" in capsys.readouterr().err
    )
