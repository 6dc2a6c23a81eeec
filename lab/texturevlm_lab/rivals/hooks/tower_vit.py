"""Reductions in a CLIP or SigLIP tower, whose layers take (B, in_front + patches, D)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from texturevlm.vlm import Override
from texturevlm.vlm.adapter import ATTRIBUTE
from texturevlm_lab.rivals.hooks.masks import EXPLICIT
from texturevlm_lab.rivals.hooks.tower import TowerReduction


class VitTower(TowerReduction):
    def hooks(self) -> Iterator[Any]:
        tower = self.adapter.tower.tower
        implementation = tower.config._attn_implementation
        if implementation not in EXPLICIT:
            wanted = " or ".join(EXPLICIT)
            raise ValueError(
                f"reduce: {self.plan[0].step.method} needs attn_implementation of the tower to be {wanted}, "
                f"got {implementation}"
            )
        counted = getattr(self.adapter.config, "vision_feature_layer", -1)
        if not isinstance(counted, int) and len(counted) > 1:
            raise ValueError(
                f"reduce: {self.plan[0].step.method} needs vision_feature_layer to be one layer, got {counted}"
            )
        # The adapter that hooked the model: this one may stand beside it for another processor.
        self._hidden = Override(getattr(self.adapter.model, ATTRIBUTE), "hidden", self._run)
        yield self._hidden
        self._layers = []
        for index, layer in enumerate(self.adapter.tower.layers):
            self._layers.append(Override(layer, "forward", partial(self._layer, index)))
            yield self._layers[-1]
            yield attention_of(layer).register_forward_pre_hook(self._masked, with_kwargs=True)

    def expect(self, groups: list[Tensor]) -> None:
        """The tokens of each call of the tower that follows, image by image: (B, N) each."""
        self._calls = iter(groups)

    def _run(self, pixels: Tensor, patch: Tensor) -> Tensor:
        """In the place of the adapter's `hidden`."""
        own = next(self._calls)
        self._images = len(own)
        self.enter(own.flatten())
        hidden: Tensor = self._hidden.original(pixels, patch)
        hidden = self.in_all(hidden)
        self.leave()
        return hidden

    def in_all(self, values: Tensor) -> Tensor:
        """Of the patches of the current tokens (B, M, ...) → of all (B, N, ...)."""
        if self._whole:
            return values
        whole = self.expanded(values[self._mask[:, self.adapter.tower.in_front :]])
        found: Tensor = whole.unflatten(0, (self._images, -1))
        return found

    def _layer(self, index: int, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        due = self._due("tower", index)
        front = self.adapter.tower.in_front
        tokens = self._tokens(index, hidden_states[:, front:])
        if due or (index == 0 and not self._whole):
            for one in due:
                tokens = self._reduced(one, tokens, self._keys(index - 1) if "keys" in one.stage.needs else None)
            hidden_states = self._padded(hidden_states[:, :front], tokens)
        self._before = tokens
        return self._layers[index].original(hidden_states, *args, **given)

    def _masked(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give an attention its mask. InternVL's layers would not pass one on."""
        if self._whole:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        return (), {**kwargs, "hidden_states": hidden, "attention_mask": self._bias.to(hidden.dtype)}

    def _tokens(self, index: int, hidden: Tensor) -> Tensor:
        """The current tokens (M, merge², D) of what a layer is given, without the tower's own."""
        patches = self.adapter.merge**2
        if index == 0 or self._whole:
            flat = hidden.flatten(0, 1)
        else:
            flat = hidden[self._mask[:, self.adapter.tower.in_front :]]
        found: Tensor = flat.unflatten(0, (-1, patches))
        return found[self._live] if index == 0 else found

    def _padded(self, front: Tensor, flat: Tensor) -> Tensor:
        """Tokens (M, merge², D) as a batch behind the tower's own, padded on the right; its mask is made."""
        patches = flat.shape[1]
        image = self._live // (len(self._order) // self._images)
        counts = torch.bincount(image, minlength=self._images).tolist()
        rows = pad_sequence(list(flat.flatten(0, 1).split([count * patches for count in counts])), batch_first=True)
        size = pad_sequence(list(self._size.repeat_interleave(patches).split([n * patches for n in counts])), True)
        own = size.new_ones(len(front), front.shape[1])
        bias = torch.cat([own, size], 1).log().clamp(min=torch.finfo(front.dtype).min)
        self._mask = torch.cat([own, size], 1) > 0
        self._bias = bias[:, None, None].expand(-1, 1, bias.shape[1], -1)
        return torch.cat([front, rows], 1)

    def _keys(self, index: int) -> Tensor:
        """(H, M, d): of the current tokens in a layer that has run."""
        layer = self.adapter.tower.layers[index]
        norm = layer.layernorm_before if hasattr(layer, "layernorm_before") else layer.layer_norm1
        return heads_of(attention_of(layer), "k", norm(self._before)).mean(1).transpose(0, 1)


def attention_of(layer: Any) -> Any:
    """The attention of a layer of a tower."""
    return layer.attention if hasattr(layer, "attention") else layer.self_attn


def heads_of(attention: Any, name: str, given: Tensor) -> Tensor:
    """Queries (q) or keys (k), (..., D) → (..., H, d)."""
    projected = getattr(attention, f"{name}_proj")(given)
    if hasattr(attention, f"{name}_norm"):  # InternVL
        projected = getattr(attention, f"{name}_norm")(projected)
    found: Tensor = projected.unflatten(-1, (-1, attention.head_dim))
    return found
