"""Clustering by density peaks with k nearest neighbours (DPC-kNN), which SparseVLM and PruneVid use."""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 5


def cluster(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cluster vectors (N, D): the indices of `count` centres, and the centre's index of each vector (N,).

    A centre is dense (its nearest neighbours are near) and far from anything denser.
    """
    distance = torch.cdist(vectors.float(), vectors.float()) / vectors.shape[-1] ** 0.5
    neighbours = min(NEIGHBOURS, len(vectors))
    near = distance.topk(neighbours, largest=False).values
    density = (-near.square().mean(-1)).exp()
    denser = density[None] > density[:, None]
    apart = torch.where(denser, distance, distance.max()).amin(-1)
    centres = (density * apart).argsort(descending=True, stable=True)[:count]
    belongs = centres[distance[:, centres].argmin(-1)]
    belongs[centres] = centres
    return centres, belongs
