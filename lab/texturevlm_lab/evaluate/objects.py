"""Do fine tokens fall on objects? For photographs with object boxes, where there is no answer to read.

A token is fine if its level lies under the median of its allocation. Two measures: the share of fine tokens whose
centre lies on an object, beside the objects' share of the area; and IoU of all fine footprints with all boxes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.types import Allocation

SAME_LEVEL = 1e-4  # levels closer than this are equal up to rounding


def fine_tokens(allocation: Allocation) -> Tensor:
    """(K,) bool: the valid tokens of the first image whose level lies under the median.

    Where more than half share the finest level, those; none where all have one level.
    """
    used, levels = allocation.valid[0].cpu(), allocation.level[0].cpu()
    if not used.any():
        return used
    chosen = levels[used]
    middle = chosen.quantile(0.5)
    fine = used & (levels < middle - SAME_LEVEL)
    if fine.any():
        return fine
    return used & (levels <= middle + SAME_LEVEL) & (levels < chosen.max() - SAME_LEVEL)


def on_objects(allocation: Allocation, boxes: Sequence[Sequence[float]]) -> dict[str, float]:
    """The share of fine tokens on an object, the objects' share of the image, and IoU; of the first image.

    An allocation without fine tokens is on objects as often as chance, and overlaps with nothing.
    """
    objects = painted(boxes, allocation.size)
    area = float(objects.float().mean())
    fine = fine_tokens(allocation)
    if not fine.any():
        return {"fine_on_objects": area, "object_area": area, "object_iou": 0.0}
    height, width = allocation.size
    x, y = allocation.centre[0].cpu()[fine].floor().long().unbind(-1)
    hits = objects[y.clamp(0, height - 1), x.clamp(0, width - 1)]
    covered = painted(allocation.boxes[0].cpu()[fine].tolist(), allocation.size)
    overlap, union = int((covered & objects).sum()), int((covered | objects).sum())
    iou = overlap / union if union else 0.0
    return {"fine_on_objects": float(hits.float().mean()), "object_area": area, "object_iou": iou}


def painted(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> Tensor:
    """(H, W) bool: the pixels whose centre lies in some box."""
    canvas = torch.zeros(size, dtype=torch.bool)
    for x0, y0, x1, y1 in boxes:
        top, left = (max(0, math.ceil(low - 0.5)) for low in (y0, x0))
        bottom, right = (max(0, math.ceil(high - 0.5)) for high in (y1, x1))
        canvas[top:bottom, left:right] = True
    return canvas
