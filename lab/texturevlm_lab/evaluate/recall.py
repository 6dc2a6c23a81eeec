"""Recall: the share of an answer's box that is delivered at a scale at which its text is legible.

Cheaper than legibility, and needs no OCR engine: what counts is the height of the text in token pixels. The height that
is needed was measured with OCR (`python -m texturevlm_lab.studies.readable_height`, results/readable-height.md).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.allocate.value import COARSER_ACROSS
from texturevlm.rebuilding import PixelBox
from texturevlm.types import Allocation
from texturevlm_lab.evaluate.legibility import MOST_BOXES

LEGIBLE_HEIGHT = 6.0  # token pixels: from this height of a line on, both OCR engines reach 80% of their ceiling
_LETTER = 0.5  # width of a letter, with its share of the spaces, over the height of its line
_SLACK = 0.25  # a box counts as two lines if its letters would fill 1.75


def recall(scales: Sequence[Tensor], boxes: Sequence[Box], answers: Sequence[str]) -> float:
    """The legible share of the box, best over boxes.

    scales: for each of the first boxes, (h, w): image pixels per token pixel at each of its pixels (`box_scale`)
    """
    shares = [
        float((scale * LEGIBLE_HEIGHT <= line_height(box, answers)).float().mean())
        for scale, box in zip(scales, boxes[:MOST_BOXES])
    ]
    return max(shares, default=0.0)


def line_height(box: Box, answers: Sequence[str]) -> float:
    """Height of the text in a box, in image pixels: the box's height, unless its answer needs several lines to fit."""
    width, height = box[2] - box[0], box[3] - box[1]
    letters = min((len(answer) for answer in answers), default=1)
    lines = math.floor(math.sqrt(_LETTER * height * letters / width) + _SLACK)
    return height / max(1, lines)


def box_scale(allocation: Allocation, box: PixelBox) -> Tensor:
    """(h, w): image pixels per token pixel of the topmost (smallest) token of the first image at each pixel; infinite
    without one."""
    left, top, right, bottom = box
    scales = torch.full((bottom - top, right - left), math.inf)
    first, last = allocation.pixel_span()
    first, last = first[0].maximum(torch.tensor([left, top])), last[0].minimum(torch.tensor([right, bottom]))
    touched = (allocation.valid[0].cpu() & (first < last).all(-1)).nonzero()[:, 0].tolist()
    area, step, upright = (part[0].cpu() for part in (allocation.area, reading_step(allocation), allocation.upright))
    for slot in sorted(touched, key=lambda slot: -area[slot].item()):
        (x0, y0), (x1, y1) = first[slot].tolist(), last[slot].tolist()
        part = scales[y0 - top : y1 - top, x0 - left : x1 - left]
        inside = True if upright[slot] else allocation.local(0, slot, x0, y0, part.shape)[2]
        part.copy_(torch.where(torch.as_tensor(inside), step[slot], part))
    return scales


def reading_step(allocation: Allocation) -> Tensor:
    """(B, K): image pixels per token pixel, as they count for reading.

    The side of a square of the same area; more where a token is coarser across than down, which harms text more.
    """
    side = allocation.area.sqrt() / allocation.patch
    across = torch.hypot(allocation.ddx[..., 0], allocation.ddy[..., 0])
    down = torch.hypot(allocation.ddx[..., 1], allocation.ddy[..., 1])
    return side * (across / down.clamp(min=1e-6)).clamp(min=1) ** COARSER_ACROSS


def resize_scale(size: tuple[int, int], budget: int, patch: int) -> float:
    """Image pixels per token pixel of the ideal resize."""
    return max(1.0, math.sqrt(size[0] * size[1] / (budget * patch**2)))
