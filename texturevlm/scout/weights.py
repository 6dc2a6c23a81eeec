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


def load_module(module: _Module, path: Path | str, *, prefix: str = "") -> _Module:
    """Fill a module with the weights of a file that `save_modules` or a training run (weights.safetensors) wrote.

    prefix: of the names of its weights in the file
    """
    return fill_module(module, read_weights(path), str(path), prefix=prefix)


def fill_module(module: _Module, tensors: dict[str, Tensor], where: str, *, prefix: str = "") -> _Module:
    """Fill a module from tensors that were read already; where: the file's name, for errors."""
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    kind = type(module).__name__
    wanted = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    if missing := sorted(set(wanted) - set(tensors)):
        raise ValueError(f"load_module: {where} must hold the weights of {kind}, lacks {missing[0]}")
    if others := sorted(set(tensors) - set(module.state_dict())):  # such as those of a deeper network
        raise ValueError(f"load_module: {where} must hold the weights of {kind} and no others, has {others[0]}")
    for name, value in wanted.items():
        if tensors[name].shape != value.shape:
            raise ValueError(
                f"load_module: {where} must hold the weights of {kind}: {name} must be {tuple(value.shape)}, got "
                f"{tuple(tensors[name].shape)}"
            )
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return module


def load_arrays(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name, as float32."""
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}


def load_ranker(path: Path | str, *, prefix: str = "") -> Ranker:
    """Load a ranker of the width and depth that the file has."""
    return fill_ranker(read_weights(path), str(path), prefix=prefix)


def fill_ranker(tensors: dict[str, Tensor], where: str, *, prefix: str = "") -> Ranker:
    """Make a ranker from tensors that were read already; where: the file's name, for errors."""
    widths, blocks = ranker_shape(tensors, where, prefix=prefix)
    return fill_module(Ranker(widths, blocks=blocks), tensors, where, prefix=prefix)


def ranker_shape(tensors: dict[str, Tensor], where: str, *, prefix: str = "") -> tuple[tuple[int, int, int], int]:
    """The widths and the number of blocks of the ranker whose weights a file holds; where: its name, for errors."""
    names = [f"{prefix}{name}.weight" for name in ("last", "lift.0", "lift.1", "inner.0.0.first.convolution")]
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"ranker_shape: {where} must hold the weights of Ranker, lacks {missing[0]}")
    fine, middle, coarse = (tensors[name].shape[1] for name in names[:3])
    block = re.compile(rf"{re.escape(prefix)}inner\.0\.\d+\.first\.convolution\.weight")
    return (fine, middle, coarse), sum(block.fullmatch(name) is not None for name in tensors)


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


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name, of a file that `save_modules` or a training run wrote."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_module: {path} must be a file of weights, and does not exist")
    load = load_arrays if path.suffix == ".npz" else optional("load_module", "safetensors.torch").load_file
    try:
        tensors: dict[str, Tensor] = load(path)
        return tensors
    except OSError:
        raise
    except Exception as error:  # numpy and safetensors raise many kinds of error
        raise ValueError(f"load_module: {path} must be a file of weights, and cannot be read: {error}") from None
