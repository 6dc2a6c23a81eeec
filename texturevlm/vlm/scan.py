"""What a vision tower saw, token by token, for reductions: places, keys, and the attention that each token received.

Attention is computed again from the queries and keys of one or two layers, by streaming column sums, so that it works
beside FlashAttention and no attention matrix is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.reduce import column_sums
from texturevlm.vlm.loops import rotated
from texturevlm.vlm.override import Override
from texturevlm.vlm.packed import PICTURE, Geometry, is_packed, unpack
from texturevlm.vlm.vit import by_count

TOWER = {"keys", "received", "shallow"}  # fields of a Context that a tower gives


@dataclass(frozen=True, eq=False)
class Seen:
    """n visual tokens, in the order of their placeholders; fields as in `Context`."""

    position: Tensor
    image: Tensor
    weight: Tensor
    keys: Tensor | None = None
    received: Tensor | None = None
    shallow: Tensor | None = None

    @staticmethod
    def at(geometry: Geometry, weight: Tensor) -> Seen:
        """Of tokens with this geometry and weights (n, 1)."""
        image = (geometry.begins[:, 0] >= PICTURE).long().cumsum(0) - 1
        return Seen(torch.cat([geometry.moment, geometry.token], 1), image, weight[:, 0].float())

    def part(self, index: Tensor) -> Seen:
        """Some of the tokens."""
        rows = {name: getattr(self, name) for name in ("position", "image", "weight", "received", "shallow")}
        found = {name: value[index] for name, value in rows.items() if value is not None}
        return Seen(**found, keys=None if self.keys is None else self.keys[:, index])

    def as_video(self) -> Seen:
        """With moments. Qwen3-VL has one picture per moment, each from moment 0 on."""
        if bool((self.position[:, 0] != 0).any()):
            return self
        moment = self.image.to(self.position)[:, None]
        return replace(self, position=torch.cat([moment, self.position[:, 1:]], 1), image=torch.zeros_like(self.image))

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """The tokens of several, one after the other; images are counted on."""
        firsts = [0]
        for one in parts:
            firsts.append(firsts[-1] + int(one.image.max()) + 1)
        found = {"image": torch.cat([one.image + first for one, first in zip(parts, firsts)])}
        for name in ("position", "weight", "keys", "received", "shallow"):
            if getattr(parts[0], name) is not None:
                found[name] = torch.cat([getattr(one, name) for one in parts], 1 if name == "keys" else 0)
        return Seen(**found)


def seen_by_prompt(runs: Sequence[Seen], ids: Tensor, marks: Sequence[int]) -> list[Seen]:
    """What the tower saw of each prompt's visual tokens, in the order of the prompt.

    runs:  of the tower: images, then videos
    ids:   (B, L). `generate` repeats prompts for beams behind the tower, so B may be a multiple of what the tower saw
    marks: the ids that stand for images and for videos
    """
    present = [mark for mark in marks if bool((ids == mark).any())]
    if not present:
        return []
    if not runs:
        raise ValueError("reduce: the vision tower must run while tokens are reduced, got its output from elsewhere")
    counts = [int((ids == mark).sum()) for mark in present]
    beams = sum(counts) // sum(len(one.image) for one in runs)
    taken, prompts = [0] * len(runs), []
    for row in ids[::beams]:
        parts, slots = [], []
        for kind, (mark, run) in enumerate(zip(present, runs, strict=True)):
            where = (row == mark).nonzero()[:, 0]
            if len(where) == 0:
                continue
            part = run.part(taken[kind] + torch.arange(len(where), device=where.device))
            part = replace(part, image=part.image - part.image[0])
            parts.append(part if mark == marks[0] else part.as_video())
            slots.append(where)
            taken[kind] += len(where)
        if not parts:
            raise ValueError("reduce: every prompt of a batch must have visual tokens, got one without")
        prompts += [Seen.joined(parts).part(torch.cat(slots).argsort())] * beams
    return prompts


class Scan(ABC):
    """Hooks that watch a tower.

    adapter: bound
    wanted:  of TOWER
    """

    def __init__(self, adapter: Any, wanted: set[str]) -> None:
        self.adapter, self.wanted = adapter, wanted
        self._seen: list[Seen] = []
        self._complete = False
        self._found: dict[str, list[Tensor]] = {}

    @abstractmethod
    def hooks(self) -> Iterator[Any]:
        """Hook the tower; yields what has `remove`."""

    def runs(self) -> list[Seen]:
        """Of the tower, for the last prompts. Without a cache, `generate` gives one run to several forward passes."""
        self._complete = True
        return self._seen

    def _keep(self, seen: Seen) -> None:
        self._seen = [*([] if self._complete else self._seen), seen]
        self._complete = False

    def _watch(self, first: nn.Module, last: nn.Module) -> Iterator[Any]:
        """Hook the attention of the first and of the last layer that counts, where it is wanted."""
        if "shallow" in self.wanted:
            yield first.register_forward_pre_hook(self._shallow, with_kwargs=True)
        if self.wanted & {"keys", "received"}:
            yield last.register_forward_pre_hook(self._deep, with_kwargs=True)

    def _shallow(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._add("shallow", self.received(module, args, kwargs))

    def _deep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if "keys" in self.wanted:
            self._add("keys", self.keys(module, args, kwargs))
        if "received" in self.wanted:
            self._add("received", self.received(module, args, kwargs))

    def _add(self, name: str, values: list[Tensor]) -> None:
        self._found.setdefault(name, []).extend(values)

    @abstractmethod
    def keys(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Keys (n, H, d) of the tokens that pass through an attention, not rotated: position is not likeness."""

    @abstractmethod
    def received(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The attention (n,) that they receive."""


class QwenScan(Scan):
    """Of a Qwen tower, whose tokens are merge² rows of one long sequence, in the order of windows if it has any."""

    def hooks(self) -> Iterator[Any]:
        self._forward = Override(self.adapter.tower, "forward", self._tower_forward)
        yield self._forward
        blocks, whole = self.adapter.tower.blocks, sorted(self.adapter.whole_blocks)
        yield from self._watch(blocks[whole[0]].attn, blocks[whole[-1]].attn)

    def _tower_forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        adapter = self.adapter
        if not is_packed(hidden_states, adapter.row_width):
            raise ValueError(
                "reduce: coordinates must be fine or native, whose rows say where each token is, got crops"
            )
        self._found = {}
        out = self._forward.original(hidden_states, *args, **kwargs)
        _, geometry, weight = unpack(hidden_states, adapter.row_width)
        seen = Seen.at(geometry.of_tokens(adapter.merge), weight[:: adapter.merge**2])
        arguments = adapter.tower_arguments(geometry.patch, geometry.extent, geometry.begins[:, 0] > 0.5)
        order = arguments.get("window_index")
        back = torch.arange(len(seen.image), device=weight.device) if order is None else order.argsort()
        found = {name: torch.cat(values)[back.to(weight.device)] for name, values in self._found.items()}
        if "keys" in found:
            found["keys"] = found["keys"].transpose(0, 1)
        self._keep(replace(seen, **found))
        return out

    def keys(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return [self._of_tokens(self._heads(module, args, kwargs)[1]).mean(1)]

    def received(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        cos, sin = (one[:, None].float() for one in kwargs["position_embeddings"])
        query, key = (rotated(one.float(), cos, sin) for one in self._heads(module, args, kwargs)[:2])
        lengths: list[int] = kwargs["cu_seqlens"].diff().tolist()
        sums = [
            column_sums(own.transpose(0, 1), other.transpose(0, 1), scale=module.scaling) / len(own)
            for own, other in zip(query.split(lengths), key.split(lengths))
        ]
        return [self._of_tokens(torch.cat(sums)).sum(1)]

    def _heads(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Queries, keys and values (patches, H, d), not rotated."""
        hidden = args[0] if args else kwargs["hidden_states"]
        projected: Tensor = module.qkv(hidden)
        return projected.view(len(hidden), 3, module.num_heads, -1).unbind(1)

    def _of_tokens(self, of_patches: Tensor) -> Tensor:
        """(patches, ...) → (tokens, merge², ...)"""
        found: Tensor = of_patches.unflatten(0, (-1, self.adapter.merge**2))
        return found


class LlavaScan(Scan):
    """Of a CLIP or SigLIP tower, one image per sample, tokens of its own in front."""

    def hooks(self) -> Iterator[Any]:
        adapter = self.adapter
        self._features = Override(adapter.model.model, "get_image_features", self._get_image_features)
        yield self._features
        layers, counted = adapter.tower.tower.encoder.layers, adapter.config.vision_feature_layer
        last = counted if isinstance(counted, int) else counted[-1]
        yield from self._watch(layers[0].self_attn, layers[last - 1 if last > 0 else last].self_attn)

    def _get_image_features(self, pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self._found = {}
        out = self._features.original(pixel_values, *args, **kwargs)
        _, geometry, weight = unpack(pixel_values.flatten(0, -3), self.adapter.row_width)
        live = geometry.extent[..., 0] > 0
        of_tokens = Geometry(*(value[live] for value in vars(geometry).values()))
        groups = by_count([count for count in live.sum(-1).tolist() if count])
        back = torch.tensor([image for group in groups for image in group]).argsort().tolist()
        found = {name: torch.cat([values[image] for image in back]) for name, values in self._found.items()}
        if "keys" in found:
            found["keys"] = found["keys"].transpose(0, 1)
        self._keep(replace(Seen.at(of_tokens, weight[live]), **found))
        return out

    def keys(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return list(self._heads(module, module.k_proj, args, kwargs)[:, self.adapter.tower.in_front :])

    def received(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        front = self.adapter.tower.in_front
        query, key = (self._heads(module, one, args, kwargs) for one in (module.q_proj, module.k_proj))
        asking = query[:, :1] if front else query
        return [
            (column_sums(own.transpose(0, 1), other.transpose(0, 1), scale=module.scale) / len(own))[front:]
            for own, other in zip(asking, key)
        ]

    def _heads(self, module: Any, projection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """(B, tokens, H, d)"""
        hidden = args[0] if args else kwargs["hidden_states"]
        projected: Tensor = projection(hidden).unflatten(-1, (-1, module.head_dim))
        return projected
