"""Attention that tokens receive, by streaming column sums: a full attention matrix is never stored."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_AT_ONCE = 256  # rows of attention that are held at once


def column_sums(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    weights: Tensor | None = None,
    quadratic: bool = False,
    block: int = ROWS_AT_ONCE,
) -> Tensor:
    """Σ over rows of softmax(scale · query · keyᵀ), reduced over heads: what each key receives.

    query, key: (H, N, d) and (H, M, d)
    weights:    (N,), factor of each row; 1 if None
    quadratic:  root mean square over heads instead of the mean
    returns     (M,), float32
    """
    total = key.new_zeros(key.shape[1], dtype=torch.float32)
    key = key.float()
    for first in range(0, query.shape[1], block):
        rows = query[:, first : first + block].float() @ key.mT * scale
        share = rows.softmax(-1)
        share = share.square().mean(0).sqrt() if quadratic else share.mean(0)
        total += share.sum(0) if weights is None else weights[first : first + block].float() @ share
    return total


def received_share(query: Tensor, key: Tensor, *, scale: float) -> Tensor:
    """What each key receives of queries (H, N, d), (H, M, d) → (M,): 1 is an even share, and the mean is 1.

    A sum would be 1 per picture, so that a token of a small picture would seem to get more than one of a large one.
    """
    return column_sums(query, key, scale=scale) * (key.shape[1] / query.shape[1])
