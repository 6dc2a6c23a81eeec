"""Choices that can be learned: a relaxed top-K with exact gradients, and draws with known probabilities."""

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
