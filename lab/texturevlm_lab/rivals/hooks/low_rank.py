"""Token Compensator: a low-rank difference of a tower's weights, trained for one rate of merging.

Published: a trained low-rank difference turns weights for one merge rate into weights for another.
Ours: they are added to every linear layer of the tower's blocks while tokens are reduced, and trained so that the
reduced model answers like the whole one (`train/compensator_task.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class LowRankDifference(nn.Module):
    """For each linear layer of a tower, by its name: out + up · down · in. Begins as no difference.

    shapes: name → (out, in)
    """

    def __init__(self, shapes: dict[str, tuple[int, int]], rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for name, (wide, deep) in shapes.items():
            self.down[_key(name)] = nn.Parameter(torch.randn(rank, deep) * deep**-0.5)
            self.up[_key(name)] = nn.Parameter(torch.zeros(wide, rank))

    def hooks(self, blocks: nn.Module) -> Iterator[Any]:
        """Add the difference to the blocks of a tower; yields what has `remove`."""
        for name, layer in linear_layers(blocks).items():
            yield layer.register_forward_hook(partial(self._adding, _key(name)))

    def _adding(self, key: str, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        (given,) = args
        down, up = (part[key].to(given.device, given.dtype) for part in (self.down, self.up))
        changed: Tensor = out + given @ down.mT @ up.mT
        return changed


def linear_layers(blocks: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a tower's blocks, by name."""
    return {name: one for name, one in blocks.named_modules() if isinstance(one, nn.Linear)}


def layer_shapes(blocks: nn.Module) -> dict[str, tuple[int, int]]:
    """Name → (out, in) of those layers."""
    return {name: (one.out_features, one.in_features) for name, one in linear_layers(blocks).items()}


def load_difference(function: str, path: Path | str, blocks: nn.Module) -> LowRankDifference:
    """A trained difference for a tower with these blocks."""
    found = _loaded(str(path), Path(path).stat().st_mtime_ns)
    kinds = {f"up.{_key(name)}": wide for name, (wide, _) in layer_shapes(blocks).items()}
    have = {name: value.shape[0] for name, value in found.state_dict().items() if name.startswith("up.")}
    if kinds != have:
        raise ValueError(
            f"{function}: difference must be trained for this tower, of {len(kinds)} linear layers, got {path}, which "
            f"is for another one, of {len(have)}"
        )
    return found


@lru_cache(maxsize=4)
def _loaded(path: str, changed: int) -> LowRankDifference:
    from safetensors.torch import load_file

    tensors = load_file(path)
    downs = {name.removeprefix("down."): value for name, value in tensors.items() if name.startswith("down.")}
    if not downs or set(tensors) != {f"{part}.{key}" for part in ("down", "up") for key in downs}:
        raise ValueError(f"reduce: difference must be the weights of a compensator, got {path}")
    shapes = {key: (tensors[f"up.{key}"].shape[0], value.shape[1]) for key, value in downs.items()}
    found = LowRankDifference(shapes, next(iter(downs.values())).shape[0])
    found.load_state_dict(tensors)
    return found.eval().requires_grad_(False)


def _key(name: str) -> str:
    """Names of parameters may not have points."""
    return name.replace(".", "/")
