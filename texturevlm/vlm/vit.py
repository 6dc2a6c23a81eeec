"""CLIP, SigLIP and SigLIP 2 towers on chosen patches: each embedded at its true position, the rest the model's own.

These towers have a learned table of positions and no other notion of place, so a patch is looked up where its centre
lies in the image, between the entries. The tower is called with a picture of one patch, and a hook that lives as long
as the call puts the embeddings of the chosen patches in place of that one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Tower = Callable[..., Any]


class VisionTransformer:
    """A tower: `side` of its patches, and how many tokens of its own it puts in front."""

    def __init__(self, tower: Any) -> None:
        self.tower = tower
        self.embeddings = tower.embeddings
        self.side = int(self.embeddings.patch_size)
        self.in_front = 1 if hasattr(self.embeddings, "class_embedding") else 0
        # SigLIP 2 takes patches in rows, and averages its table over the area of a patch that is larger than an entry
        self.takes_rows = not hasattr(self.embeddings, "image_size")

    @property
    def table_side(self) -> int:
        """Rows, and columns, of the table of positions."""
        return int((len(self.embeddings.position_embedding.weight) - self.in_front) ** 0.5)

    def run(self, call: Tower, pixels: Tensor, patch: Tensor, reach: Tensor | None = None, **options: Any) -> Any:
        """`call` (the tower, or a method of a model that calls it) on normalised pixels (B, N, 3, P, P).

        patch: (B, N, 2), row and column on the grid of the table
        reach: (B, N, 2), entries of the table that a patch covers; None: one
        """
        embedded = self.embedded(pixels, patch, reach)
        batch, count = pixels.shape[:2]
        weight = self.embeddings.patch_embedding.weight
        if self.takes_rows:
            inputs: dict[str, Any] = {
                "pixel_values": weight.new_zeros(batch, 1, weight.shape[1]),
                "pixel_attention_mask": torch.ones(batch, count, dtype=torch.int64, device=weight.device),
                "spatial_shapes": torch.ones(batch, 2, dtype=torch.int64, device=weight.device),
            }
        else:
            inputs = {"pixel_values": weight.new_zeros(batch, 3, self.side, self.side)}
            inputs["interpolate_pos_encoding"] = True  # else only pictures of one size are accepted
        hook = self.embeddings.register_forward_hook(lambda *_: embedded)
        try:
            return call(**inputs, **options)
        finally:
            hook.remove()

    def embedded(self, pixels: Tensor, patch: Tensor, reach: Tensor | None) -> Tensor:
        """(B, N, 3, P, P) → (B, N, D), with the tower's own tokens in front."""
        module = self.embeddings.patch_embedding
        order = (0, 1, 3, 4, 2) if self.takes_rows else (0, 1, 2, 3, 4)
        rows = pixels.permute(order).flatten(2).to(module.weight)
        tokens = functional.linear(rows, module.weight.flatten(1), module.bias)
        table = self.embeddings.position_embedding.weight
        tokens = tokens + self._positions(table[self.in_front :], patch, reach).to(tokens.dtype)
        if not self.in_front:
            return tokens
        front = (self.embeddings.class_embedding + table[0]).expand(len(tokens), 1, -1)
        return torch.cat([front.to(tokens.dtype), tokens], 1)

    def _positions(self, table: Tensor, patch: Tensor, reach: Tensor | None) -> Tensor:
        """(B, N, D): the table read where the patches' centres lie."""
        side = self.table_side
        entry = torch.arange(side, device=table.device)
        shares = []
        for axis in (0, 1):
            at = patch[..., axis].detach().to(table.device).clamp(0, side - 1)
            width = torch.ones_like(at) if reach is None else reach[..., axis].to(at).clamp(min=1)
            share = (1 - (entry - at[..., None]).abs() / width[..., None]).clamp(min=0)
            shares.append(share / share.sum(-1, keepdim=True))
        rows, columns = shares
        return torch.einsum("bkr,bkc,rcd->bkd", rows, columns, table.float().view(side, side, -1))


def by_count(counts: Sequence[int]) -> list[list[int]]:
    """Which images have equally many patches and can run together: these towers know no padding."""
    groups: dict[int, list[int]] = {}
    for index, count in enumerate(counts):
        groups.setdefault(count, []).append(index)
    return list(groups.values())
