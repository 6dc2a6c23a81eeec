"""Lists of boxes → an Allocation of exactly the budget's shape: what every allocator ends with.

Tokens that are left over are not given back: the most relevant footprint that is coarser than the image's own pixels is
cut in two, across, again and again. (Text is read as well from samples that are finer across than down.)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import torch

from texturevlm.ops.select import Footprints
from texturevlm.types import Allocation

Box = tuple[float, float, float, float]
ROUNDING = 1.001  # a footprint this much wider than its pixels is not worth cutting


def allocation_of(
    images: Sequence[Sequence[tuple[Box, float]]],
    size: tuple[int, int],
    *,
    budget: int,
    patch: int,
    device: torch.device,
) -> Allocation:
    """images: for each, its boxes (xyxy in pixels) with their scores, at most `budget` of them, best first."""
    boxes = torch.zeros(len(images), budget, 4, dtype=torch.float64)
    score, valid = torch.zeros(len(images), budget), torch.zeros(len(images), budget, dtype=torch.bool)
    boxes[..., 2:] = patch  # an unused slot is some patch at the corner
    for index, found in enumerate(images):
        assert len(found) <= budget
        if found:
            boxes[index, : len(found)] = torch.tensor([box for box, _ in found], dtype=torch.float64)
            score[index, : len(found)] = torch.tensor([worth for _, worth in found])
            valid[index, : len(found)] = True
    return replace(Allocation.of_boxes(boxes, size, patch, score), valid=valid).to(device)


def allocation_of_tokens(tokens: Footprints, size: tuple[int, int], patch: int) -> Allocation:
    """What a kernel chose for each image, which is its own only source."""
    source = torch.zeros(tokens.valid.shape, dtype=torch.int64, device=tokens.valid.device)
    return Allocation(*tokens, source=source, size=size, patch=patch)


def use_all(found: Sequence[tuple[Box, float]], *, budget: int, patch: int) -> list[tuple[Box, float]]:
    """The same boxes, the best cut in two until there are `budget`, or none has detail left to give."""
    heap = [(-worth, number, box) for number, (box, worth) in enumerate(found)]
    heapq.heapify(heap)
    done: list[tuple[float, int, Box]] = []
    number = len(heap)
    while heap and len(done) + len(heap) < budget:
        best = heapq.heappop(heap)
        worth, _, (x0, y0, x1, y1) = best
        wide, tall = x1 - x0, y1 - y0
        if max(wide, tall) <= patch * ROUNDING:
            done.append(best)
            continue
        if wide * 1.5 >= tall and wide > patch * ROUNDING:
            part = max(wide / 2, patch)  # no finer than the pixels: two halves may overlap
            halves: list[Box] = [(x0, y0, x0 + part, y1), (x1 - part, y0, x1, y1)]
        else:
            part = max(tall / 2, patch)
            halves = [(x0, y0, x1, y0 + part), (x0, y1 - part, x1, y1)]
        for half in halves:
            heapq.heappush(heap, (worth / 2, number, half))
            number += 1
    return [(box, -worth) for worth, _, box in sorted([*done, *heap])]
