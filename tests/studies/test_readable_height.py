"""The measurement that the threshold of recall comes from."""

import json
import math
from pathlib import Path

import pytest
import torch

from studies import readable_height as readable
from tests.evaluate.folders import write_folder
from texturevlm.allocate.value import COARSER_ACROSS
from texturevlm.evaluate.recall import LEGIBLE_HEIGHT
from texturevlm.rebuilding import resized
from texturevlm.types import Texture


def test_shrinking_both_ways_is_a_resize():
    image = torch.rand(1, 1, 96, 64)
    got = readable.shrunk(image[0], (10, 20, 50, 70), 2, 2)
    wanted = resized(Texture.open(image), budget=24, patch=8)[0, :, 20:70, 10:50]
    assert torch.allclose(got, wanted, atol=1e-6)
    assert torch.equal(readable.shrunk(image[0], (10, 20, 50, 70), 0, 1), image[0, :, 20:70, 10:50])
    across = readable.shrunk(image[0], (0, 0, 64, 96), 4, 1)
    assert torch.allclose(across.mean(2), image[0].mean(2), atol=0.02) and (across - image[0]).abs().max() > 0.1


def test_nothing_is_tried_that_would_enlarge_an_axis():
    assert readable.trials(4) == [readable.FULL, (4.0, 1.0)]
    assert all(10 / height >= max(ratio, 1 / ratio) ** 0.5 for height, ratio in readable.trials(10)[1:])
    assert (5.0, 2) in readable.trials(10) and (8.0, 2) not in readable.trials(10)


def test_where_a_curve_stays_above():
    curve = [(4, 0.2), (6, 0.6), (8, 0.5), (10, 0.9), (12, 1.0)]
    assert readable.reached(curve, 0.7) == 9
    assert readable.reached(curve, 0.1) == 4
    assert readable.reached(curve, 1.1) == math.inf


def test_the_exponent_of_stretching_is_found_again():
    curve = [(height, height / 12) for height in range(3, 13)]
    rows = [
        {"ratio": ratio, "height": height, "legibility": height / ratio**0.3 / 12}
        for ratio in (1.5, 2)
        for height in (5, 6, 7)
    ]
    assert readable.across_exponent(curve, rows) == pytest.approx(0.3, abs=0.01)


class Contrast:
    """Reads `beta0` and the like where a crop still has dark pixels."""

    name = "contrast"

    def read(self, crops):
        return ["alpha0 beta0 alpha1 beta1" if crop.min() < 90 else "" for crop in crops]


def test_the_command_writes_table_and_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(readable, "open_ocr", lambda name: Contrast())
    folder = write_folder(tmp_path / "data")
    assert readable.main([str(folder), "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "readable-height.json").read_text())
    assert record["places"] == 4 and record["ocr"] == "contrast" and record["ceiling"] == 1
    scores = [row["legibility"] for row in record["heights"]]
    assert scores == sorted(scores) and scores[0] < 1
    text = (tmp_path / "out" / "readable-height.md").read_text()
    assert "| 6 |" in text and "r = 2/3" in text and text.strip() in capsys.readouterr().out


def test_the_committed_threshold_is_the_measured_one():
    """LEGIBLE_HEIGHT and COARSER_ACROSS are what results/readable-height.json says, rounded."""
    path = Path(__file__).parents[2] / "results" / "readable-height.json"
    record = json.loads(path.read_text())
    assert pytest.approx(record["reached"]["0.8"], abs=0.05) == LEGIBLE_HEIGHT
    assert pytest.approx(record["across"], abs=0.05) == COARSER_ACROSS
