"""Slots of a captured decoding that attends hierarchically: the summaries of the prompts, and a table that grows.

The table of blocks has empty blocks for the answer. A step writes the number of its slot into the next place, which is
all that a kernel needs to read it; everything else stays as the prompts left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical import attend_laid_out
from texturevlm_lab.attention.key_value_texture import KeyValueLevel, KeyValueTexture
from texturevlm_lab.attention.options import AttentionOptions


@dataclass(frozen=True, eq=False)
class LaidKeys:
    """The visual keys of B prompts in blocks, with a summary of each block.

    layout:   of one query behind the prompts
    textures: per layer
    """

    layout: BlockLayout
    textures: Sequence[KeyValueTexture]
    options: AttentionOptions

    @property
    def length(self) -> int:
        return self.layout.length

    def slots(self, count: int, like: Tensor) -> LaidSlots:
        return LaidSlots(self, count)


class LaidSlots:
    """As Slots.

    layout: whose table has room for `count` keys
    levels: the summaries of each layer
    place:  (1,), of the next token in the table
    """

    def __init__(self, known: LaidKeys, count: int) -> None:
        self.count, self.options = count, known.options
        self.layout = known.layout.with_room(count)
        self.size = _size(self.layout.count)
        self.levels = []
        for texture in known.textures:
            level = KeyValueLevel(
                torch.empty_like(texture.finest.key), torch.empty_like(texture.finest.value), self.layout.count
            )
            vars(level)["size"] = self.size
            self.levels.append(level)
        self.slot = torch.zeros(len(self.layout.keys), dtype=torch.int64, device=self.layout.keys.device)
        self.place = self.slot.new_zeros(1)
        self.chosen: Tensor | None = None

    def take(self, known: object, needed: int) -> bool:
        if not isinstance(known, LaidKeys) or needed > self.count or known.options != self.options:
            return False
        mine, given = (self._tensors(one) for one in (self.layout, known.layout.with_room(self.count)))
        if [one.shape for one in mine] != [one.shape for one in given]:
            return False
        for one, other in zip(mine, given):
            one.copy_(other)
        self.size.copy_(_size(self.layout.count))
        for level, texture in zip(self.levels, known.textures, strict=True):
            level.key.copy_(texture.finest.key)
            level.value.copy_(texture.finest.value)
        self.slot.fill_(known.length)
        self.place.fill_(known.layout.keys[0].numel())  # behind what the prompts fill
        return True

    def enter(self) -> None:
        place = self.place.expand(len(self.slot), 1)
        self.layout.keys.flatten(1).scatter_(1, place, self.slot[:, None].int())
        self.layout.key_blocks.scatter_(1, self.slot[:, None], place // self.layout.block)
        self.chosen = None

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        own = self.options
        found, self.chosen = attend_laid_out(
            query,
            keys,
            values,
            self.layout,
            scale=scale,
            fine=own.fine,
            kind=own.kind,
            rank=own.rank,
            texture=KeyValueTexture(self.levels[layer], own.block),
            chosen=self.chosen if layer % own.share else None,
        )
        return found

    def leave(self) -> None:
        self.slot.add_(1).clamp_(max=self.count - 1)
        self.place.add_(1).clamp_(max=self.layout.keys[0].numel() - 1)

    def _tensors(self, layout: BlockLayout) -> list[Tensor]:
        """All of a layout that attention of one token reads."""
        share = self.options.fine if self.options.kind in ("hierarchical", "latent") else 0.0
        parts = [layout.keys, layout.count, layout.state, layout.key_blocks, layout.allowed(share)]
        return [*parts, *layout.always, *layout.marks]


def _size(count: Tensor) -> Tensor:
    return count.float().log()
