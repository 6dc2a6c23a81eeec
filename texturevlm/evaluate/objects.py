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


def fine_tokens(allocation: Allocation, *, image: int = 0) -> Tensor:
    """(K,) bool: the valid tokens whose level lies under the median.

    Where more than half share the finest level, those; none where all have one level.
    """
    used = allocation.valid[image].cpu()
    levels = allocation.level[image].cpu()
    if not used.any():
        return used
    chosen = levels[used]
    middle = chosen.quantile(0.5)
    fine = used & (levels < middle - SAME_LEVEL)
    if fine.any():
        return fine
    return used & (levels <= middle + SAME_LEVEL) & (levels < chosen.max() - SAME_LEVEL)


def on_objects(allocation: Allocation, boxes: Sequence[Sequence[float]], *, image: int = 0) -> dict[str, float]:
    """The share of fine tokens on an object, the objects' share of the image, and IoU.

    An allocation without fine tokens is on objects as often as chance, and overlaps with nothing.
    """
    objects = painted(boxes, allocation.size)
    area = float(objects.float().mean())
    fine = fine_tokens(allocation, image=image)
    if not fine.any():
        return {"fine_on_objects": area, "object_area": area, "object_iou": 0.0}
    height, width = allocation.size
    centre = allocation.centre[image].cpu()[fine]
    x = centre[:, 0].floor().long().clamp(0, width - 1)
    y = centre[:, 1].floor().long().clamp(0, height - 1)
    covered = painted(allocation.boxes[image].cpu()[fine].tolist(), allocation.size)
    overlap, union = int((covered & objects).sum()), int((covered | objects).sum())
    return {
        "fine_on_objects": float(objects[y, x].float().mean()),
        "object_area": area,
        "object_iou": overlap / union if union else 0.0,
    }


def painted(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> Tensor:
    """(H, W) bool: the pixels whose centre lies in some box."""
    canvas = torch.zeros(size, dtype=torch.bool)
    for x0, y0, x1, y1 in boxes:
        top, left = (max(0, math.ceil(low - 0.5)) for low in (y0, x0))
        bottom, right = (max(0, math.ceil(high - 0.5)) for high in (y1, x1))
        canvas[top:bottom, left:right] = True
    return canvas
