"""What a vision tower saw, token by token, for reductions: places, keys, and the attention that each token received.

Attention is computed again from the queries and keys of one or two layers, by streaming column sums, so that it works
beside FlashAttention and no attention matrix is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.vlm import Adapter, Geometry, Override, is_packed, unpack
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.families.vit import by_count
from texturevlm.vlm.loops import rotated
from texturevlm_lab.rivals import Planned, received_share
from texturevlm_lab.rivals.hooks.seen import Seen
from texturevlm_lab.rivals.hooks.tower import TowerReduction
from texturevlm_lab.rivals.hooks.tower_qwen import QwenTower
from texturevlm_lab.rivals.hooks.tower_vit import VitTower, attention_of, heads_of


class Scan(ABC):
    """Hooks that watch a tower.

    adapter: bound
    wanted:  of keys, received and shallow
    tower:   what reduces tokens before the tower or in it, if anything does
    """

    def __init__(self, adapter: Any, wanted: set[str], plan: Sequence[Planned] = ()) -> None:
        self.adapter, self.wanted = adapter, wanted
        self.tower = self.reduction(plan) if plan else None
        self._seen: list[Seen] = []
        self._complete = False
        self._found: dict[str, list[Tensor]] = {}

    @abstractmethod
    def reduction(self, plan: Sequence[Planned]) -> TowerReduction:
        """What reduces in a tower of this kind."""

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
        """The attention (n,) that they receive, 1 being an even share of their picture's: see `Context.received`."""


class QwenScan(Scan):
    """Of a Qwen tower, whose tokens are merge² rows of one long sequence, in the order of windows if it has any."""

    tower: QwenTower | None

    def reduction(self, plan: Sequence[Planned]) -> QwenTower:
        return QwenTower(self.adapter, plan)

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
        _, geometry, weight = unpack(hidden_states, adapter.row_width)
        seen = Seen.at(geometry.of_tokens(adapter.merge), weight[:: adapter.merge**2])
        order = self._order(geometry)
        if self.tower is None:
            out = self._forward.original(hidden_states, *args, **kwargs)
        else:
            hidden_states = self.tower.begin(seen, hidden_states)
            self.tower.enter(order)
            out = self._forward.original(hidden_states, *args, **kwargs)
            self.tower.leave()
            seen = self.tower.ended(seen)
        back = order.argsort()
        found = {name: torch.cat(values)[back] for name, values in self._found.items()}
        if "keys" in found:
            found["keys"] = found["keys"].transpose(0, 1)
        self._keep(replace(seen, **found))
        return out

    def _order(self, geometry: Geometry) -> Tensor:
        """(n,): the tokens in the order of the tower's rows."""
        adapter, count = self.adapter, len(geometry.patch) // self.adapter.merge**2
        if adapter.windows(geometry.patch.unflatten(0, (count, -1))) is None:
            return torch.arange(count, device=geometry.patch.device)
        arguments = adapter.tower_arguments(geometry.patch, geometry.extent, geometry.begins[:, 0] > 0.5)
        order: Tensor = arguments["window_index"].to(geometry.patch.device)
        return order

    def keys(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return [self._of_tokens(self._heads(module, args, kwargs)[1]).mean(1)]

    def received(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        cos, sin = (one[:, None].float() for one in kwargs["position_embeddings"])
        query, key = (rotated(one.float(), cos, sin) for one in self._heads(module, args, kwargs)[:2])
        lengths: list[int] = kwargs["cu_seqlens"].diff().tolist()
        sums = [
            received_share(own.transpose(0, 1), other.transpose(0, 1), scale=module.scaling)
            for own, other in zip(query.split(lengths), key.split(lengths))
        ]
        return [self._of_tokens(torch.cat(sums)).mean(1)]

    def _heads(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Queries, keys and values (patches, H, d), not rotated."""
        hidden = args[0] if args else kwargs["hidden_states"]
        projected: Tensor = module.qkv(hidden)
        return projected.view(len(hidden), 3, module.num_heads, -1).unbind(1)

    def _of_tokens(self, of_patches: Tensor) -> Tensor:
        """(patches, ...) → (tokens, merge², ...), of all tokens, also of those that left in the tower"""
        whole = of_patches if self.tower is None else self.tower.expanded(of_patches)
        found: Tensor = whole.unflatten(0, (-1, self.adapter.merge**2))
        return found


class VitScan(Scan):
    """Of a CLIP or SigLIP tower, one image per sample, tokens of its own in front."""

    tower: VitTower | None

    def reduction(self, plan: Sequence[Planned]) -> VitTower:
        return VitTower(self.adapter, plan)

    def hooks(self) -> Iterator[Any]:
        adapter = self.adapter
        self._features = Override(adapter.model.model, "get_image_features", self._get_image_features)
        yield self._features
        first, last = (attention_of(adapter.tower.layers[index]) for index in (0, adapter.tower_depth - 1))
        yield from self._watch(first, last)

    def _get_image_features(self, pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self._found = {}
        adapter, shape = self.adapter, pixel_values.shape
        rows = pixel_values.flatten(0, -3)
        _, geometry, weight = unpack(rows, adapter.row_width)
        live = geometry.extent[..., 0] > 0
        of_tokens = Geometry(*(value[live] for value in vars(geometry).values())).of_tokens(adapter.merge)
        seen = Seen.at(of_tokens, weight[live][:: adapter.merge**2])
        counts = live.sum(-1).tolist()
        groups = by_count([count for count in counts if count])
        if self.tower is not None:
            changed = rows.clone()
            changed[live] = self.tower.begin(seen, rows[live]).to(rows.dtype)
            pixel_values = changed.view(shape)
            index = torch.arange(len(seen.image), device=rows.device)
            own = index.split([count // adapter.merge**2 for count in counts if count])
            self.tower.expect([torch.stack([own[image] for image in group]) for group in groups])
        out = self._features.original(pixel_values, *args, **kwargs)
        seen = seen if self.tower is None else self.tower.ended(seen)
        back = torch.tensor([image for group in groups for image in group]).argsort().tolist()
        found = {name: torch.cat([values[image] for image in back]) for name, values in self._found.items()}
        if "keys" in found:
            found["keys"] = found["keys"].transpose(0, 1)
        self._keep(replace(seen, **found))
        return out

    def keys(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        key = self._heads(module, "k", args, kwargs)[:, self.adapter.tower.in_front :]
        return [own.mean(1) for own in self._of_tokens(key)]

    def received(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        front = self.adapter.tower.in_front
        query, key = (self._heads(module, one, args, kwargs) for one in ("q", "k"))
        asking = query[:, :1] if front else query
        sums = [
            received_share(own.transpose(0, 1), other.transpose(0, 1), scale=module.scale)[front:]
            for own, other in zip(asking, key)
        ]
        return [own.mean(1) for own in self._of_tokens(torch.stack(sums))]

    def _heads(self, module: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """(B, tokens, H, d): queries (q) or keys (k)."""
        return heads_of(module, name, args[0] if args else kwargs["hidden_states"])

    def _of_tokens(self, of_patches: Tensor) -> Tensor:
        """(B, patches, ...) → (B, tokens, merge², ...), of all tokens, also of those that left in the tower"""
        whole = of_patches if self.tower is None else self.tower.in_all(of_patches)
        found: Tensor = whole.unflatten(1, (-1, self.adapter.merge**2))
        return found


def scan_of(adapter: Adapter, wanted: set[str], plan: Sequence[Planned]) -> Scan:
    """What watches the tower of a bound adapter, and reduces in it; arguments as of Scan."""
    kind = QwenScan if isinstance(adapter, QwenAdapter) else VitScan
    return kind(adapter, wanted, plan)
