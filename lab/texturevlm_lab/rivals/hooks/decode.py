"""While an answer is decoded, keys and values of visual tokens leave the cache of a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.loops import query_and_key, text_rotary
from texturevlm_lab.rivals import Context, Planned
from texturevlm_lab.rivals.hooks.masks import Keys
from texturevlm_lab.rivals.hooks.seen import Seen

LEAST_DROPPED = 0.25  # share of the visual tokens that must be about to leave: every drop copies the cache


@dataclass(frozen=True, eq=False)
class Slots:
    """What stands in the prompt's part of one layer's cache; fields as in `Sequence`, (B, L) each."""

    visual: Tensor
    token: Tensor
    origin: Tensor


@dataclass(eq=False)
class Held:
    """What is known of a prompt whose keys are in a cache.

    keys, slots: per layer; layers with the same tokens share them
    seen:        per sample; beams of one prompt share it
    targets:     (stage, sample) → tokens that stay at least
    """

    keys: list[Keys]
    slots: list[Slots]
    seen: Sequence[Seen]
    targets: dict[tuple[int, int], int]


class DecodeReduction:
    """Drops by the attention of the newest token.

    language: the language model
    axes:     positions (B, L, A) → as the rotary embedding takes them
    normed:   `normed_heads` of the adapter
    """

    def __init__(self, language: Any, plan: Sequence[Planned], axes: Callable[[Tensor], Tensor], normed: bool) -> None:
        self.language, self.plan, self.axes, self.normed = language, plan, axes, normed
        self._inputs: dict[int, Tensor] = {}  # layer → what it was given for the newest token

    def watch(self, index: int, hidden: Tensor) -> None:
        """Take what a layer is given, (B, L, D)."""
        if any(one.after == index for one in self.plan):
            self._inputs[index] = hidden[:, -1:]

    def act(self, held: Held, position: Tensor, cache: Any) -> None:
        """After a step of decoding: drop what is due. position: (B, L, A), of the step's tokens"""
        for one in self.plan:
            stay = self._staying(one, held, self._asked(one.after, held, position[:, -1:], cache), cache)
            if stay is not None:
                _drop(held, cache, stay)

    def _asked(self, index: int, held: Held, position: Tensor, cache: Any) -> Tensor:
        """(B, L): the attention of the newest token to the prompt's part of the cache, mean over the heads."""
        layer, hidden, keys = self.language.layers[index], self._inputs[index], held.keys[index]
        given = layer.input_layernorm(hidden)
        rotary = text_rotary(self.language, given, self.axes(position))
        query = query_and_key(layer.self_attn, given, *rotary, self.normed)[0]
        cached = cache.layers[index].keys
        cached = cached.repeat_interleave(query.shape[1] // cached.shape[1], 1)
        scores = (query.float() @ cached.float().mT)[:, :, 0] * layer.self_attn.scaling
        later = scores.shape[-1] - keys.live.shape[1]
        bias = keys.size.log().masked_fill(~keys.live, -math.inf)
        bias = torch.cat([bias, bias.new_zeros(len(bias), later)], 1)
        found: Tensor = (scores + bias[:, None]).softmax(-1).mean(1)[:, : keys.live.shape[1]]
        return found

    def _staying(self, one: Planned, held: Held, asked: Tensor, cache: Any) -> list[Tensor] | None:
        """Per sample, the places in the prompt of the visual tokens that stay; None: too few would leave."""
        slots, cached, found = held.slots[one.after], cache.layers[one.after].keys, []
        any_leaves = False
        for sample, seen in enumerate(held.seen):
            # Beams of a prompt decide together: `generate` exchanges their caches.
            beams = [other for other, its in enumerate(held.seen) if its is seen]
            where = slots.visual[sample].nonzero()[:, 0]
            known = seen.part(slots.token[sample, where])
            context = Context(
                features=cached[sample, :, where].transpose(0, 1).flatten(1),
                position=known.position,
                size=held.keys[one.after].size[sample, where],
                weight=known.weight,
                image=known.image,
                asked=asked[beams][:, where].mean(0, keepdim=True),
            )
            count = len(where)
            least = held.targets.setdefault((one.index, sample), one.step.target(count))
            rate = one.step.rate or one.stage.rate
            wanted = least if rate is None else rate(context, min(least, count))
            leaves = wanted < count and (wanted <= (1 - LEAST_DROPPED) * count or wanted == least)
            any_leaves |= leaves
            kept = one.stage(context, wanted).kept if leaves else torch.arange(count, device=where.device)
            found.append(slots.origin[sample, where[kept]])
        return found if any_leaves else None


def _drop(held: Held, cache: Any, stay: Sequence[Tensor]) -> None:
    """Take visual tokens out of every layer's cache, except those that stood at `stay` in the prompt."""
    changed: dict[int, tuple[Tensor, Keys, Slots]] = {}  # by identity: layers share them
    for index, (keys, slots) in enumerate(zip(held.keys, held.slots)):
        if id(keys) not in changed:
            changed[id(keys)] = _smaller(keys, slots, stay)
        picked, held.keys[index], held.slots[index] = changed[id(keys)]
        layer, length = cache.layers[index], keys.live.shape[1]
        for name in ("keys", "values"):
            states = getattr(layer, name)
            part = states[:, :, :length].gather(
                2, picked[:, None, :, None].expand(-1, *states.shape[1:2], -1, states.shape[3])
            )
            setattr(layer, name, torch.cat([part, states[:, :, length:]], 2))


def _smaller(keys: Keys, slots: Slots, stay: Sequence[Tensor]) -> tuple[Tensor, Keys, Slots]:
    """The slots that stay (B, L'), padded on the left, and what stands there."""
    rows = [
        (live & (~visual | torch.isin(origin, own))).nonzero()[:, 0]
        for live, visual, origin, own in zip(keys.live, slots.visual, slots.origin, stay)
    ]
    longest = max(len(one) for one in rows)
    picked = torch.stack([torch.cat([one.new_zeros(longest - len(one)), one]) for one in rows])
    count = torch.tensor([len(one) for one in rows], device=picked.device)
    live = torch.arange(longest, device=picked.device) >= longest - count[:, None]
    size = torch.where(live, keys.size.gather(1, picked), 1.0)
    visual = slots.visual.gather(1, picked) & live
    return (
        picked,
        Keys.of(live, size),
        Slots(visual, slots.token.gather(1, picked), slots.origin.gather(1, picked)),
    )
