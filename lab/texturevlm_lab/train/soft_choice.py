"""Choices that can be learned: a relaxed top-K and a relaxed cut of a hierarchy, and draws with known probabilities.

A cut replaces nodes by their children, from the roots down, where the gain is greatest (allocate/quadtree.py).
Relaxed, a node is split with the chance sigmoid((gain − threshold) / temperature). A node is part of the cut if all
nodes above it are split and it is not. The threshold is where the expected number of tokens is the budget.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from texturevlm.check import check_count, check_shapes

_BISECTIONS = 40


def relaxed_top_k(scores: Tensor, k: int, temperature: float = 1.0) -> Tensor:
    """(N,) scores → (N,) weights from 0 to 1 that sum to k, differentiable; sharper as the temperature falls.

    A weight is sigmoid((score − threshold) / temperature). The threshold follows the scores, so that the gradient of
    the sum is zero: a token can only gain what others lose.
    """
    count = check_shapes("relaxed_top_k", scores=(scores, "N"))["N"]
    check_count("relaxed_top_k", "k", k, 1)
    if k >= count:
        return torch.ones_like(scores)
    threshold = threshold_for(scores, k, lambda above: (above / temperature).sigmoid().sum(), temperature)
    return ((scores - threshold) / temperature).sigmoid()


def threshold_for(scores: Tensor, k: float, total: Callable[[Tensor], Tensor], temperature: float) -> Tensor:
    """The threshold at which `total` of what scores (N,) are above it is k; differentiable in the scores.

    total: grows with each of its N arguments; beyond some dozens of temperatures it changes no more
    """
    scale = temperature * 40
    fixed = scores.detach()
    with torch.no_grad():
        low, high = fixed.min() - scale, fixed.max() + scale
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            many = total(fixed - middle) > k
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
        threshold = (low + high) / 2
    with torch.enable_grad():
        above = (fixed - threshold).requires_grad_()
        (slope,) = torch.autograd.grad(total(above), above)
    # The threshold's own gradient, by the implicit function theorem; its value stays.
    share = slope / slope.sum().clamp(min=1e-12)
    found: Tensor = threshold + (share * (scores - fixed)).sum()
    return found


def draw_top_k(scores: Tensor, k: int, *, generator: torch.Generator) -> Tensor:
    """(k,): different indices, drawn one after the other in proportion to exp(score) (N,), by Gumbel noise."""
    uniform = torch.rand(len(scores), generator=generator).clamp(1e-12, 1 - 1e-7).to(scores.device)
    order: Tensor = (scores.detach() - (-uniform.log()).log()).topk(k).indices
    return order


def log_chance(scores: Tensor, drawn: Tensor) -> Tensor:
    """The log-probability that `draw_top_k` draws these indices (k,) in this order; differentiable in scores (N,)."""
    left = torch.ones_like(scores, dtype=torch.bool)
    left[drawn] = False
    never = scores[left].logsumexp(0) if bool(left.any()) else scores.new_full((), -torch.inf)
    own = scores[drawn]
    behind = torch.cat([own, never[None]]).flip(0).logcumsumexp(0).flip(0)[:-1]
    return (own - behind).sum()


def leave_one_out(rewards: Tensor) -> Tensor:
    """(S,) rewards of several draws → (S,): each less the mean of the others, which changes no expected gradient."""
    count = check_shapes("leave_one_out", rewards=(rewards, "S"))["S"]
    check_count("leave_one_out", "draws", count, 2)
    return rewards - (rewards.sum() - rewards) / (count - 1)


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
