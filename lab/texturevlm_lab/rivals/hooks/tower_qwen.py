"""Reductions in a tower over flat rows of patches (Qwen-VL, GLM-V)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.vlm import Override
from texturevlm.vlm.loops import rotated
from texturevlm_lab.rivals.hooks.tower import TowerReduction

EXTRA = 8  # dimensions of a head that are added; fast kernels take multiples of eight
ARGUMENTS = ("cu_seqlens", "position_embeddings")  # of blocks and of their attention, besides hidden states


class QwenTower(TowerReduction):
    def hooks(self) -> Iterator[Any]:
        tower = self.adapter.tower
        self._blocks: list[Override] = []
        self._attentions: list[Override] = []
        for index, block in enumerate(tower.blocks):
            self._blocks.append(Override(block, "forward", partial(self._block, index)))
            yield self._blocks[-1]
            self._attentions.append(Override(block.attn, "forward", partial(self._attention, index)))
            yield self._attentions[-1]
        for merger in (tower.merger, *self.adapter.deepstack_mergers.values()):
            yield merger.register_forward_pre_hook(self._before_merger)

    def _before_merger(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.expanded(args[0]), *args[1:])

    def _block(self, index: int, hidden_states: Tensor, *args: Any, **given: Any) -> Tensor:
        given = dict(zip(ARGUMENTS, args)) | given
        hidden, patches = hidden_states, self.adapter.merge**2
        if index == 0:
            hidden = hidden.unflatten(0, (-1, patches))[self._live].flatten(0, 1)
        for one in self._due("tower", index):
            keys = self._keys(index - 1) if "keys" in one.stage.needs else None
            hidden = self._reduced(one, hidden.unflatten(0, (-1, patches)), keys).flatten(0, 1)
        self._before = hidden.unflatten(0, (-1, patches))
        found: Tensor = self._blocks[index].original(hidden, **(given if self._whole else self._for_fewer(given)))
        return found

    def _for_fewer(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a block for the current tokens, from those for all."""
        patches = self.adapter.merge**2
        cos, sin = (one.unflatten(0, (-1, patches))[self._live].flatten(0, 1) for one in given["position_embeddings"])
        lengths = self._lengths(given["cu_seqlens"])
        ends = torch.tensor([0, *lengths]).cumsum(0).to(given["cu_seqlens"])
        fewer = {**given, "cu_seqlens": ends, "position_embeddings": (cos, sin)}
        return fewer if given.get("max_seqlen") is None else fewer | {"max_seqlen": max(lengths)}

    def _lengths(self, ends: Tensor) -> list[int]:
        """Patches that are left of each segment, without the empty ones."""
        patches = self.adapter.merge**2
        segment = torch.searchsorted(ends[1:].to(self._live), self._live * patches, right=True)
        counts: list[int] = torch.bincount(segment).tolist()
        return [patches * count for count in counts if count]

    def _attention(self, index: int, hidden_states: Tensor, *args: Any, **given: Any) -> Tensor:
        """Tokens attend with + log(size), which no attention function of transformers adds here."""
        if bool((self._size == 1).all()):
            found: Tensor = self._attentions[index].original(hidden_states, *args, **given)
            return found
        given = dict(zip(ARGUMENTS, args)) | given
        module = self.adapter.tower.blocks[index].attn
        query, key, value = module.qkv(hidden_states).unflatten(-1, (3, module.num_heads, -1)).permute(1, 2, 0, 3)
        cos, sin = (one.float() for one in given["position_embeddings"])
        query, key = (rotated(one.float(), cos, sin).to(one.dtype) for one in (query, key))
        sizes = self._size.log().repeat_interleave(self.adapter.merge**2)
        query, key = _with_bias(query, key, sizes, module.scaling)
        lengths = given["cu_seqlens"].diff().tolist()
        outputs = [
            functional.scaled_dot_product_attention(own[None], other[None], seen[None], scale=module.scaling)[0]
            for own, other, seen in zip(
                *(one.split(lengths, -2) for one in (query, key, functional.pad(value, (0, EXTRA))))
            )
        ]
        mixed = torch.cat(outputs, 1)[..., :-EXTRA]
        found = module.proj(mixed.transpose(0, 1).flatten(1))
        return found

    def _keys(self, index: int) -> Tensor:
        """(H, M, d): of the current tokens in a block that has run, not rotated."""
        block = self.adapter.tower.blocks[index]
        attention = block.attn
        projected = attention.qkv(block.norm1(self._before))
        key: Tensor = projected.unflatten(-1, (3, attention.num_heads, -1))[:, :, 1]
        return key.mean(1).transpose(0, 1)


def _with_bias(query: Tensor, key: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Queries and keys (H, N, d) with further dimensions, so that attention adds a number per key (N,).

    A mask would do the same, but is as large as the attention matrix. Two numbers of a short dtype hold one.
    """
    high = bias.to(key.dtype)
    low = (bias - high.to(bias.dtype)).to(key.dtype)
    more = functional.pad(torch.stack([high, low], -1), (0, EXTRA - 2)).expand(len(key), -1, -1)
    ones = functional.pad(query.new_full((2,), 1 / scale), (0, EXTRA - 2)).expand(*query.shape[:2], -1)
    return torch.cat([query, ones], -1), torch.cat([key, more], -1)
