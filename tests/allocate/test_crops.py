"""Crops: every part is an ordinary grid, and together they use the budget."""

import pytest
import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.allocate.crops import _shapes, crops


def grids(allocation) -> list[tuple[int, int]]:
    """The allocation's tokens, in their order, as rows and columns of grids; fails where they are none."""
    boxes, found = allocation.boxes[0][allocation.valid[0]].double(), []
    while len(boxes):
        size = boxes[0, 2:] - boxes[0, :2]
        place = (boxes[:, :2] - boxes[0, :2]) / size
        same = ((boxes[:, 2:] - boxes[:, :2] - size).abs() < 1e-2).all(1) & ((place - place.round()).abs() < 1e-2).all(
            1
        )
        row = 1
        while row < len(boxes) and same[row] and torch.equal(place[row].round(), torch.tensor([row, 0]).double()):
            row += 1
        rows = 1
        while (rows + 1) * row <= len(boxes):
            part = slice(rows * row, (rows + 1) * row)
            wanted = torch.stack([torch.arange(row), torch.full((row,), rows)], 1).double()
            if not same[part].all() or not torch.equal(place[part].round(), wanted):
                break
            rows += 1
        found.append((rows, row))
        boxes = boxes[rows * row :]
    return found


@pytest.mark.parametrize("budget", [5, 31, 64, 97, 150])
def test_an_overview_and_a_few_grids(budget):
    allocation = crops(photo(), relevance_at((20, 30)), budget=budget, patch=16)
    parts = grids(allocation)
    assert 1 <= len(parts) <= 5
    assert sum(rows * columns for rows, columns in parts) == budget
    overview = allocation.boxes[0, : parts[0][0] * parts[0][1]]
    assert torch.allclose(overview.amin(0)[:2], torch.zeros(2)) and overview[:, 2:].amax(0).tolist() == [480, 640]


def test_more_crops_where_there_are_more_places():
    one, two = relevance_at((20, 30)), relevance_at((8, 12), (70, 48))
    both = two.mass.mean(0, keepdim=True)
    two = type(two)(both, two.legible_scale[:1], two.ink[:1], two.size)
    counts = [len(grids(crops(photo(), relevance, budget=40, patch=16, overview=0.1))) for relevance in (one, two)]
    assert counts[1] > 2 and counts[0] <= counts[1]


def test_an_image_that_is_small_enough_is_shown_once():
    allocation = crops(photo((64, 48)), relevance_at(size=(64, 48), cell=4), budget=100, patch=16)
    assert allocation.valid.sum() == 12 and allocation.coverage.item() == 1


MANY = (99, 99)


def test_shapes_use_all_tokens_and_are_not_too_long():
    assert _shapes(12, True, MANY) == [(2, 6), (3, 4), (4, 3), (6, 2)]
    assert _shapes(13, True, MANY) == [(1, 13), (13, 1)]  # a prime has no other
    assert _shapes(12, True, (3, 99)) == [(2, 6), (3, 4)]
    assert all(0.85 * 50 <= rows * columns <= 50 for rows, columns in _shapes(50, False, MANY))
