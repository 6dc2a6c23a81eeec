"""The studies of the channel scorer, on small folders: what is counted, and what the tables say."""

import json

import pytest
import torch
from PIL import Image

from tests.evaluate.folders import write_page, write_rows
from texturevlm.relevance.ocr import Page, Word
from texturevlm_lab.studies import channel_relevance
from texturevlm_lab.train.channel_task import is_held_out


@pytest.fixture
def data(tmp_path):
    """Two pages, charts and photographs, in the splits of the real data."""
    folders = {name: tmp_path / name for name in ("docvqa", "docvqa_half", "chartqa", "coco")}
    for name, folder in folders.items():
        rows = []
        for number in range(14):
            image = f"images/{number}.png"
            row = {"id": number, "image": image, "size": [160, 240], "split": "eval" if name == "docvqa" else "train"}
            if name == "coco":
                (folder / "images").mkdir(parents=True, exist_ok=True)
                torch.manual_seed(number)
                pixels = (torch.rand(160, 240, 3) * 255).byte().numpy()
                Image.fromarray(pixels).save(folder / image)
                found = {"cls": 1, "name": "cat", "boxes": [[40, 40, 150, 120]]}
                row["split"] = ("train", "eval")[number % 2]
            else:
                boxes = write_page(folder / image, {"alpha": (20, 30), "1975": (120, 110)})
                known = [] if name == "chartqa" else [boxes["1975"]]
                found = {"question": "When?", "answers": ["1975"], "boxes": known}
            rows.append({**row, **found})
        write_rows(folder, rows)
    return tmp_path


@pytest.fixture(autouse=True)
def words(monkeypatch):
    """What OCR would read on the charts."""
    page = Page((Word("1975", (120, 110, 160, 126), 0, 1.0),), (160, 240))
    for module in ("texturevlm_lab.studies.channel_relevance", "texturevlm_lab.train.channel_task"):
        monkeypatch.setattr(f"{module}.load_page", lambda path, cache: page)


def test_pages_charts_and_photographs_are_compared_with_salience(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = [str(data), "--words", str(data), "--out", str(out), "--limit", "2"]
    assert channel_relevance.main(command) == 0
    record = json.loads((out / "channel-relevance.json").read_text())
    kinds = [name for name in record if "(" in name]
    assert [name.split()[0] for name in kinds] == ["pages", "charts", "photographs"]
    for kind in kinds:
        assert record[kind]["images"] >= 1 and record[kind]["scores"]["salience"]["gain"][0] == 0
    assert "difference to salience" in (out / "channel-relevance.md").read_text()
    charts = channel_relevance.charts_of(data / "chartqa", data, None)
    assert charts and all(map(is_held_out, charts)) and len(charts) < 14
