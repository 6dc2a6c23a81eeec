"""VScan (Zhang and others, 2025): a global and a local scan of the tower, then the last token at the middle layer.

Published: half of the tokens have the highest attention in a deep layer of the tower; half have, window by window, the
highest attention in a shallow layer. Every other token is averaged into the most similar chosen one. At the middle
layer of the language model, the tokens that the last token attends to stay.
Ours: windows are quarters of a quarter of the image (4 × 4 per image); both stages keep the same share. Deep is the
tower's last layer that attends to the whole image, shallow the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.fastv import attended_after
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import others, shared_out, top
from texturevlm_lab.rivals.visionzip import merged_into


def two_scans(context: Context, keep: int) -> Reduction:
    """Keep the tokens of both scans and merge the rest into them. Needs keys, received and shallow."""
    whole = top(context.need("received"), (keep + 1) // 2)
    rest = others(whole, len(context))
    window, scores = windows(context)[rest], context.need("shallow")
    members = [rest[window == one] for one in window.unique()]
    counts = torch.tensor([len(own) for own in members])
    budgets = shared_out(counts.float(), counts, keep - len(whole))
    local = [own[top(scores[own], budget)] for own, budget in zip(members, budgets)]
    chosen = torch.cat([whole, *local])
    return merged_into(context, chosen, chosen)


def windows(context: Context) -> Tensor:
    """(N,): which of 4 × 4 windows of its image each token lies in, counted over all images."""
    place = context.position[:, 1:]
    found = torch.zeros_like(context.image)
    for one in context.image.unique():
        own = context.image == one
        low, high = place[own].amin(0), place[own].amax(0)
        cell = ((place[own] - low) / (high - low).clamp(min=1e-6) * 4).floor().clamp(max=3).long()
        found[own] = 4 * cell[:, 0] + cell[:, 1]
    return 16 * context.image + found


VSCAN = Method((ReduceStage(two_scans, needs=("keys", "received", "shallow")), attended_after(16 / 32)))
