"""Turned pages: what is cut out for OCR is the answer's line, whichever way the page lies."""

import json

import pytest
import torch
from PIL import Image

from tests.evaluate.folders import write_folder, write_page, write_rows
from tests.evaluate.test_run import Ink
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import turned
from texturevlm_lab.train.pages import HELD_OUT, SETS

KEYS = (f"0/{turned.FOLLOWED}", f"0/{turned.MOVED}", f"90/{turned.FOLLOWED}", f"90/{turned.LEFT}")


def write_sets(folder):
    for name in SETS:
        write_folder(folder / name, pages=2 * HELD_OUT if name == turned.MAIN_SET else 1)
        rows = [json.loads(line) for line in (folder / name / "questions.jsonl").read_text().splitlines()]
        write_rows(folder / name, [row | {"split": "train", "document": row["image"]} for row in rows])
    return folder


@pytest.fixture
def question(tmp_path):
    write_page(tmp_path / "page.png", {"Invoice": (20, 20), "Total": (20, 100), "1975": (150, 100)})
    with Image.open(tmp_path / "page.png") as page:
        size = page.height, page.width
    return Sample("1", tmp_path / "page.png", size, "What is the total?", ("1975",), ((150.0, 100.0, 190.0, 118.0),))


@pytest.mark.parametrize("angle", [90])
def test_the_answers_line_is_cut_out_of_a_turned_page(question, angle, monkeypatch):
    monkeypatch.setattr("texturevlm.placement.picture.find_turn_and_read", lambda texture: (float(angle), None))
    page = Image.open(question.image).convert("L")
    (turned_crop,), error = turned.delivered(
        turned.prepared(page, angle, turned.FOLLOWED), question, angle, turned.FOLLOWED
    )
    monkeypatch.setattr("texturevlm.placement.picture.find_turn_and_read", lambda texture: (0.0, None))
    (upright_crop,), _ = turned.delivered(turned.prepared(page, 0, turned.FOLLOWED), question, 0, turned.FOLLOWED)
    assert error == 0
    assert turned_crop.shape == upright_crop.shape
    difference = torch.from_numpy(turned_crop).float() - torch.from_numpy(upright_crop).float()
    assert difference.abs().mean() < 2
    # The control: turned back by the true angle.
    (left,), _ = turned.delivered(turned.prepared(page, angle, turned.LEFT), question, angle, turned.LEFT)
    assert left.shape == upright_crop.shape


def test_boxes_follow_the_page(question):
    (box,) = turned.boxes_after(question, (50.0, 60.0), 0.0)
    height, width = question.size
    assert box == pytest.approx((200 - width / 2, 160 - height / 2, 240 - width / 2, 178 - height / 2))
    x0, y0, x1, y1 = turned.boxes_after(question, (0.0, 0.0), 90.0)[0]
    assert (x1 - x0, y1 - y0) == pytest.approx((18, 40))


def test_the_study_from_end_to_end(tmp_path, monkeypatch):
    data = write_sets(tmp_path / "data")
    monkeypatch.setattr("texturevlm_lab.studies.study.open_engines", lambda names: {name: Ink() for name in names})
    monkeypatch.setattr(turned, "ANGLES", (90,))
    assert turned.main([str(data), "--out", str(tmp_path / "out"), "--ocr", "a", "--limit", "1"]) == 0
    record = json.loads((tmp_path / "out" / "turned.json").read_text())
    assert set(record["scores"]["a"]) == {*KEYS}
    assert len(set(record["pages"])) == 1 and "90°" in (tmp_path / "out" / "turned.md").read_text()
    first = record["pages"][0]
    assert turned.main([str(data), "--out", str(tmp_path / "out"), "--ocr", "a", "--limit", "1", "--skip", "1"]) == 0
    assert json.loads((tmp_path / "out" / "turned.json").read_text())["pages"][0] != first
    assert turned.main([str(data), "--out", str(tmp_path / "out"), "--ocr", "a", "--skip", "999"]) == 2


def test_a_page_that_was_turned_back_is_the_page(question):
    page = Image.open(question.image).convert("L")
    back = turned.turned_and_back(page, 15)
    assert back.size == page.size
    apart = torch.frombuffer(bytearray(back.tobytes()), dtype=torch.uint8).float()
    apart = apart - torch.frombuffer(bytearray(page.tobytes()), dtype=torch.uint8).float()
    assert apart.abs().mean() < 2 and apart.abs().max() > 2


def test_a_page_is_moved_by_half_a_pixel():
    page = Image.new("L", (40, 30), 0)
    page.paste(255, (10, 10, 20, 20))
    moved = torch.frombuffer(bytearray(turned.moved_page(page).tobytes()), dtype=torch.uint8).view(30, 40).float()
    total = moved.sum()
    middle = (
        (moved.sum(0) * (torch.arange(40) + 0.5)).sum() / total,
        (moved.sum(1) * (torch.arange(30) + 0.5)).sum() / total,
    )
    assert [float(one) for one in middle] == pytest.approx([15.5, 15.5], abs=0.02)


def test_pages_at_full_resolution(tmp_path, monkeypatch):
    data = write_sets(tmp_path / "data")
    write_folder(data / turned.FULL_SET, pages=2)
    monkeypatch.setattr("texturevlm_lab.studies.study.open_engines", lambda names: {name: Ink() for name in names})
    monkeypatch.setattr(turned, "ANGLES", (45,))
    monkeypatch.setattr(turned, "CONTROLLED", ())
    given = [str(data), "--out", str(tmp_path), "--ocr", "a", "--limit", "1", "--split", "eval"]
    assert turned.main(given) == 0
    record = json.loads((tmp_path / "turned.json").read_text())
    assert set(record["scores"]["a"]) == {f"45/{turned.BACK}", *(key.replace("90", "45") for key in KEYS[:3])}
    assert "at full resolution" in (tmp_path / "turned.md").read_text()
