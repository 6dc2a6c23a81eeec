"""Weights of a scout's networks: read from what training wrote, and kept with the package as one small file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from texturevlm.channels.pretrained import optional

Module = TypeVar("Module", bound=nn.Module)


def load_module(module: Module, path: Path | str, *, prefix: str = "") -> Module:
    """A module with the weights of a file that `save_modules` or a training run (weights.safetensors) wrote.

    prefix: what the names of its weights start with in there
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_module: {path} must be a file of weights, and is not there")
    if path.suffix == ".npz":
        tensors = load_arrays(path)
    else:
        tensors = optional("load_module", "safetensors.torch").load_file(path)
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return _filled(module, own, str(path))


def load_arrays(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name, as float32."""
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}


def save_modules(path: Path | str, **modules: nn.Module) -> None:
    """Half-precision weights of several modules in one file; names start with the module's."""
    arrays = {}
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                arrays[f"{prefix}.{name}"] = value.cpu().numpy().astype(np.float16)
    np.savez(path, allow_pickle=False, **arrays)


def _filled(module: Module, tensors: dict[str, Tensor], where: str) -> Module:
    wanted = {name for name, value in module.state_dict().items() if value.is_floating_point()}
    if missing := sorted(wanted - set(tensors)):
        raise ValueError(f"load_module: {where} must hold the weights of {type(module).__name__}, lacks {missing[0]}")
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return module
