"""Distractions lie where they should, and the table compares each with the clean page."""

import json
import random

import numpy as np
import pytest
from PIL import Image

from tests.evaluate.folders import write_folder
from texturevlm_lab.studies.adversarial import KINDS, PATCHES, SCORERS, SETS, WATERMARK, distracted, free_place, main


@pytest.mark.parametrize("kind", [*PATCHES, WATERMARK])
def test_a_distraction_leaves_the_answer(kind):
    page = Image.new("RGB", (200, 300), "white")
    page.paste("black", (40, 200, 90, 215))
    place = free_place(page.size, (40, 200, 90, 215), random.Random(3))
    found = distracted(page, kind, place, random.Random(3))
    before, after = np.asarray(page), np.asarray(found)
    assert after.shape == before.shape
    if kind == WATERMARK:  # under the print
        assert (after[200:215, 40:90] == 0).all()
    else:
        assert (after[200:215] == before[200:215]).all()
    assert 0.02 < (after != before).any(2).mean() < 0.6


def test_the_table_is_made(tmp_path, capsys):
    for name in SETS:
        write_folder(tmp_path / "data" / name, pages=2, split="train")
    assert main([str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--limit", "1"]) == 0
    rows = json.loads((tmp_path / "out" / "adversarial.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == 2 * list(KINDS)
    assert all(0 <= row[name][one] <= 1 for row in rows for name in SCORERS for one in ("legible", "drawn"))
    printed = capsys.readouterr().out
    assert "| scout | moiré |" in printed and all(f"## {name}, 1 page" in printed for name in SETS)
