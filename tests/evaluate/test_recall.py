"""Recall: how finely a box is delivered; and the measurement that its threshold comes from."""

import json
import math
from pathlib import Path

import pytest
import torch

from studies import readable_height as readable
from tests.evaluate.folders import write_folder
from texturevlm import Allocation
from texturevlm.evaluate.recall import (
    ACROSS,
    READABLE,
    box_scale,
    line_height,
    pixels,
    reading_step,
    recall,
    resize_scale,
)
from texturevlm.rebuilding import resized
from texturevlm.types import Texture


def boxes(*rows, size=(40, 60), patch=8):
    return Allocation.of_boxes(torch.tensor([rows], dtype=torch.float64), size, patch)


def test_the_topmost_token_decides_at_each_pixel():
    allocation = boxes([0, 0, 32, 32], [8, 8, 16, 16], [8, 8, 24, 24])
    scales = box_scale(allocation, (4, 4, 40, 20))
    assert scales.shape == (16, 36)
    wanted = torch.full((40, 60), math.inf)
    wanted[0:32, 0:32], wanted[8:24, 8:24], wanted[8:16, 8:16] = 4, 2, 1
    assert torch.equal(scales, wanted[4:20, 4:40])


def test_unused_and_turned_tokens():
    allocation = boxes([0, 0, 40, 40], [0, 0, 8, 8])
    used = Allocation(**{**vars(allocation), "valid": torch.tensor([[True, False]])})
    assert (box_scale(used, (0, 0, 8, 8)) == 5).all()
    turned = Allocation(
        **{**vars(used), "ddx": torch.tensor([[[2.0, 2.0]] * 2]), "ddy": torch.tensor([[[-2.0, 2.0]] * 2])}
    )
    scales = box_scale(turned, (0, 0, 60, 40))
    assert scales[20, 20] == pytest.approx(math.sqrt(8)) and scales[1, 1] == math.inf
    assert scales.isfinite().float().mean().item() == pytest.approx(turned.coverage.item(), abs=1e-3)


def test_wider_tokens_count_as_coarser_than_their_area_says():
    wide, tall, square = (reading_step(boxes(row)).item() for row in ([0, 0, 32, 8], [0, 0, 8, 32], [0, 0, 16, 16]))
    assert tall == square == 2 and wide == pytest.approx(2 * 4**ACROSS)


def test_recall_is_the_best_share_over_places():
    text = (0.0, 0.0, 40.0, 10.0)
    fine, coarse = torch.full((10, 40), 10 / READABLE - 0.01), torch.full((10, 40), 10 / READABLE + 0.01)
    half = torch.cat([fine[:, :20], coarse[:, 20:]], 1)
    assert recall([coarse], [text], ["abcd"]) == 0 and recall([fine], [text], ["abcd"]) == 1
    assert recall([coarse, half], [text, text], ["abcd"]) == 0.5 and recall([], [], ["abcd"]) == 0


def test_a_box_of_several_lines():
    assert line_height((0, 0, 100, 20), ["twelve chars"]) == 20
    assert line_height((0, 0, 100, 60), ["x" * 30]) == 20
    assert line_height((0, 0, 10, 60), ["7"]) == 60


def test_pixels_of_a_box_are_inside_and_never_none():
    assert pixels((1.2, 2.7, 5.1, 6.0), (40, 60)) == (1, 2, 6, 6)
    assert pixels((70, -5, 90, -2), (40, 60)) == (59, 0, 60, 1)


def test_the_scale_of_a_resize():
    assert resize_scale((320, 320), 25, 32) == 2 and resize_scale((32, 32), 25, 32) == 1


# ---- the measurement -----------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(readable, "open_reader", lambda name: Contrast())
    folder = write_folder(tmp_path / "data")
    assert readable.main([str(folder), "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "readable-height.json").read_text())
    assert record["places"] == 4 and record["reader"] == "contrast" and record["ceiling"] == 1
    scores = [row["legibility"] for row in record["heights"]]
    assert scores == sorted(scores) and scores[0] < 1
    text = (tmp_path / "out" / "readable-height.md").read_text()
    assert "| 6 |" in text and "r = 2/3" in text and text.strip() in capsys.readouterr().out


def test_the_committed_threshold_is_the_measured_one():
    """READABLE and ACROSS are what results/readable-height.json says, rounded."""
    path = Path(__file__).parents[2] / "results" / "readable-height.json"
    record = json.loads(path.read_text())
    assert pytest.approx(record["reached"]["0.8"], abs=0.05) == READABLE
    assert pytest.approx(record["across"], abs=0.05) == ACROSS
