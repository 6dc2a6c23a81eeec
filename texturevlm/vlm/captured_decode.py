"""Decoding from a graph: one token per prompt and replay, keys and values in buffers of a fixed length.

A step of decoding is about a thousand kernels, each of which finishes before Python has launched the next. The graph
writes the keys and values of a token into its slot of the buffers, attends to the slots that are in use, and moves on
to the next slot by itself, so that no shape and no address changes from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.cuda import Replay
from texturevlm.ops import MASKED, MOST_PARTS
from texturevlm.ops.split_attention import split_attention
from texturevlm.vlm.loops import fused_norm, rotated, text_rotary, unrotated_heads
from texturevlm.vlm.modules import addresses

ROOM = 256  # buffers have a multiple of it in slots
MANY = 2048  # slots from which one prompt reads them in parts side by side


class Slots(Protocol):
    """Memory of a fixed size for the keys of some layers, and how a new token attends to them; all but `take` runs in
    the graph.

    count: of the slots
    slot:  (B,), where the next token of each prompt goes
    """

    count: int
    slot: Tensor

    def take(self, known: Any, needed: int) -> bool:
        """Take over prompts that need so many slots in all; false if this memory is not made for them."""

    def enter(self) -> None:
        """The token at `slot` is attended to from now on."""

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """(B, H, 1, d), of a layer's query of the same shape to its buffers (B, heads, count, d)."""

    def leave(self) -> None:
        """Go on to the next slot. What is read behind the last one is thrown away: a capture runs a few steps more."""


class KnownKeys(Protocol):
    """What is known of the keys of B prompts in some layers, which have the same tokens. length: of the longest"""

    @property
    def length(self) -> int: ...

    def slots(self, count: int, like: Tensor) -> Slots:
        """Memory for them. like: keys of a layer"""


@dataclass(frozen=True, eq=False)
class DenseKeys:
    """Every key is attended to.

    bias:    (B, L), added to the scores: 0, the logarithm of a size, −∞ for what is not attended to
    lengths: of the prompts, which are padded on the right; None: all have L, whatever their padding on the left
    """

    bias: Tensor
    lengths: Sequence[int] | None = None

    @staticmethod
    def of(live: Tensor, size: Tensor | None = None, lengths: Sequence[int] | None = None) -> DenseKeys:
        """live: (B, L), which keys are attended to; size: (B, L), how many tokens each stands for"""
        bias = torch.zeros(live.shape, device=live.device) if size is None else size.float().log()
        return DenseKeys(bias.masked_fill(~live.bool(), MASKED), lengths)

    @property
    def length(self) -> int:
        return self.bias.shape[1]

    def slots(self, count: int, like: Tensor) -> DenseSlots:
        return DenseSlots(count, like)


class DenseSlots:
    """Slots of which every one in use is attended to. bias: (B, count), added to the scores"""

    def __init__(self, count: int, like: Tensor) -> None:
        self.count = count
        self.bias = like.new_zeros(len(like), count)
        self.slot = torch.zeros(len(like), dtype=torch.int64, device=like.device)

    def take(self, known: KnownKeys, needed: int) -> bool:
        if not isinstance(known, DenseKeys) or needed > self.count:
            return False
        self.bias.fill_(MASKED)
        self.bias[:, : known.length] = known.bias
        lengths = [known.length] * len(self.slot) if known.lengths is None else known.lengths
        self.slot.copy_(torch.tensor(lengths), non_blocking=True)
        return True

    def enter(self) -> None:
        self.bias.scatter_(1, self.slot[:, None], 0.0)

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        # Heads that share keys are the rows of one head: nothing is repeated.
        shared = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        if len(query) == 1 and self.count >= MANY:
            rows = self.bias.expand(shared.shape[2], -1)
            found = split_attention(shared[0], keys[0], values[0], rows, scale=scale, parts=MOST_PARTS)
        else:
            bias = self.bias[:, None, None]
            found = functional.scaled_dot_product_attention(shared, keys, values, attn_mask=bias, scale=scale)
        return found.reshape(query.shape)

    def leave(self) -> None:
        self.slot.add_(1).clamp_(max=self.count - 1)


class CapturedDecode:
    """Reads token after token behind B prompts that were read.

    adapter: of a Qwen model; `stale` says whether that was moved since
    buffers: keys and values of each layer in turn, (B, heads, slots, d)
    slots:   of some layers each
    owner:   per layer, which of them are its own
    replay:  of one step, once it was needed
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.buffers: list[Tensor] = []
        self.slots: list[Slots] = []
        self.owner: list[int] = []
        self.replay: Replay | None = None
        self._known: list[Any] = []
        self._new = 0
        self._weights = addresses(adapter.model)

    @property
    def stale(self) -> bool:
        """Whether the model was moved, cast or given other weights, as of CapturedPrefill."""
        return self._weights != addresses(self.adapter.model)

    def begin(self, caches: Sequence[Tensor], known: Sequence[KnownKeys], new: int) -> None:
        """Take over prompts that were read: their keys and values are copied.

        caches: keys and values of each layer in turn, (B, heads, at least L, d)
        known:  of each layer; layers with the same tokens share one
        new:    the most tokens that will be read
        """
        self._known, self._new = list(dict.fromkeys(known)), new
        owner = [self._known.index(keys) for keys in known]
        if not (self._alike(caches, owner) and self._taken()):
            self._make_room(caches, owner)
        for number, (buffer, cache) in enumerate(zip(self.buffers, caches, strict=True)):
            length = known[number // 2].length
            buffer[:, :, :length] = cache[:, :, :length]

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """(B, V), the logits behind the next token of each prompt; the next call overwrites them.

        ids:      (B, 1)
        position: (3, B, 1)
        """
        if self.replay is None:
            self.replay = Replay(self._step, [ids, position])
            self._taken()  # again: the capture ran a few steps
        self._known = []
        (logits,) = self.replay(ids, position)
        return logits

    def layers(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of the keys and values of the first so many slots, per layer."""
        kept = [buffer[:, :, :length].clone() for buffer in self.buffers]
        return list(zip(kept[::2], kept[1::2]))

    def release(self) -> None:
        """Free the graph and the buffers."""
        self.buffers, self.slots, self.owner, self.replay = [], [], [], None

    def _alike(self, caches: Sequence[Tensor], owner: Sequence[int]) -> bool:
        """Whether the buffers are for such caches, whatever their lengths."""
        kinds = [
            [(part.shape[:2], part.shape[3], part.dtype, part.device) for part in some]
            for some in (self.buffers, caches)
        ]
        return self.owner == owner and kinds[0] == kinds[1]

    def _taken(self) -> bool:
        return all(
            slots.take(keys, keys.length + self._new) for slots, keys in zip(self.slots, self._known, strict=True)
        )

    def _make_room(self, caches: Sequence[Tensor], owner: list[int]) -> None:
        self.release()
        with torch.inference_mode(False):  # tensors made in inference mode could not be written to outside of it
            keys = dict(zip(owner, caches[::2]))
            for number, keys_known in enumerate(self._known):
                count = -(-(keys_known.length + self._new) // ROOM) * ROOM
                self.slots.append(keys_known.slots(count, keys[number]))
            self.buffers = [
                cache.new_zeros(*cache.shape[:2], self.slots[owner[number // 2]].count, cache.shape[3])
                for number, cache in enumerate(caches)
            ]
            taken = self._taken()
        assert taken
        self.owner = owner

    def _step(self, ids: Tensor, position: Tensor) -> tuple[Tensor]:
        adapter = self.adapter
        language = adapter.language_of(adapter.model)
        hidden = language.embed_tokens(ids)
        rotary = text_rotary(language, hidden, position)
        for slots in self.slots:
            slots.enter()
        for number, layer in enumerate(language.layers):
            slots, (keys, values) = self.slots[self.owner[number]], self.buffers[2 * number : 2 * number + 2]
            hidden = decode_step(layer, number, hidden, rotary, slots, keys, values, adapter.normed_heads)
        for slots in self.slots:
            slots.leave()
        return (adapter.model.lm_head(fused_norm(language.norm, hidden))[:, 0],)


def decode_step(
    layer: Any,
    number: int,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    slots: Slots,
    keys: Tensor,
    values: Tensor,
    normed: bool,
) -> Tensor:
    """One layer of a Qwen language model, by its number, for one token per prompt: hidden (B, 1, D).

    keys, values: (B, heads, slots, d), in which those of the token are written
    """
    attention = layer.self_attn
    given = fused_norm(layer.input_layernorm, hidden)
    query, key = (rotated(heads, *rotary) for heads in unrotated_heads(attention, given, normed, fused=True))
    value = attention.v_proj(given).view(len(hidden), 1, -1, attention.head_dim).transpose(1, 2)
    spot = slots.slot[:, None, None, None].expand_as(key)
    keys.scatter_(2, spot, key)
    values.scatter_(2, spot, value)
    found = slots.attend(number, query, keys, values, attention.scaling)
    hidden = hidden + attention.o_proj(found.reshape(len(hidden), 1, -1))
    mixed: Tensor = layer.mlp(fused_norm(layer.post_attention_layernorm, hidden))
    return hidden + mixed
