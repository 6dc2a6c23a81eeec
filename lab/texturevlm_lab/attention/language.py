"""A language model that attends hierarchically: `hierarchical_attention` as an implementation for transformers.

For as long as it is hooked, the language model's attention implementation is ours. Before each forward pass the visual
tokens of the prompt are laid out along the quadtree of their places, which are in the packed rows; the layout serves
all layers. The model stays causal: a block that a query sees in part is read token by token, and summaries are of
blocks that come before it. Prompts without visual tokens, and passes of other shapes, are dense (SDPA).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from texturevlm.vlm import Override
from texturevlm.vlm.captured_decode import KnownKeys
from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.decode import LaidKeys
from texturevlm_lab.attention.hierarchical import attend_laid_out
from texturevlm_lab.attention.implementation import IMPLEMENTATION, Named
from texturevlm_lab.attention.key_value_texture import KeyValueTexture
from texturevlm_lab.attention.options import AttentionOptions, check_attention
from texturevlm_lab.attention.token_order import ROW_INPUTS, visual_order


def attend_hierarchically(adapter: Any, options: AttentionOptions) -> AttentionRun:
    """Hook the language model of a bound adapter, until the adapter is restored."""
    check_attention("attend_hierarchically", adapter.config)
    if adapter.language_of(adapter.model).config._attn_implementation == IMPLEMENTATION:
        raise ValueError("attend_hierarchically: model must attend densely, got one that is hooked; detach it first")
    run = AttentionRun(adapter, options)
    adapter.also(run.hooks())
    return run


@dataclass(eq=False)
class LaidPrompt:
    """What is remembered of a prompt while its answer is generated.

    visual:   (B, n), its visual tokens along the quadtree, -1 for none
    live:     (B, L), or None if all are
    textures: per layer, of the visual keys and values
    latest:   the layout of the token that was generated last
    """

    visual: Tensor
    live: Tensor | None
    textures: dict[int, KeyValueTexture]
    latest: BlockLayout | None = None


class AttentionRun:
    """The state of one hooked language model."""

    def __init__(self, adapter: Any, options: AttentionOptions) -> None:
        self.adapter, self.options = adapter, options
        self.language = adapter.language_of(adapter.model)
        self.layout: BlockLayout | None = None  # of the forward pass that runs
        self.prompt: LaidPrompt | None = None
        self.keeps = False  # whether a cache keeps the keys of this pass
        self.chosen: Tensor | None = None  # by the layer that chose last
        self._towers: dict[str, Override] = {}
        self._ids: Tensor | None = None
        self._rows: dict[str, Tensor] = {}  # what the vision tower got last: `generate` runs it before the model
        self._prompts: WeakKeyDictionary[Any, LaidPrompt] = WeakKeyDictionary()  # cache → prompt

    def hooks(self) -> Iterator[Any]:
        """Hook the model; yields what has `remove`."""
        model = self.adapter.model.model
        for name in ROW_INPUTS:
            if hasattr(model, name):
                self._towers[name] = Override(model, name, partial(self._features, name))
                yield self._towers[name]
        yield model.register_forward_pre_hook(self._before_model, with_kwargs=True)
        yield self.language.register_forward_pre_hook(self._before_language, with_kwargs=True)
        yield self.language.register_forward_hook(self._after_language, always_call=True)
        yield Named(self, [layer.self_attn for layer in self.language.layers], self.language.config)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prompts": None}  # caches stay where they are

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _prompts=WeakKeyDictionary())

    def _features(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._rows[name] = args[0] if args else kwargs[ROW_INPUTS[name]]
        return self._towers[name].original(*args, **kwargs)

    def _before_model(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._ids = args[0] if args else kwargs.get("input_ids")

    def _before_language(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids, self._ids = self._ids, None
        embeds, cache = kwargs.get("inputs_embeds"), kwargs.get("past_key_values")
        self.layout = self.prompt = self.chosen = None
        if embeds is None:
            return
        past = 0 if cache is None else cache.get_seq_length()
        self.keeps = cache is not None
        if past == 0 and ids is not None and ids.shape == embeds.shape[:2]:
            self.prompt = self._new_prompt(ids, kwargs.get("attention_mask"))
            if self.prompt is not None and cache is not None:
                self._prompts[cache] = self.prompt
        elif past and cache in self._prompts:
            self.prompt = self._prompts[cache]
        if self.prompt is not None and len(self.prompt.visual) == len(embeds):  # else a cache was repeated since then
            self.layout = self._layout(self.prompt, embeds.shape[1], past + embeds.shape[1])

    def _after_language(self, module: Any, args: tuple[Any, ...], out: Any) -> None:
        self.layout = self.prompt = self.chosen = None

    def _new_prompt(self, ids: Tensor, mask: Any) -> LaidPrompt | None:
        marks = torch.tensor(self.adapter.visual_ids, device=ids.device)
        visual = torch.isin(ids, marks)
        if mask is not None and (not isinstance(mask, Tensor) or mask.shape != ids.shape):
            return None
        live = None if mask is None or bool(mask.all()) else mask.bool()
        if live is not None:
            visual = visual & live
        if not bool(visual.any()):
            return None
        return LaidPrompt(visual_order(self.adapter, ids, visual, self._rows), live, {})

    def _layout(self, prompt: LaidPrompt, queries: int, keys: int) -> BlockLayout:
        if queries > 1:
            return self._new_layout(prompt, queries, keys)
        latest = prompt.latest
        if latest is None or latest.length not in (keys, keys - 1):  # the cache was cut
            latest = self._new_layout(prompt, queries, keys)
        prompt.latest = latest.next_token() if latest.length < keys else latest
        return prompt.latest

    def known(self, cache: Any, given: Mapping[str, Any]) -> list[KnownKeys] | None:
        """What a captured decoding must know of the prompts in a cache, per layer; None: it must not be captured."""
        prompt, layers = self._prompts.get(cache), len(self.language.layers)
        if prompt is None or len(prompt.textures) < layers or self.options.kind == "latent":
            return None  # not laid out; or eigenvectors, for which the host waits
        layout = self._new_layout(prompt, 1, cache.get_seq_length())
        return [LaidKeys(layout, [prompt.textures[layer] for layer in range(layers)], self.options)] * layers

    def _new_layout(self, prompt: LaidPrompt, queries: int, keys: int) -> BlockLayout:
        live = prompt.live
        if live is not None:
            live = torch.cat([live, live.new_ones(len(live), keys - live.shape[1])], 1)
        own = self.options
        return BlockLayout.of(
            len(prompt.visual),
            queries,
            keys,
            visual=prompt.visual,
            live=live,
            padded=True,
            causal=True,
            block=own.block,
            group=own.group,
            neighbours=None if own.kind == "linear" else own.neighbours,
            device=prompt.visual.device,
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor | None:
        """The output of one layer, (B, H, Q, D); None: it attends densely."""
        if self.layout is None or self.prompt is None or self.layout.length != k.shape[2]:
            return None
        own, textures = self.options, self.prompt.textures
        if layer not in textures and self.keeps:
            textures[layer] = KeyValueTexture.of(k, v, table=self.layout.table, block=own.block)
        out, self.chosen = attend_laid_out(
            q,
            k,
            v,
            self.layout,
            scale=options["scaling"],
            fine=own.fine,
            kind=own.kind,
            rank=own.rank,
            texture=textures.get(layer),
            chosen=self.chosen if layer % own.share else None,
        )
        return out
