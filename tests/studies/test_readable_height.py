"""The measurement that the threshold of recall comes from."""

import json
import math
from pathlib import Path

import pytest
import torch

from tests.evaluate.folders import write_folder
from texturevlm.allocate.value import COARSER_ACROSS
from texturevlm.rebuilding import resized
from texturevlm.types import Texture
from texturevlm_lab.evaluate.recall import LEGIBLE_HEIGHT
from texturevlm_lab.studies import readable_height as readable


def test_shrinking_both_ways_is_a_resize():
    image = torch.rand(1, 1, 96, 64)
    got = readable.shrunk(image[0], (10, 20, 50, 70), 2, 2)
    wanted = resized(Texture.open(image), budget=24, patch=8)[0, :, 20:70, 10:50]
    assert torch.allclose(got, wanted, atol=1e-6)
    assert torch.equal(readable.shrunk(image[0], (10, 20, 50, 70), 0, 1), image[0, :, 20:70, 10:50])
    across = readable.shrunk(image[0], (0, 0, 64, 96), 4, 1)
    assert torch.allclose(across.mean(2), image[0].mean(2), atol=0.02) and (across - image[0]).abs().max() > 0.1


def test_nothing_is_tried_that_would_enlarge_an_axis():
    assert readable.trials(2) == [readable.FULL, (2.0, 1.0)]
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
        {"ratio": ratio, "height": height, "legibility": height / max(ratio, 1 / ratio) ** 0.3 / 12}
        for ratio in (0.25, 0.5, 1, 1.5, 2)
        for height in (5, 6, 7)
    ]
    assert readable.stretch_exponent(curve, rows, lambda ratio: ratio) == pytest.approx(0.3, abs=0.01)
    assert readable.stretch_exponent(curve, rows, lambda ratio: 1 / ratio) == pytest.approx(0.3, abs=0.01)


def test_the_curve_is_found_again():
    curve = [(height, 0.9 / (1 + (4.2 / height) ** 5.5)) for height in readable.HEIGHTS]
    assert readable.fitted_curve(curve, 0.9) == pytest.approx((4.2, 5.5), abs=0.03)


class Contrast:
    """Reads `beta0` and the like where a crop still has dark pixels."""

    name = "contrast"

    def read(self, crops):
        return ["alpha0 beta0 alpha1 beta1" if crop.min() < 90 else "" for crop in crops]


def test_the_command_writes_table_and_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("texturevlm_lab.studies.study.open_engines", lambda names: {name: Contrast() for name in names})
    folder = write_folder(tmp_path / "data")
    given = [str(folder), "--out", str(tmp_path / "out"), "--split", "eval", "--ocr", "a,b"]
    assert readable.main(given) == 0
    record = json.loads((tmp_path / "out" / "readable-height.json").read_text())
    assert record["ocr"] == {"a": "contrast", "b": "contrast"} and record["split"] == "eval"
    own = record["engines"]["b"]
    assert own["places"] == 4 and own["pages"] == 2 and own["ceiling"] == 1
    scores = [row["legibility"] for row in own["heights"]]
    assert scores == sorted(scores) and scores[0] < 1
    text = (tmp_path / "out" / "readable-height.md").read_text()
    assert "| 6 |" in text and "r = 2/3" in text and text.strip() in capsys.readouterr().out
    monkeypatch.setattr(Contrast, "read", lambda self, crops: [""] * len(crops))
    assert readable.main([*given[:-1], "a"]) == 2
    assert "DATA must hold answers that OCR reads, got none by a" in capsys.readouterr().err


def test_stretching_is_resampled_by_page():
    trials = {(5.0, ratio): float(ratio == 1) for ratio in readable.RATIOS} | {(5.0, 1.0): 1.0}
    places = [
        readable.Place("one", trials),
        readable.Place("one", trials),
        readable.Place("two", {**trials, (5.0, 2): 1}),
    ]
    row = next(row for row in readable.summary(places)["stretched"] if row["ratio"] == 2)
    assert row["difference"] == pytest.approx([-2 / 3, -1, 0])


def test_the_committed_constants_are_the_measured_ones():
    """What results/readable-height.json says, rounded; the constants serve both engines."""
    path = Path(__file__).parents[2] / "results" / "readable-height.json"
    engines = json.loads(path.read_text())["engines"]
    assert pytest.approx(engines["tesseract"]["reached"]["0.8"], abs=0.3) == LEGIBLE_HEIGHT
    across = [own["across"] for own in engines.values()]
    assert min(across) - 0.05 <= COARSER_ACROSS <= max(across) + 0.05
