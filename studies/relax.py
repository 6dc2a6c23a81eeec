"""Relaxed top-K: how far each of N candidates belongs to the best K, as a number that gradients pass through.

Every way gives memberships from 0 to 1 that sum to K exactly, and at temperature zero the ordinary top K. They differ
in what they make of a score's distance from the threshold that lets K of them in: a sigmoid of it, entropic optimal
transport between candidates and the two bins "in" and "out" (which is that same sigmoid, found by Sinkhorn's
iteration), the Euclidean projection onto the memberships that sum to K (a clipped line, so that far candidates get
exactly 0 or 1 and no gradient), or the hard choice with the sigmoid's gradient (straight), or that among scores with
Gumbel noise, which also tries what is not the best now.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_floating, check_shapes

BISECTIONS = 60  # more than a float64 has bits
BEYOND = 50.0  # temperatures outside the scores, where a sigmoid is 0 or 1
SINKHORN_STEPS = 2_000  # at most; tens are enough unless nearly hard
SINKHORN_CLOSE = 1e-9  # of K: a sum that near is K
TINY = 1e-20

Relaxation = Callable[[Tensor, float, float], Tensor]


def relaxed_top_k(
    scores: Tensor,
    k: float,
    *,
    way: str = "sigmoid",
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How far each candidate belongs to the best k.

    scores:      (B, N); a candidate that must stay out may have -inf
    k:           between 0 and N, need not be whole
    way:         a name of WAYS
    temperature: above 0, in units of the scores
    generator:   of gumbel's noise
    returns      (B, N), 0 to 1, summing to k; differentiable in scores. With straight and gumbel the values are 0 and 1
                 (k rounded down) and the gradient is the sigmoid's
    """
    sizes = check_shapes("relaxed_top_k", scores=(scores, "B N"))
    check_floating("relaxed_top_k", scores=scores)
    check_choice("relaxed_top_k", "way", way, WAYS)
    if not 0 <= k <= sizes["N"]:
        raise ValueError(f"relaxed_top_k: k must be between 0 and {sizes['N']}, the candidates, got {k!r}")
    if not 0 < temperature < float("inf"):
        raise ValueError(f"relaxed_top_k: temperature must be a positive number, got {temperature!r}")
    wide = scores.double()  # near temperature zero the least difference counts
    if way == "gumbel":
        wide = wide + gumbel_noise(wide, generator) * temperature
    found = RELAXATIONS["straight" if way == "gumbel" else way](wide, float(k), temperature)
    return found if scores.dtype == torch.float64 else found.float()


def hard_top_k(scores: Tensor, k: int) -> Tensor:
    """(B, N) bool: the k best of each row, the earlier of equal ones."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    first = torch.arange(scores.shape[1], device=scores.device) < k
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, first.expand_as(order))


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise: scores plus it, sorted, are a sample without replacement in proportion to exp(score)."""
    uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    return -torch.log(-torch.log(uniform.clamp(TINY, 1 - torch.finfo(like.dtype).eps)))


def sigmoid(scores: Tensor, k: float, temperature: float) -> Tensor:
    """σ((score − t) / temperature), t by bisection such that they sum to k."""
    return _at_threshold(scores, _bisected(scores, k, temperature, torch.sigmoid, BEYOND), temperature)


def straight(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The hard choice of k, rounded down, with the gradient of `sigmoid`."""
    whole = math.floor(k + 1e-6)
    soft = sigmoid(scores, whole, temperature)
    return hard_top_k(scores, whole).to(soft) + (soft - soft.detach())


def sinkhorn(scores: Tensor, k: float, temperature: float) -> Tensor:
    """Entropic optimal transport from the candidates, of mass 1 each, to "in" (mass k, cost −score) and "out" (N − k).

    With two bins the row scaling has a closed form, so one number is iterated: by how much "in" is dearer. It is the
    threshold of `sigmoid`: the two are one relaxation, and only the way to the threshold differs.
    """
    count = float(scores.shape[1])
    if k <= 0 or k >= count:
        return sigmoid(scores, k, temperature)
    with torch.no_grad():
        finite = scores[scores.isfinite()]
        best = scores.topk(math.floor(k) + 1, 1).values.nan_to_num(neginf=float(finite.min()))
        price = best[:, -2:].mean(1, keepdim=True)  # between those in and out: near zero temperature it stays there
        for _ in range(SINKHORN_STEPS):
            inside = ((scores - price) / temperature).sigmoid().sum(1, keepdim=True)
            if ((inside - k).abs() <= SINKHORN_CLOSE * k).all():
                break
            outside = (count - inside).clamp(min=TINY)
            price = price + temperature * (torch.log(inside.clamp(min=TINY) / k) - torch.log(outside / (count - k)))
    return _at_threshold(scores, price, temperature)


def sparse(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The memberships that sum to k nearest to score / temperature: (score − t) / temperature + ½, cut to 0 … 1."""

    def line(x: Tensor) -> Tensor:
        return (x + 0.5).clamp(0, 1)

    threshold = _bisected(scores, k, temperature, line, 1.0)
    between = (line((scores - threshold) / temperature) - 0.5).abs() < 0.5
    share = between / between.sum(1, keepdim=True).clamp(min=1)
    return line((scores - _following(threshold, scores, share)) / temperature)


def _bisected(scores: Tensor, k: float, temperature: float, shape: Callable[[Tensor], Tensor], beyond: float) -> Tensor:
    """(B, 1): the threshold at which the memberships sum to k; no gradient."""
    with torch.no_grad():
        finite = scores.isfinite()
        low = scores.where(finite, torch.inf).amin(1, keepdim=True) - beyond * temperature
        high = scores.where(finite, -torch.inf).amax(1, keepdim=True) + beyond * temperature
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            many = shape((scores - middle) / temperature).sum(1, keepdim=True) > k
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
        return (low + high) / 2


def _at_threshold(scores: Tensor, threshold: Tensor, temperature: float) -> Tensor:
    """The sigmoid about a threshold that moves with the scores so that the sum stays."""
    with torch.no_grad():
        inside = ((scores - threshold) / temperature).sigmoid()
        slope = inside * (1 - inside)
        share = slope / slope.sum(1, keepdim=True).clamp(min=TINY)
    return ((scores - _following(threshold, scores, share)) / temperature).sigmoid()


def _following(threshold: Tensor, scores: Tensor, share: Tensor) -> Tensor:
    """The threshold with its exact gradient, dt/ds_i = slope_i / Σ slope, by the implicit function theorem."""
    known = scores.where(share > 0, 0.0)  # a candidate at -inf has no say, and 0 · inf must not be formed
    return threshold + (share * (known - known.detach())).sum(1, keepdim=True)


RELAXATIONS: dict[str, Relaxation] = {"sigmoid": sigmoid, "sinkhorn": sinkhorn, "sparse": sparse, "straight": straight}
WAYS = (*RELAXATIONS, "gumbel")
