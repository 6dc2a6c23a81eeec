"""Keys and values as a texture: means over blocks of tokens, level upon level, as the mips of an image.

Tokens are in the order of a quadtree, so four blocks that follow one another are one block of the next level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from texturevlm.check import check_count, check_shapes

CHILDREN = 4  # blocks of a level that are one block of the next


@dataclass(frozen=True, eq=False)
class KeyValueLevel:
    """N blocks of one level.

    key, value: (B, H, N, D), means
    count:      (B, N), how many tokens each block has; 0 for one that is empty
    """

    key: Tensor
    value: Tensor
    count: Tensor

    @cached_property
    def size(self) -> Tensor:
        """(B, N): log of the count, -inf for an empty block: what a mean's score gets."""
        return wide(self.count).log()

    def coarser(self) -> KeyValueLevel:
        """The next level."""
        short = -self.count.shape[1] % CHILDREN
        count = torch.nn.functional.pad(self.count, (0, short)).unflatten(1, (-1, CHILDREN))
        total = count.sum(-1, dtype=torch.int32)

        def mean(values: Tensor) -> Tensor:
            padded = torch.nn.functional.pad(wide(values), (0, 0, 0, short)).unflatten(2, (-1, CHILDREN))
            weighed = (padded * count[:, None, ..., None]).sum(3)
            found: Tensor = (weighed / total.clamp(min=1)[:, None, :, None]).to(values.dtype)
            return found

        return KeyValueLevel(mean(self.key), mean(self.value), total)


@dataclass(frozen=True, eq=False)
class KeyValueTexture:
    """Block means of K and V.

    finest: blocks of `block` tokens
    """

    finest: KeyValueLevel
    block: int

    @cached_property
    def levels(self) -> tuple[KeyValueLevel, ...]:
        """Finest first: blocks of `block` tokens, of 4 · block, … down to one block; made when they are asked for."""
        found = [self.finest]
        while found[-1].count.shape[1] > 1:
            found.append(found[-1].coarser())
        return tuple(found)

    @staticmethod
    def of(key: Tensor, value: Tensor, *, table: Tensor | None = None, block: int = 64) -> KeyValueTexture:
        """The means of keys and values (B, H, L, D).

        table: (B, N · block), which token stands where in the order of the quadtree, -1 for none; all as they stand
               by default
        """
        check_shapes("KeyValueTexture.of", key=(key, "B H L D"), value=(value, "B H L E"))
        check_block("KeyValueTexture.of", block)
        if table is None:
            table = whole_table(key.shape[0], key.shape[2], block, key.device)
        from texturevlm_lab.attention.hierarchical_triton import means_by_triton

        found = means_by_triton(key, value, table, block)
        if found is None:
            return KeyValueTexture(block_means(key, value, table, block), block)
        count = (table >= 0).unflatten(1, (-1, block)).sum(-1, dtype=torch.int32)
        return KeyValueTexture(KeyValueLevel(*found, count), block)

    @property
    def bytes(self) -> int:
        """Of all levels."""
        tensors = [one for level in self.levels for one in (level.key, level.value, level.count)]
        return sum(one.numel() * one.element_size() for one in tensors)


def check_block(function: str, block: int) -> int:
    """A power of two from 1 on."""
    check_count(function, "block", block, 1)
    if block & (block - 1):
        raise ValueError(f"{function}: block must be a power of two, got {block}")
    return block


def whole_table(batch: int, length: int, block: int, device: torch.device) -> Tensor:
    """(B, N · block): tokens as they stand, then -1."""
    index = torch.arange(length + -length % block, device=device, dtype=torch.int32)
    return torch.where(index < length, index, -1).expand(batch, -1)


def block_means(key: Tensor, value: Tensor, table: Tensor, block: int) -> KeyValueLevel:
    """The means of the blocks of a table (B, N · block)."""
    there = (table >= 0)[:, None, :, None]
    blocks = (table.shape[1] // block, block)
    count = (table >= 0).unflatten(1, blocks).sum(-1, dtype=torch.int32)
    index = table.clamp(min=0).long()[:, None, :, None]

    def mean(values: Tensor) -> Tensor:
        rows = values.gather(2, index.expand(-1, values.shape[1], -1, values.shape[3]))
        total = wide(rows * there).unflatten(2, blocks).sum(3)
        found: Tensor = (total / count.clamp(min=1)[:, None, :, None]).to(values.dtype)
        return found

    return KeyValueLevel(mean(key), mean(value), count)


def wide(values: Tensor) -> Tensor:
    """In float32, or in float64 where they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
