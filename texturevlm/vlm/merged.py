"""Merged tokens: a parent that shows its children on top of one another instead of a coarse picture of them.

A token is n/2 × n/2 patches of the tower. Twice as fine, each of them is four: its children. The merged patch is the
weighted mean of the children's patch embeddings, at the parent's own position. The patch embedding of every tower here
is one linear layer and the weights sum to one, so the mean of embeddings is the embedding of the mean of the children's
samples. That is what is made: exact, differentiable, for every family, and the tower runs on the parents alone.
"""

from dataclasses import replace

from torch import Tensor

from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture


def merged_pixels(texture: Texture, allocation: Allocation, shares: Tensor, pixels: Tensor) -> Tensor:
    """Pixels (B, K, C, P, P) of footprints, those with shares replaced by the mean of their children.

    shares: (B, K, n, n), row by row; they sum to 1 over the 2 × 2 children of each patch. 0 everywhere: not merged
    """
    finer = replace(allocation, ddx=allocation.ddx / 2, ddy=allocation.ddy / 2, patch=2 * allocation.patch)
    patches, (batch, budget, channels, side) = shares.shape[-1] // 2, pixels.shape[:-1]
    inner = side // patches
    children = sample(texture, finer).pixels.view(batch, budget, channels, patches, 2, inner, patches, 2, inner)
    shares = shares.to(pixels)
    weights = shares.view(batch, budget, 1, patches, 2, 1, patches, 2, 1)
    merged = (children * weights).sum((4, 7)).reshape(pixels.shape)
    return merged.where((shares.flatten(2).sum(-1) > 0)[..., None, None, None], pixels)
