"""CDPruner (Zhang and others, 2025): diverse tokens that are relevant for the question.

Published: greedy MAP inference of a determinantal point process with the kernel r_i · cos_ij · r_j, where r is the
relevance of a token for the question, min-max normalised. Relevance is the cosine to a text encoder's embedding.
Ours: the question is the mean of its embeddings in the language model, whatever the model. Beyond as many tokens as
embeddings have dimensions all determinants are zero; then the longest vectors, the most relevant tokens, follow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context, unit
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction

LEAST = 1e-6
NEGLIGIBLE = 1e-4  # a gain below this share of a vector's length is an error of rounding


def determinantal(context: Context, keep: int) -> Reduction:
    """Choose by determinants. Needs question."""
    relevance = relevance_of(context)
    return Reduction.keeping(greedy_map(context.directions * relevance[:, None], keep), len(context))


def relevance_of(context: Context) -> Tensor:
    """(N,) from 0 to 1: cosine to the mean of the question."""
    likeness = context.directions @ unit(context.need("question").float().mean(0))
    low, high = likeness.aminmax()
    return ((likeness - low) / (high - low).clamp(min=LEAST)).clamp(min=LEAST)


def greedy_map(vectors: Tensor, count: int) -> Tensor:
    """(count,): each adds most to the determinant of the Gram matrix of vectors (N, D) (Chen and others, 2018)."""
    length = vectors.square().sum(-1)
    gain = length
    rows = vectors.new_zeros(count, len(vectors))  # of the Cholesky factor
    chosen: list[Tensor] = []
    taken = torch.zeros_like(gain, dtype=torch.bool)
    for step in range(count):
        worth = torch.where(gain > NEGLIGIBLE * length, gain, LEAST**2 * length)
        best = worth.masked_fill(taken, -math.inf).argmax()
        chosen.append(best)
        taken[best] = True
        row = vectors @ vectors[best] - rows[:step, best] @ rows[:step]
        rows[step] = row / gain[best].clamp(min=LEAST**2).sqrt()
        gain = (gain - rows[step].square()).clamp(min=0)
    return torch.stack(chosen)


CDPRUNER = Method((ReduceStage(determinantal, needs=("question",)),))
