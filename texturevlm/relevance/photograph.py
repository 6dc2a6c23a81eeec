"""Photograph or page: a page has one background brightness, a photograph has none."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 32  # of brightness
GROUND = 3  # steps of the background: paper is not lit evenly
# The share of cells with the background's brightness: at least .70 on nine pages of ten, at most .59 on nine
# photographs of ten.
PAGE_SHARE = 0.55


def is_photograph(cells: Tensor) -> Tensor:
    """Whether an image is a photograph rather than a page.

    cells:  (B, 1, h, w), brightness 0 to 1
    returns (B,) bool
    """
    step = (cells.flatten(1) * STEPS).long().clamp(0, STEPS - 1)
    counts = torch.zeros(len(cells), STEPS, device=cells.device).scatter_add_(
        1, step, torch.ones_like(step, dtype=torch.float32)
    )
    return counts.topk(GROUND, dim=1).values.sum(1) < PAGE_SHARE * step.shape[1]
