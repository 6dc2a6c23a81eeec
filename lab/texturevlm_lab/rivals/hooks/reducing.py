"""Run a model with reductions: visual tokens leave in the tower, behind the projector, in the language model, or later.

For as long as `reduced` lasts, the language model's forward is a loop over its own layers, between which tokens may
leave. What leaves before the projector is the business of tower.py, what leaves while decoding that of decode.py.
Tokens keep their rotary positions, DeepStack's features leave or merge with them, and merged tokens attend with
+ log(size). Layers have keys of different lengths, so each has a mask of its own, during decoding too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from texturevlm.vlm import Override
from texturevlm.vlm.captured_decode import DenseKeys, KnownKeys
from texturevlm.vlm.loops import query_and_key, text_rotary
from texturevlm_lab.rivals import PLACES, Context, Planned, ReduceStep, Reduction, planned, stage_budget
from texturevlm_lab.rivals.hooks.decode import DecodeReduction, Held, Slots
from texturevlm_lab.rivals.hooks.low_rank import load_difference
from texturevlm_lab.rivals.hooks.masks import Keys
from texturevlm_lab.rivals.hooks.reducible import check_reducible
from texturevlm_lab.rivals.hooks.scan import scan_of
from texturevlm_lab.rivals.hooks.seen import Seen, seen_by_prompt
from texturevlm_lab.rivals.hooks.sequence import Sequence

REPLACED = ("input_ids", "attention_mask", "visual_pos_masks", "deepstack_visual_embeds")  # what layers do not take
WATCHED = {"keys", "received", "shallow"}  # fields of a Context behind the projector that come from the tower


@contextmanager
def reduced(
    adapter: Any, steps: List[ReduceStep], *, endings: List[int] | None = None, function: str = "reduce"
) -> Iterator[Reducing | None]:
    """Inside, the model of an adapter reduces the visual tokens of every prompt. One thread at a time: hold its lock.

    adapter: bound
    steps:   in the order in which they act; none: nothing changes
    endings: per prompt, tokens at its end that are an answer to be judged: no reduction looks at them
    """
    if not steps:
        yield None
        return
    run = Reducing(adapter, steps, endings, function)
    undo: list[Any] = []
    try:
        for one in run.hooks():
            undo.append(one)
        yield run
    finally:
        while undo:
            undo.pop().remove()


class Reducing:
    """The state of `reduced`."""

    def __init__(self, adapter: Any, steps: List[ReduceStep], endings: List[int] | None, function: str) -> None:
        check_reducible(function, adapter.config, steps)
        self.adapter, self.language = adapter, adapter.language_of(adapter.model)
        self.implementation = self.language.config._attn_implementation
        plan = planned(function, steps, len(self.language.layers), adapter.tower_depth)
        at = {place: [one for one in plan if one.stage.place == place] for place in PLACES}
        self.plan = at["projector"] + at["llm"]
        needed = {name for one in at["projector"] for name in one.stage.needs}
        self.scan = scan_of(adapter, needed & WATCHED, at["pixels"] + at["tower"])
        normed = adapter.normed_heads
        self.decoding = DecodeReduction(self.language, at["decode"], self._axes, normed) if at["decode"] else None
        blocks = adapter.tower_blocks
        self.differences = [load_difference(function, one.difference, blocks) for one in steps if one.difference]
        self.endings = endings
        self._ids: Tensor | None = None
        self._held: WeakKeyDictionary[Any, Held] = WeakKeyDictionary()  # by cache

    def hooks(self) -> Iterator[Any]:
        """Hook the model; yields what has `remove`."""
        if self.scan.tower is not None:
            yield from self.scan.tower.hooks()
            for one in self.differences:
                yield from one.hooks(self.adapter.tower_blocks)
            self._generate = Override(self.adapter.model, "generate", self._generated)
            yield self._generate
        yield from self.scan.hooks()
        yield self.adapter.model.model.register_forward_pre_hook(self._before_model, with_kwargs=True)
        self._forward = Override(self.language, "forward", self._language_forward)
        yield self._forward

    def known(self, cache: Any, given: Mapping[str, Any]) -> list[KnownKeys] | None:
        """What a captured decoding must know of the prompts in a cache, per layer; None: it must not be captured."""
        held = self._held.get(cache)
        if held is None or self.decoding is not None:
            return None
        of = {id(keys): DenseKeys.of(keys.live, keys.size) for keys in held.keys}  # layers share them
        return [of[id(keys)] for keys in held.keys]

    def _generated(self, *args: Any, **kwargs: Any) -> Any:
        """`generate` may run the tower before the model: which prompts the images belong to must be known by then."""
        assert self.scan.tower is not None
        self.scan.tower.ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        return self._generate.original(*args, **kwargs)

    def _before_model(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._ids = args[0] if args else kwargs.get("input_ids")
        if self.scan.tower is not None:
            self.scan.tower.ids = self._ids

    def _language_forward(self, **given: Any) -> Any:
        ids, self._ids = self._ids, None
        known = None if given.get("past_key_values") is None else self._held.get(given["past_key_values"])
        if known is not None:
            return self._run(partial(self._continued, held=known), **given)
        seen = [] if ids is None else seen_by_prompt(self.scan.runs(), ids, self.adapter.visual_ids)
        if ids is None or not seen:  # text alone
            return self._forward.original(**given)
        visual = torch.isin(ids, torch.tensor(self.adapter.visual_ids, device=given["inputs_embeds"].device))
        signs = getattr(self.adapter.tokenizer, "all_special_ids", [])
        special = torch.isin(ids, torch.tensor(signs, dtype=ids.dtype, device=ids.device)).to(visual.device)
        mask = given.get("attention_mask")
        live = torch.ones_like(visual) if mask is None else mask.bool()
        deepstack = given.pop("deepstack_visual_embeds", None) or ()

        def prompt(hidden: Tensor, position: Tensor, cache: Any, kwargs: dict[str, Any]) -> Tensor:
            sequence = Sequence.of(hidden, position, live, visual & live, special, deepstack)
            return self._prompt(sequence, seen, cache, kwargs)

        return self._run(prompt, **given)

    def _run(
        self,
        layers: Callable[[Tensor, Tensor, Any, dict[str, Any]], Tensor],
        *,
        inputs_embeds: Tensor,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """What is in front of the layers, and behind them."""
        from transformers import DynamicCache
        from transformers.modeling_outputs import BaseModelOutputWithPast

        if past_key_values is None and use_cache:
            past_key_values = DynamicCache(config=self.language.config)
        others = {name: value for name, value in kwargs.items() if name not in REPLACED}
        position = self._positions(position_ids, inputs_embeds, past_key_values)
        hidden = self.language.norm(layers(inputs_embeds, position, past_key_values, others))
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=past_key_values)

    def _prompt(self, sequence: Sequence, seen: List[Seen], cache: Any, kwargs: dict[str, Any]) -> Tensor:
        """Run the prompt; hidden states where its tokens stood."""
        length = sequence.hidden.shape[1]
        held = Held([], [], seen, self._begun(len(seen)))
        if (earlier := [one.reduction() for one in seen])[0] is not None:
            sequence = sequence.reduced([one for one in earlier if one is not None])
        before, around = sequence, {}
        for index, layer in enumerate(self.language.layers):
            due = [one for one in self.plan if one.after == index]
            for one in due:
                contexts = self._contexts(sequence, before, seen, one)
                sequence = sequence.reduced(_reductions(one, contexts, held.targets))
            if due or not held.keys:  # masks and rotary embeddings serve until tokens leave again
                own = Keys.of(sequence.live, sequence.size)
                slots = Slots(sequence.visual, sequence.token, sequence.origin)
                around = self._around(sequence.hidden, sequence.position, own, 0)
            held.keys.append(own)
            held.slots.append(slots)
            before = sequence
            hidden = _layer_output(layer, sequence.hidden, cache, around | kwargs)
            if index < len(sequence.deepstack):
                hidden = hidden + sequence.deepstack[index]
            sequence = replace(sequence, hidden=hidden)
        if cache is not None:
            self._held[cache] = held
        return sequence.restored(length)

    def _begun(self, samples: int) -> dict[tuple[int, int], int]:
        """(step, sample) → what stays, for the steps that began before the projector."""
        known = {} if self.scan.tower is None else self.scan.tower.targets
        prompts = 1 + max((prompt for _, prompt in known), default=samples - 1)
        beams = samples // prompts
        return {(step, beam): target for (step, prompt), target in known.items() for beam in _beams(prompt, beams)}

    def _continued(self, hidden: Tensor, position: Tensor, cache: Any, kwargs: dict[str, Any], *, held: Held) -> Tensor:
        """Run tokens behind a prompt whose keys are in the cache."""
        own, around = None, {}
        for index, (layer, one) in enumerate(zip(self.language.layers, held.keys)):
            if one is not own:
                own, later = one, cache.get_seq_length(index) - one.live.shape[1] + hidden.shape[1]
                around = self._around(hidden, position, own, later)
            if self.decoding is not None:
                self.decoding.watch(index, hidden)
            hidden = _layer_output(layer, hidden, cache, around | kwargs)
        if self.decoding is not None:
            self.decoding.act(held, position, cache)
        return hidden

    def _around(self, hidden: Tensor, position: Tensor, keys: Keys, later: int) -> dict[str, Any]:
        """The arguments of layers that have these keys."""
        mask = keys.mask(hidden.shape[1], later, hidden.dtype, self.implementation)
        return {"attention_mask": mask, "position_embeddings": self.language.rotary_emb(hidden, self._axes(position))}

    # Positions: (B, L, A) here; the model's are (B, L), (3, B, L) or, with those of plain text in front, (4, B, L).

    def _positions(self, given: Tensor | None, hidden: Tensor, cache: Any) -> Tensor:
        if given is None:
            past = 0 if cache is None else cache.get_seq_length()
            given = (torch.arange(hidden.shape[1], device=hidden.device) + past).expand(hidden.shape[:2])
        if given.dim() == 2:
            given = given[None].expand(3 if self._mrope else 1, -1, -1)
        given = given[1:] if len(given) == 4 else given
        return given.movedim(0, -1).expand(len(hidden), -1, -1)

    def _axes(self, position: Tensor) -> Tensor:
        return position.movedim(-1, 0) if self._mrope else position[..., 0]

    @property
    def _mrope(self) -> bool:
        return "mrope_section" in (getattr(self.language.config, "rope_parameters", None) or {})

    # What methods know.

    def _contexts(self, sequence: Sequence, before: Sequence, seen: List[Seen], one: Planned) -> list[Context]:
        return [self._context(sequence, before, sample, own, one) for sample, own in enumerate(seen)]

    def _context(self, sequence: Sequence, before: Sequence, sample: int, seen: Seen, one: Planned) -> Context:
        where = sequence.places(sample)
        own, hidden = seen.part(sequence.token[sample, where]), sequence.hidden[sample]
        if one.after:
            found = self._attention(self.language.layers[one.after - 1], sequence, before, sample, set(one.stage.needs))
            question = self._asking(sequence, sample)  # what can have attended to the image
        else:
            question = sequence.wording(sample, self._ending(sample))
            found = {"keys": own.keys, "received": own.received, "shallow": own.shallow}
        return Context(
            features=hidden[where],
            position=own.position,
            size=sequence.size[sample, where],
            weight=own.weight,
            image=own.image,
            question=hidden[question],
            **found,
        )

    def _asking(self, sequence: Sequence, sample: int) -> Tensor:
        return sequence.asking(sample, self._ending(sample))

    def _ending(self, sample: int) -> int:
        return 0 if self.endings is None else self.endings[sample]

    def _attention(
        self, layer: Any, sequence: Sequence, before: Sequence, sample: int, needs: set[str]
    ) -> dict[str, Tensor | None]:
        """Queries and keys of the visual tokens, and what the question's tokens attended to, in a layer that has run.

        before: the input of the layer; tokens may have left since
        """
        where, asking = (
            before.slots(sample, sequence.origin[sample, one])
            for one in (sequence.places(sample), self._asking(sequence, sample))
        )
        given = layer.input_layernorm(before.hidden[sample, None])
        rotary = text_rotary(self.language, given, self._axes(before.position[sample, None]))
        attention = layer.self_attn
        query, key = (one[0] for one in query_and_key(attention, given, *rotary, self.adapter.normed_heads))
        key = key.repeat_interleave(len(query) // len(key), 0)
        found: dict[str, Tensor | None] = {}
        if needs & {"keys", "queries"}:
            found |= {"keys": key[:, where], "queries": query[:, where]}
        if "asked" in needs:
            later = torch.arange(before.hidden.shape[1], device=where.device) > asking[:, None]
            scores = query[:, asking].float() @ key.float().mT * attention.scaling + before.size[sample].log()
            scores = scores.masked_fill(later | ~before.live[sample], -math.inf)
            found["asked"] = scores.softmax(-1).mean(0)[:, where]
        return found


def _beams(prompt: int, beams: int) -> range:
    return range(prompt * beams, (prompt + 1) * beams)


def _layer_output(layer: Any, hidden: Tensor, cache: Any, arguments: dict[str, Any]) -> Tensor:
    out = layer(hidden, past_key_values=cache, **arguments)
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def _reductions(one: Planned, contexts: List[Context], targets: dict[tuple[int, int], int]) -> list[Reduction]:
    found = []
    for sample, context in enumerate(contexts):
        count = len(context)
        target = targets.setdefault((one.index, sample), one.step.target(count))
        found.append(one.stage(context, stage_budget(count, min(target, count), one.left)))
    return found
