"""Checkpoints: one folder per step, complete or absent, with everything that an exact resume needs.

    OUT/step-00000500/weights.safetensors   the module: all that a deployed network needs
                      state.safetensors     the optimiser's moments and the random number generators
                      config.json           the step, the loop's config and the task's settings

A checkpoint is written under another name, flushed and then renamed, so a kill at any time leaves the previous one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.channels.pretrained import optional

_NAME = re.compile(r"step-(\d{8})")
_WEIGHTS, _STATE, _CONFIG = "weights.safetensors", "state.safetensors", "config.json"


def save_checkpoint(
    out: Path, step: int, module: nn.Module, optimiser: torch.optim.Optimizer, config: Mapping[str, Any], *, keep: int
) -> Path:
    """Write a checkpoint, and remove all but the last `keep`."""
    final = out / f"step-{step:08}"
    partial = out / f".{final.name}.{os.getpid()}"
    partial.mkdir(parents=True)
    _write(partial / _WEIGHTS, module.state_dict())
    _write(partial / _STATE, {**_moments(optimiser), **_generators()})
    (partial / _CONFIG).write_text(json.dumps({"step": step, **config}, indent=1) + "\n", encoding="utf-8")
    for path in partial.iterdir():
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)  # left by a killed run that is repeating this step
    os.rename(partial, final)
    _flush(out)
    for old in checkpoints(out)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in out.glob("step-*") if _NAME.fullmatch(path.name) and (path / _CONFIG).is_file())


def remove_partial(out: Path) -> None:
    """Remove what a kill while writing left behind."""
    for path in out.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path, module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore a module, its optimiser and the random state; returns the config with its step."""
    config: dict[str, Any] = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    load_weights(path, module)
    state = _read(path / _STATE)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        kind, *rest = name.split("/")
        if kind == "optimiser":
            moments.setdefault(int(rest[0]), {})[rest[1]] = tensor
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    torch.set_rng_state(state["random/cpu"])
    if torch.cuda.is_available() and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"])
    return config


def load_weights(path: Path, module: nn.Module) -> None:
    """Restore the module alone, from a checkpoint's folder."""
    found = _read(path / _WEIGHTS)
    own = module.state_dict()
    wrong = sorted(set(found) ^ set(own)) or [name for name in own if found[name].shape != own[name].shape]
    if wrong:
        raise ValueError(f"load_weights: {path} must hold the weights of {type(module).__name__}, {wrong[0]} differs")
    module.load_state_dict(found)


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {
        f"optimiser/{index}/{name}": torch.as_tensor(one) for index, own in state.items() for name, one in own.items()
    }


def _generators() -> dict[str, Tensor]:
    found = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["random/cuda"] = torch.cuda.get_rng_state()
    return found


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # Cloned: safetensors refuses tensors that share memory, as tied weights do.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    path.write_bytes(optional("save_checkpoint", "safetensors.torch").save(own))


def _read(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = optional("load_checkpoint", "safetensors.torch").load(path.read_bytes())
    return tensors


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
