"""Tokens that stay in a language model: their embeddings, keys and values lie in slots at fixed addresses.

Which token follows which is a number per slot (`order`), not its place, so tokens can be replaced, added in between and
taken out. Keys are kept as they are before the rotary embedding, and once more rotated to where the tokens stand now:
when positions move, keys are rotated again and nothing else is computed. `run` computes any tokens anew, through all
layers, against the others as they are. If those are all tokens, the result is that of the model from scratch.

On a GPU `run` is a CUDA graph per number of tokens, rounded up, so an hour of frames needs no memory that the first
frames did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda import KeptReplays
from texturevlm.ops import KEYS_ALIGNED, MASKED, key_parts
from texturevlm.ops.split_attention import split_attention
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.growing import attention_to
from texturevlm.vlm.loops import fused_norm, rotated, text_rotary, unrotated_heads

RUN_SIZES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # tokens per run, rounded up; above the last in multiples of it
RUN_GRAPHS = 16  # all sizes of frames and some of questions stay captured


def check_watchable(adapter: Any) -> None:
    """Raise if a model cannot watch: its layers run in a loop of their own here."""
    if not isinstance(adapter, QwenAdapter) or not adapter.captured:
        wanted = "of a Qwen-VL family whose layers can be captured (docs/models.md)"
        raise ValueError(f"VideoStream: model must be {wanted}, got {adapter.config.model_type}")


class TokenMemory:
    """Slots for the tokens of one prompt.

    adapter:   a QwenAdapter, bound
    capacity:  tokens at most
    live:      (C,), which slots hold a token; C is the capacity and a few more
    order:     (C,), tokens attend to those of a lower or the same number
    position:  (3, C), time, row and column
    attention: (C,), how much the last token of the last run attended to each, in the middle layer
    """

    def __init__(self, adapter: Any, capacity: int) -> None:
        check_watchable(adapter)
        self.adapter, self.capacity = adapter, check_count("VideoStream", "limit", capacity, 1)
        self.language = adapter.language_of(adapter.model)
        first, device = self.language.layers[0].self_attn, adapter.device
        config, dtype = adapter.model.config.get_text_config(), adapter.model.dtype
        heads = first.k_proj.out_features // first.head_dim
        self.trash = -(-(capacity + 1) // KEYS_ALIGNED) * KEYS_ALIGNED - 1  # the slot that takes the padding of a run
        total = self.trash + 1
        shape = (len(self.language.layers), heads, total, first.head_dim)
        self.keys, self.turned, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(3))
        layers = 1 + len(adapter.deepstack_mergers)
        self.embeds = torch.zeros(layers, total, config.hidden_size, dtype=dtype, device=device)
        self.position = torch.zeros(3, total, device=device)
        self.order = torch.full((total,), -1, dtype=torch.int64, device=device)
        self.live = torch.zeros(total, dtype=torch.bool, device=device)
        self.attention = torch.zeros(total, device=device)
        self.free = list(range(capacity))[::-1]
        self.graphs = KeptReplays(RUN_GRAPHS)
        self._normed = adapter.normed_heads
        self.groups = first.q_proj.out_features // first.k_proj.out_features

    def take(self, count: int) -> list[int]:
        """Slots for new tokens; they must be written before they are run."""
        if count > len(self.free):
            raise ValueError(f"VideoStream: limit must leave room for {count} more tokens, got {len(self.free)} left")
        return [self.free.pop() for _ in range(count)]

    def give_back(self, slots: Sequence[int]) -> None:
        """Forget tokens."""
        self.live.index_fill_(0, self._index(slots), False)
        self.free += slots

    @torch.no_grad()
    def write(self, slots: Sequence[int], embeds: Sequence[Tensor]) -> None:
        """Put tokens into slots. embeds: (n, D), then those for DeepStack; text has none of these"""
        index = self._index(slots)
        self.live.index_fill_(0, index, True)
        given = torch.stack([one.to(self.embeds) for one in embeds])
        self.embeds[: len(embeds)].index_copy_(1, index, given)
        self.embeds[len(embeds) :].index_fill_(1, index, 0.0)

    @torch.no_grad()
    def write_text(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Put the tokens of a text into slots."""
        table = torch.tensor(list(ids), dtype=torch.int64, device=self.embeds.device)
        self.write(slots, [self.language.embed_tokens(table)])

    def place(self, slots: Sequence[int], order: Sequence[int], position: Tensor) -> None:
        """Where tokens stand: their numbers, and their positions (3, n). Keys that are there already stay as they were.

        `turn` rotates them again.
        """
        index = self._index(slots)
        self.order[index] = torch.tensor(list(order), device=index.device)
        self.position[:, index] = position.to(self.position)

    @torch.no_grad()
    def turn(self) -> None:
        """Rotate all keys to where their tokens stand now."""
        cos, sin = (one[0] for one in text_rotary(self.language, self.embeds[0][None], self.position[:, None]))
        self.turned.copy_(rotated(self.keys, cos, sin))

    @torch.no_grad()
    def run(self, slots: Sequence[int]) -> None:
        """Compute tokens anew, in the slots given."""
        index = self._padded(slots)
        self.graphs.find(len(index), self._layers, [index])(index)

    @torch.no_grad()
    def ask(self, slots: Sequence[int]) -> Tensor:
        """The same; returns the logits (V,) of what follows the last of them, and `attention` is its attention."""
        index, last = self._padded(slots), torch.tensor([len(slots) - 1], device=self.live.device)
        found = self.graphs.find((len(index), "asking"), self._layers, [index, last])(index, last)
        self.attention.copy_(found[1])
        return found[0].clone()

    def _padded(self, slots: Sequence[int]) -> Tensor:
        size = next((size for size in RUN_SIZES if size >= len(slots)), -(-len(slots) // RUN_SIZES[-1]) * RUN_SIZES[-1])
        return self._index([*slots, *[self.trash] * (size - len(slots))])

    def _layers(self, index: Tensor, last: Tensor | None = None) -> tuple[Tensor, ...]:
        """last: which of them is asked for what follows; None: none is"""
        hidden = self.embeds[0][index][None]
        cos, sin = text_rotary(self.language, hidden, self.position[:, index][:, None])
        earlier = self.live & (self.order <= self.order[index][:, None])
        itself = torch.arange(len(self.live), device=index.device) == index[:, None]  # padding sees itself alone
        mask = earlier | itself
        heads, groups = self.keys.shape[1], self.groups
        # Queries that share keys stand in one head, one below the other: no kernel copies keys for them.
        bias = torch.zeros_like(mask, dtype=hidden.dtype).masked_fill(~mask, MASKED).repeat(groups, 1)
        parts = key_parts(heads, groups * len(index))
        middle, attention = len(self.language.layers) // 2, self.attention
        for number, layer in enumerate(self.language.layers):
            given, own = fused_norm(layer.input_layernorm, hidden), layer.self_attn
            query, key = unrotated_heads(own, given, self._normed, fused=True)
            value = own.v_proj(given).view(1, len(index), -1, own.head_dim).transpose(1, 2)
            query, turned = rotated(torch.cat([query, key], 1), cos, sin).split([heads * groups, heads], 1)
            self.keys[number].index_copy_(1, index, key[0])
            self.turned[number].index_copy_(1, index, turned[0])
            self.values[number].index_copy_(1, index, value[0])
            keys, values = self.turned[number], self.values[number]
            stacked = query.reshape(heads, groups * len(index), -1)
            found = split_attention(stacked, keys, values, bias, scale=own.scaling, parts=parts)
            apart = found.reshape(1, heads * groups, len(index), -1).transpose(1, 2)
            hidden = hidden + own.o_proj(apart.reshape(1, len(index), -1))
            hidden = hidden + layer.mlp(fused_norm(layer.post_attention_layernorm, hidden))
            if number + 1 < len(self.embeds):
                hidden = hidden + self.embeds[number + 1][index]
            if number == middle and last is not None:
                asking = query[:, :, last]
                attention = attention_to(asking, keys[None], own.scaling, mask[None, last])
        if last is None:
            return (hidden,)
        return self.adapter.model.lm_head(self.language.norm(hidden[0, last]))[0], attention

    def _index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(list(slots), dtype=torch.int64, device=self.live.device)
