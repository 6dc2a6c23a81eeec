"""Boxes with scores → an Allocation with one slot per token of the budget."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops import Footprints
from texturevlm.types import COLUMNS, Allocation

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
Boxes = list[tuple[Box, float]]  # with scores, best first
ROUNDING = 1.001  # a footprint this much wider than its pixels is not worth cutting


def allocation_of(
    images: Sequence[Boxes], size: tuple[int, int], *, budget: int, patch: int, device: torch.device
) -> Allocation:
    """images: per image, at most `budget` boxes with their scores."""
    boxes = torch.zeros(len(images), budget, 4, dtype=torch.float64)
    score, valid = torch.zeros(len(images), budget), torch.zeros(len(images), budget, dtype=torch.bool)
    boxes[..., 2:] = patch  # an unused slot is a patch at the corner
    for index, found in enumerate(images):
        assert len(found) <= budget
        if found:
            boxes[index, : len(found)] = torch.tensor([box for box, _ in found], dtype=torch.float64)
            score[index, : len(found)] = torch.tensor([one for _, one in found])
            valid[index, : len(found)] = True
    return replace(Allocation.of_boxes(boxes, size, patch, score), valid=valid).to(device)


def allocation_of_tokens(tokens: Footprints, size: tuple[int, int], patch: int) -> Allocation:
    """What a kernel chose for a batch."""
    source = torch.zeros(tokens.valid.shape, dtype=torch.int64, device=tokens.valid.device)
    return Allocation(*tokens, source=source, size=size, patch=patch)


def either(choice: Tensor, yes: Allocation, no: Allocation) -> Allocation:
    """Per image, one of two allocations; choice: (B,) bool. Waits for nothing on a GPU."""
    columns: Any = {}
    for name in COLUMNS:
        first, second = getattr(yes, name), getattr(no, name)
        columns[name] = torch.where(choice.view(-1, *[1] * (first.dim() - 1)), first, second)
    return replace(no, **columns)


def use_all(found: Boxes, *, budget: int, patch: float) -> Boxes:
    """Cut the best box in two until there are `budget` boxes, or none is coarser than the image's pixels.

    The width is halved unless a box is much taller, because text stays legible when samples are narrower than tall.
    """
    heap = [(-score, number, box) for number, (box, score) in enumerate(found)]
    heapq.heapify(heap)
    done: list[tuple[float, int, Box]] = []
    number = len(heap)
    while heap and len(done) + len(heap) < budget:
        best = heapq.heappop(heap)
        score, _, (x0, y0, x1, y1) = best
        wide, tall = x1 - x0, y1 - y0
        if max(wide, tall) <= patch * ROUNDING:
            done.append(best)
            continue
        if wide * 1.5 >= tall and wide > patch * ROUNDING:
            part = max(wide / 2, patch)  # no finer than the pixels: the two parts may overlap
            parts: list[Box] = [(x0, y0, x0 + part, y1), (x1 - part, y0, x1, y1)]
        else:
            part = max(tall / 2, patch)
            parts = [(x0, y0, x1, y0 + part), (x0, y1 - part, x1, y1)]
        for box in parts:
            heapq.heappush(heap, (score / 2, number, box))
            number += 1
    return [(box, -score) for score, _, box in sorted([*done, *heap])]
