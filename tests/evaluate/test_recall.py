"""Recall: how finely a box is delivered."""

import math

import pytest
import torch

from texturevlm import Allocation
from texturevlm.allocate.value import COARSER_ACROSS
from texturevlm_lab.evaluate.recall import (
    LEGIBLE_HEIGHT,
    box_scale,
    line_height,
    reading_step,
    recall,
    resize_scale,
)


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
    assert tall == square == 2 and wide == pytest.approx(2 * 4**COARSER_ACROSS)


def test_recall_is_the_best_share_over_places():
    text = (0.0, 0.0, 40.0, 10.0)
    fine, coarse = torch.full((10, 40), 10 / LEGIBLE_HEIGHT - 0.01), torch.full((10, 40), 10 / LEGIBLE_HEIGHT + 0.01)
    half = torch.cat([fine[:, :20], coarse[:, 20:]], 1)
    assert recall([coarse], [text], ["abcd"]) == 0 and recall([fine], [text], ["abcd"]) == 1
    assert recall([coarse, half], [text, text], ["abcd"]) == 0.5 and recall([], [], ["abcd"]) == 0


def test_a_box_of_several_lines():
    assert line_height((0, 0, 100, 20), ["twelve chars"]) == 20
    assert line_height((0, 0, 100, 60), ["x" * 30]) == 20
    assert line_height((0, 0, 10, 60), ["7"]) == 60


def test_the_scale_of_a_resize():
    assert resize_scale((320, 320), 25, 32) == 2 and resize_scale((32, 32), 25, 32) == 1
