"""Weights of the scout's networks: read from training runs, and stored with the package as one small file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from texturevlm.channels.pretrained import optional
from texturevlm.scout.ranker import Ranker

_Module = TypeVar("_Module", bound=nn.Module)


def read_weights(path: Path | str, prefix: str = "", *, function: str = "load_module") -> dict[str, Tensor]:
    """Tensors by name, of a file that `save_modules` or a training run (weights.safetensors) wrote.

    prefix:   those whose names begin with it, without it
    function: for error messages
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{function}: {path} must be a file of weights, and {what}")
    try:
        if path.suffix != ".npz":
            found: dict[str, Tensor] = optional(function, "safetensors.torch").load_file(path)
            return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        with np.load(path) as file:
            own = [name for name in file.files if name.startswith(prefix)]
            return {name.removeprefix(prefix): torch.from_numpy(file[name].astype(np.float32)) for name in own}
    except OSError:
        raise
    except Exception as error:  # numpy and safetensors raise many kinds of error
        raise ValueError(f"{function}: {path} must be a file of weights, and cannot be read: {error}") from None


def load_module(module: _Module, path: Path | str, *, prefix: str = "") -> _Module:
    """Fill a module with the weights of a file; prefix: of the names of its weights there."""
    return _filled(module, read_weights(path, prefix), path)


def _filled(module: _Module, tensors: dict[str, Tensor], path: Path | str) -> _Module:
    must = f"load_module: {path} must hold the weights of {type(module).__name__}"
    wanted = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    if missing := sorted(set(wanted) - set(tensors)):
        raise ValueError(f"{must}, lacks {missing[0]}")
    if others := sorted(set(tensors) - set(module.state_dict())):  # such as those of a deeper network
        raise ValueError(f"{must} and no others, has {others[0]}")
    for name, value in wanted.items():
        if tensors[name].shape != value.shape:
            raise ValueError(f"{must}: {name} must be {tuple(value.shape)}, got {tuple(tensors[name].shape)}")
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return module


def load_ranker(path: Path | str, *, prefix: str = "") -> Ranker:
    """Load a ranker of the widths and depth that the file has."""
    tensors = read_weights(path, prefix)
    names = [f"{name}.weight" for name in ("last", "lift.0", "lift.1")]
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"load_module: {path} must hold the weights of Ranker, lacks {prefix}{missing[0]}")
    fine, middle, coarse = (tensors[name].shape[1] for name in names)
    blocks = {found[1] for name in tensors if (found := re.match(r"inner\.0\.(\d+)\.", name))}
    return _filled(Ranker((fine, middle, coarse), blocks=len(blocks)), tensors, path)


def save_modules(path: Path | str, **modules: nn.Module) -> None:
    """Write fp16 weights of several modules to one file; names start with the module's."""
    arrays = {}
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                half = value.cpu().half()
                if not half.isfinite().all():
                    raise ValueError(f"save_modules: {prefix}.{name} must be finite in half precision, and is not")
                arrays[f"{prefix}.{name}"] = half.numpy()
    np.savez(path, **arrays)
