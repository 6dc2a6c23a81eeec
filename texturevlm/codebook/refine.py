"""Refinement for one image: a few entries of its own for what the codebook leaves of it.

The entries are stored with the image, in 16 bits per number, and each token takes one byte more. One entry is the mean
of what was left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.codebook.codebook import FEATURE_BYTES, Codebook
from texturevlm.codebook.features import TokenFeatures
from texturevlm.codebook.nearest import kmeans, nearest

MOST_OWN = 256  # a code is a byte


@dataclass(frozen=True, eq=False)
class Refinement:
    """What one image adds to its codes.

    entries: (R, W), in bfloat16, as the features are
    codes:   (N,) uint8
    """

    entries: Tensor
    codes: Tensor

    @property
    def bytes(self) -> int:
        """Of both."""
        return FEATURE_BYTES * self.entries.numel() + self.codes.numel()

    def apply(self, rows: Tensor) -> Tensor:
        """Decoded rows (N, W), refined."""
        return rows + self.entries[self.codes.long()].to(rows)


def refine(codebook: Codebook, features: TokenFeatures, codes: Tensor, *, count: int, seed: int = 0) -> Refinement:
    """Fit `count` entries to what codes leave of an image's features, by k-means, all parts of a feature alike."""
    check_count("refine", "count", count, 1, MOST_OWN)
    spread = codebook.spread[codebook.book(features.level)]
    left = (features.rows.float() - codebook.decode(codes, features.level)) / spread
    random = torch.Generator().manual_seed(seed)
    count = min(count, len(features))
    index = nearest(left, kmeans(left, count, random=random))
    sums = left.new_zeros(count, codebook.width).index_add(0, index, left * spread)
    chosen = torch.bincount(index, minlength=count).clamp(min=1)
    return Refinement((sums / chosen[:, None]).bfloat16(), index.to(torch.uint8))
