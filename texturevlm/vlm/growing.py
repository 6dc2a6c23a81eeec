"""A prompt that grows: pictures, and later more tokens of the same pictures, are appended to the model's K/V cache.

Nothing that was read is computed again. A token that is appended stands at its true row and column, counted from where
its picture began, and text behind pictures resumes where it would behind the full images, so text positions do not
depend on how many tokens were appended. The end of the prompt (the question, or what asks for an answer) is read anew
for every answer and forgotten afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.adapter import Adapter, answer_ids
from texturevlm.vlm.families.qwen import INPUTS, QwenAdapter
from texturevlm.vlm.loops import query_and_key, text_rotary
from texturevlm.vlm.mrope import mrope_positions
from texturevlm.vlm.packed import unpack
from texturevlm.vlm.views import View, joined_views


class Enough(Exception):
    """Ends the forward pass of a language model once a layer was reached."""


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
        left = [index for index, one in enumerate(ids) if one in self.adapter.visual_ids]
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
        embeds = [one[-len(view) :] for one in self._embedded([both])]
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

    def logits(self, ids: Sequence[int]) -> Tensor:
        """(1, V), of the token behind these ids; the cache stays as it was."""
        read, tail = len(self.ids), torch.arange(len(ids), device=self.adapter.device) + self.next
        position = tail.to(self.position).expand(3, 1, -1)
        try:
            hidden = self._forward(ids, position, []).last_hidden_state[:, -1:]
        finally:
            self.crop(read)
        logits: Tensor = self.adapter.model.lm_head(hidden)[:, 0]
        return logits

    def attention(self, ids: Sequence[int]) -> Tensor:
        """(n,): how much these ids, which would follow, attend to each visual token that was read; sums to 1.

        The mean over them and over the heads of the middle layer; the cache stays as it was.
        """
        read, tail = len(self.ids), torch.arange(len(ids), device=self.adapter.device) + self.next
        position = tail.to(self.position).expand(3, 1, -1)
        language = self.adapter.language_of(self.adapter.model)
        number = len(language.layers) // 2
        found: list[Tensor] = []

        def stop_here(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            rotary = text_rotary(language, hidden, position)
            query, _ = query_and_key(attention, hidden, *rotary, self.adapter.normed_heads)
            key = self.cache.layers[number].keys[..., :read, :]
            found.append(attention_to(query, key, attention.scaling))
            raise Enough

        hook = language.layers[number].self_attn.register_forward_pre_hook(stop_here, with_kwargs=True)
        try:
            with contextlib.suppress(Enough):
                self._forward(ids, position, [])
        finally:
            hook.remove()
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
        return [torch.cat(one) for one in self.adapter.embed(views, coordinates=self.coordinates)]

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
