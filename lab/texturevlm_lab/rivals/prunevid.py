"""PruneVid (Huang and others, 2024): merge what stands still in time, then what is alike in space.

Published: frames are cut into segments by density peaks; inside a segment, a place whose features stay alike (cosine of
at least .8) is static and is averaged over time; then tokens of a frame are clustered in space. After layer 10 the 40%
that the question attends to most stay.
Ours: a segment ends where two frames in a row are less alike than .8, because a budget must hold at any number of
frames. The most static places are merged first. If the budget is not reached, density peaks cluster what is left, over
all frames together. The stage in the language model is `fastv`'s, at a third of the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context, unit
from texturevlm_lab.rivals.density_peaks import cluster
from texturevlm_lab.rivals.fastv import attended_after
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction, everything

ALIKE = 0.8


def static_then_spatial(context: Context, keep: int) -> Reduction:
    """Merge static tokens along time, then clusters."""
    before, likeness = predecessors(context, segments(context))
    static = (likeness >= ALIKE).nonzero()[:, 0]
    static = static[likeness[static].argsort(descending=True, stable=True)][: len(context) - keep]
    goes = torch.arange(len(context), device=before.device)
    goes[static] = before[static]
    for _ in range(len(context).bit_length()):  # to the beginning of each run
        goes = goes[goes]
    stay = (goes == torch.arange(len(context), device=goes.device)).nonzero()[:, 0]
    merged = Reduction.merging(stay, goes) if len(static) else everything(len(context), goes.device)
    if len(merged.kept) == keep:
        return merged
    centres, belongs = cluster(merged.mean(context.features, context.size), keep)
    return merged.then(Reduction.merging(centres, belongs))


def segments(context: Context) -> Tensor:
    """(N,): the segment of each token: frames in a row of one video that are alike."""
    frame = torch.stack([context.image.to(context.position), context.position[:, 0]], -1)
    frames, member = frame.unique(dim=0, return_inverse=True)
    means = torch.stack([context.features[member == index].float().mean(0) for index in range(len(frames))])
    alike = (unit(means)[1:] * unit(means)[:-1]).sum(-1) >= ALIKE
    begins = ~(alike & (frames[1:, 0] == frames[:-1, 0]))
    return torch.cat([begins.new_zeros(1), begins]).cumsum(0)[member]


def predecessors(context: Context, segment: Tensor) -> tuple[Tensor, Tensor]:
    """The token at the same place one frame earlier in the segment (N,), and its cosine; −1 where there is none."""
    order = torch.arange(len(context), device=segment.device)
    place = context.position
    for column in (place[:, 0], place[:, 2], place[:, 1], context.image):
        order = order[column[order].argsort(stable=True)]
    one, other = order[1:], order[:-1]
    same = (place[one, 1:] == place[other, 1:]).all(-1) & (segment[one] == segment[other])
    same &= (context.image[one] == context.image[other]) & (place[one, 0] > place[other, 0])
    before = torch.arange(len(context), device=segment.device)
    likeness = torch.full((len(context),), -1.0, device=segment.device)
    before[one[same]] = other[same]
    likeness[one[same]] = (context.directions[one] * context.directions[other]).sum(-1)[same]
    return before, likeness


PRUNEVID = Method((ReduceStage(static_then_spatial), attended_after(10 / 32)))
