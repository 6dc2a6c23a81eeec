"""Fine tokens and objects."""

import dataclasses

import pytest
import torch

from texturevlm import Allocation
from texturevlm_lab.evaluate.objects import fine_tokens, on_objects, painted

SIZE = (40, 80)


def boxes(*rows):
    return Allocation.of_boxes(torch.tensor([rows], dtype=torch.float64), SIZE, 8)


def test_fine_is_under_the_median():
    allocation = boxes([0, 0, 8, 8], [0, 0, 16, 16], [0, 0, 24, 24], [0, 0, 32, 32])
    assert fine_tokens(allocation).tolist() == [True, True, False, False]
    unused = dataclasses.replace(allocation, valid=torch.tensor([[False, True, True, False]]))
    assert fine_tokens(unused).tolist() == [False, True, False, False]
    none = dataclasses.replace(allocation, valid=torch.zeros(1, 4, dtype=torch.bool))
    assert fine_tokens(none).tolist() == [False] * 4


def test_where_most_share_the_finest_level_those_are_fine():
    assert fine_tokens(boxes([0, 0, 8, 8], [8, 0, 16, 8], [16, 0, 24, 8], [0, 0, 32, 32])).tolist() == [True] * 3 + [
        False
    ]


def test_a_uniform_grid_prefers_nothing():
    found = on_objects(boxes([0, 0, 40, 40], [40, 0, 80, 40.0001]), [(0, 0, 20, 40)])
    assert found == {"fine_on_objects": 0.25, "object_area": 0.25, "object_iou": 0}


def test_tokens_on_an_object():
    allocation = boxes([0, 0, 8, 8], [8, 0, 16, 8], [60, 0, 68, 8], [0, 0, 40, 40], [40, 0, 80, 40], [40, 0, 80, 40])
    found = on_objects(allocation, [(0, 0, 16, 10), (4, 0, 20, 10)])
    assert found["fine_on_objects"] == pytest.approx(2 / 3)
    assert found["object_area"] == pytest.approx(200 / 3200)
    assert found["object_iou"] == pytest.approx(128 / (200 + 64))


def test_tokens_beyond_the_edge_count_at_the_edge():
    allocation = boxes([-20, -20, -12, -12], [90, 50, 98, 58], [0, 0, 40, 40], [0, 0, 40, 40])
    assert on_objects(allocation, [(0, 0, 2, 2)])["fine_on_objects"] == 0.5


def test_pixels_by_their_centres():
    assert painted([(0.4, 0.6, 2.5, 1.4)], (3, 4)).sum() == 0
    assert painted([(0.4, 0.4, 2.6, 1.6), (-5, -5, 1, 1)], (3, 4)).int().tolist() == [
        [1, 1, 1, 0],
        [1, 1, 1, 0],
        [0] * 4,
    ]
