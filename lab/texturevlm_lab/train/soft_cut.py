"""Cuts of a hierarchy that can be learned: each node is split by a chance, and a budget of tokens is kept.

A cut replaces nodes by their children, from the roots down, where the gain is greatest (allocate/quadtree.py).
Relaxed, a node is split with the chance sigmoid((gain − threshold) / temperature). A node is part of the cut if all
nodes above it are split and it is not. The threshold is where the expected number of tokens is the budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.check import check_count, check_shapes
from texturevlm_lab.train.soft_choice import threshold_for


def generations(parent: Tensor) -> list[Tensor]:
    """The numbers of the roots of nodes (N,), of their children, and so on. parent: −1 for a root"""
    found = [(parent < 0).nonzero()[:, 0]]
    while len(below := torch.isin(parent, found[-1]).nonzero()[:, 0]):
        found.append(below)
    return found


def relaxed_cut(gain: Tensor, parent: Tensor, budget: int, temperature: float = 1.0) -> Tensor:
    """(N,): how much each node is part of the cut, 0 to 1; differentiable in the gains (N,) of splitting each node.

    The weights of all nodes from a root to a leaf sum to 1. All weights sum to the budget, or to what the roots or the
    leaves are, if the budget is below or above that. Gains of leaves mean nothing.
    parent: (N,), −1 for a root
    """
    check_shapes("relaxed_cut", gain=(gain, "N"), parent=(parent, "N"))
    check_count("relaxed_cut", "budget", budget, 1)
    levels = generations(parent)
    inner = torch.zeros_like(parent, dtype=torch.bool)
    inner[parent[parent >= 0]] = True

    def weights(above: Tensor) -> Tensor:
        split = (above / temperature).sigmoid() * inner
        reached = torch.ones_like(split)
        for below in levels[1:]:
            reached = reached.index_copy(0, below, (reached * split)[parent[below]])
        return reached * (1 - split)

    roots, leaves = len(levels[0]), int((~inner).sum())
    if not roots < budget < leaves:
        return weights(torch.full_like(gain, torch.inf if budget >= leaves else -torch.inf))
    threshold = threshold_for(gain, budget, lambda above: weights(above).sum(), temperature)
    return weights(gain - threshold)
