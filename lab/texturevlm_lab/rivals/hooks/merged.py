"""Merged tokens: a parent that shows its children on top of one another instead of a coarse picture of them.

A token is n/2 × n/2 patches of the tower. Twice as fine, each of them is four: its children. The merged patch is the
weighted mean of the children's patch embeddings, at the parent's own position. The patch embedding of every tower here
is one linear layer and the weights sum to one, so the mean of embeddings is the embedding of the mean of the children's
samples. That is what is made: exact, differentiable, for every family, and the tower runs on the parents alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from texturevlm.check import check_choice, check_shapes
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import Adapter, ModelHook
from texturevlm.vlm.views import sampled
from texturevlm_lab.rivals.hooks.merge import child_shares


@dataclass(frozen=True)
class MergedTokens(ModelHook):
    """`tokens="merged"`: a token too coarse to be legible is the mean of its children, weighted by relevance."""

    options: ClassVar[tuple[str, ...]] = ("tokens",)

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any], usual: ModelHook | None = None) -> MergedTokens:
        check_choice(function, "tokens", options["tokens"], ("chosen", "weighted", "merged"))
        return cls()

    def pixels(
        self, adapter: Adapter, texture: Texture, chosen: Allocation, relevance: Relevance, read: Allocation
    ) -> Tensor:
        return merged_pixels(texture, read, child_shares(chosen, relevance, adapter.merge))

    def not_captured_because(self) -> str | None:
        return "merged tokens are not captured"


def merged_pixels(texture: Texture, allocation: Allocation, shares: Tensor) -> Tensor:
    """Pixels (B, K, 3, P, P) of footprints, those with shares replaced by the mean of their children.

    shares: (B, K, n, n), row by row; they sum to 1 over the 2 × 2 children of each patch. 0 everywhere: not merged
    """
    check_shapes("merged_pixels", valid=(allocation.valid, "B K"), shares=(shares, "B K n n"))
    pixels = sampled(texture, allocation)
    finer = replace(allocation, ddx=allocation.ddx / 2, ddy=allocation.ddy / 2, patch=2 * allocation.patch)
    patches, (batch, budget, channels, side) = shares.shape[-1] // 2, pixels.shape[:-1]
    inner = side // patches
    children = sampled(texture, finer).view(batch, budget, channels, patches, 2, inner, patches, 2, inner)
    shares = shares.to(pixels)
    weights = shares.view(batch, budget, 1, patches, 2, 1, patches, 2, 1)
    merged = (children * weights).sum((4, 7)).reshape(pixels.shape)
    return merged.where((shares.flatten(2).sum(-1) > 0)[..., None, None, None], pixels)
