"""Prompts that stay in a language model and grow: appended to its K/V cache, or in slots at fixed addresses.

`GrowingPrompt` appends pictures, and later more tokens of the same pictures, to the model's cache. Nothing that was
read is computed again. A token that is appended stands at its true row and column, counted from where its picture
began, and text behind pictures resumes where it would behind the full images, so text positions do not depend on how
many tokens were appended. The end of the prompt is read anew for every answer and forgotten afterwards.

`TokenMemory` holds embeddings, keys and values in slots. Which token follows which is a number per slot (`order`), not
its place, so tokens can be replaced, added in between and taken out. Keys are kept as they are before the rotary
embedding, and once more rotated to where the tokens stand now: when positions move, keys are rotated again and nothing
else is computed. `run` computes any tokens anew, through all layers, against the others as they are. If those are all
tokens, the result is that of the model from scratch. On a GPU `run` is a CUDA graph per number of tokens, rounded up,
so an hour of frames needs no memory that the first frames did not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda.graph import KeptReplays
from texturevlm.ops.split_attention import KEYS_ALIGNED, MASKED, key_parts, split_attention
from texturevlm.vlm.adapter import Adapter, answer_ids
from texturevlm.vlm.families.qwen import INPUTS, QwenAdapter
from texturevlm.vlm.loops import fused_norm, query_and_key, rotated, text_rotary, unrotated_heads
from texturevlm.vlm.places import mrope_positions, unpack
from texturevlm.vlm.views import View, joined_views


class LayerReached(Exception):
    """Ends the forward pass of a language model once a layer was reached."""


def read_until(layer: Any, look: Callable[[Any, Tensor], None], run: Callable[[], Any]) -> None:
    """Run a language model until `look` has got a layer's attention and its input; nothing behind that is computed."""

    def stop_here(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        look(attention, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        raise LayerReached

    hook = layer.self_attn.register_forward_pre_hook(stop_here, with_kwargs=True)
    try:
        with contextlib.suppress(LayerReached):
            run()
    finally:
        hook.remove()


def attention_to(query: Tensor, key: Tensor, scaling: float, mask: Tensor | None = None) -> Tensor:
    """(L,): softmax attention of queries (1, heads, n, d) to keys (1, key heads, L, d), the mean over n and heads.

    mask: (1, n, L), what each query sees
    """
    query, key = query[0].float(), key[0].float()
    shared = query.unflatten(0, (len(key), -1))  # heads that share keys stand together: keys need not be copied
    scores = (shared.flatten(1, 2) @ key.mT).unflatten(1, shared.shape[1:3]) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights: Tensor = scores.softmax(-1).mean((0, 1, 2))
    return weights


class GrowingPrompt:
    """One prompt of a model with M-RoPE.

    adapter:  a QwenAdapter, bound
    cache:    keys and values of what was read
    ids:      what was read, one placeholder per visual token
    position: (3, 1, L), of each of them
    starts:   where each picture begins, in positions
    """

    def __init__(self, adapter: Adapter, *, coordinates: str | None = None) -> None:
        from transformers import DynamicCache

        if not isinstance(adapter, QwenAdapter):
            raise ValueError(f"ask: model must be of a Qwen family to append tokens, got {adapter.config.model_type}")
        self.adapter, self.coordinates = adapter, coordinates
        self.cache = DynamicCache(config=adapter.model.config.get_text_config())
        self.ids: list[int] = []
        self.position = torch.zeros(3, 1, 0, device=adapter.device)
        self.starts: list[Tensor] = []
        self.next = 0  # position of the text that would follow

    def read(self, ids: Sequence[int], views: Sequence[View] = ()) -> None:
        """Append text with whole pictures.

        ids:   one placeholder per visual token
        views: of the pictures, in order
        """
        position, delta = self._positions(ids, views)
        left = [index for index, token in enumerate(ids) if token in self.adapter.visual_ids]
        for view in views:
            self.starts.append(position[0, 0, left[0]] - float(self.adapter.moment(view)[0]))
            left = left[len(view) :]
        self._run(ids, position, self._embedded(views))
        self.next += len(ids) + delta

    def look_closer(self, picture: int, view: View, *, beside: View | None = None) -> None:
        """Append tokens to a picture that was read.

        picture: its number
        beside:  the tokens of the picture that were read, if the view's levels are causal: those of the view attend to
                 them in the tower
        """
        moment = self.adapter.moment(view)[:, None].to(self.position)
        token = self.adapter.places(view, self.coordinates).token.to(self.position)
        place = torch.cat([moment, token], 1).T[:, None] + self.starts[picture]
        both = view if beside is None else joined_views([beside, view])
        embeds = [part[-len(view) :] for part in self._embedded([both])]
        self._run([self.adapter.visual_ids[view.video]] * len(view), place, embeds)

    def answer(self, ids: Sequence[int], **options: Any) -> Any:
        """The ids of an answer, or what else `generate` returns, to a prompt that ends with these ids.

        What was read stays as it was: the end and the answer leave the cache.
        """
        read, tail = len(self.ids), torch.arange(len(ids), device=self.adapter.device) + self.next
        whole = torch.cat([self.position, tail.to(self.position).expand(3, 1, -1)], -1)
        count = torch.arange(whole.shape[-1], device=whole.device).to(whole)
        table = torch.tensor([[*self.ids, *ids]], device=self.adapter.device)
        inputs = {
            "input_ids": table,
            "attention_mask": torch.ones_like(table),
            "position_ids": torch.cat([count.expand(1, 1, -1), whole]),
        }
        try:
            found = self.adapter.model.generate(**inputs, past_key_values=self.cache, **options)
        finally:
            self.crop(read)
        return answer_ids(found, table.shape[1])

    def attention(self, ids: Sequence[int]) -> Tensor:
        """(n,): how much these ids, which would follow, attend to each visual token that was read; sums to 1.

        The mean over them and over the heads of the middle layer; the cache stays as it was.
        """
        read, tail = len(self.ids), torch.arange(len(ids), device=self.adapter.device) + self.next
        position = tail.to(self.position).expand(3, 1, -1)
        language = self.adapter.language_of(self.adapter.model)
        number = len(language.layers) // 2
        found: list[Tensor] = []

        def look(attention: Any, hidden: Tensor) -> None:
            rotary = text_rotary(language, hidden, position)
            query, _ = query_and_key(attention, hidden, *rotary, self.adapter.normed_heads)
            key = self.cache.layers[number].keys[..., :read, :]
            found.append(attention_to(query, key, attention.scaling))

        try:
            read_until(language.layers[number], look, lambda: self._forward(ids, position, []))
        finally:
            self.crop(read)
        visual = torch.isin(torch.tensor(self.ids), torch.tensor(self.adapter.visual_ids)).to(found[0].device)
        seen = found[0][visual]
        return seen / seen.sum().clamp(min=1e-30)

    def crop(self, length: int) -> None:
        """Forget what was read behind the first so many tokens."""
        for layer in self.cache.layers:
            if layer.is_initialized and layer.get_seq_length() > length:
                layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        del self.ids[length:]
        self.position = self.position[..., :length]

    def _run(self, ids: Sequence[int], position: Tensor, embeds: Sequence[Tensor]) -> None:
        self._forward(ids, position, embeds)
        self.ids += ids
        self.position = torch.cat([self.position, position.to(self.position)], -1)

    def _forward(self, ids: Sequence[int], position: Tensor, embeds: Sequence[Tensor]) -> Any:
        """Run the language model. embeds: (n, D) of the visual tokens, then those for DeepStack"""
        table = torch.tensor([list(ids)], device=self.adapter.device)
        count = torch.arange(len(ids), device=table.device) + self.cache.get_seq_length()
        counted = torch.cat([count.to(position).expand(1, 1, -1), position])
        language = self.adapter.language_of(self.adapter.model)
        hidden, more = language.embed_tokens(table), {}
        if embeds:
            visual = torch.isin(table, torch.tensor(self.adapter.visual_ids, device=table.device))
            hidden = hidden.masked_scatter(visual[..., None], embeds[0].to(hidden))
            if len(embeds) > 1:
                more = {"visual_pos_masks": visual, "deepstack_visual_embeds": list(embeds[1:])}
        cache = {"past_key_values": self.cache, "use_cache": True}
        return language(inputs_embeds=hidden, position_ids=counted, **cache, **more)

    def _embedded(self, views: Sequence[View]) -> list[Tensor]:
        """What the tower makes of all views together: (n, D) each, the tokens, then those for DeepStack."""
        if not views:
            return []
        return [torch.cat(parts) for parts in self.adapter.embed(views, coordinates=self.coordinates)]

    def _positions(self, ids: Sequence[int], views: Sequence[View]) -> tuple[Tensor, int]:
        """(3, 1, n), and by how much the text behind is further than the number of ids."""
        inputs = self.adapter.pixel_inputs(views, coordinates=self.coordinates)
        tokens = {
            mark: unpack(inputs[name], self.adapter.row_width)[1].of_tokens(self.adapter.merge)
            for mark, (name, _) in zip(self.adapter.visual_ids, INPUTS.values())
            if name in inputs
        }
        where = next((geometry.token.device for geometry in tokens.values()), None)  # as the pictures are
        position, delta = mrope_positions(torch.tensor([list(ids)], device=where), None, tokens)
        return position.to(self.adapter.device) + self.next, int(delta)


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
        """Forget the tokens in these slots, which are free again."""
        self.live.index_fill_(0, self._index(slots), False)
        self.free += slots

    @torch.no_grad()
    def write(self, slots: Sequence[int], embeds: Sequence[Tensor]) -> None:
        """Put tokens into slots. embeds: (n, D), then those for DeepStack; text has none of these"""
        index = self._index(slots)
        self.live.index_fill_(0, index, True)
        given = torch.stack([layer.to(self.embeds) for layer in embeds])
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
        cos, sin = (part[0] for part in text_rotary(self.language, self.embeds[0][None], self.position[:, None]))
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
