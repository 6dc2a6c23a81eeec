"""The files of a run: checkpoints, the loss curve as CSV and for TensorBoard, and one line per evaluation.

    OUT/step-00000500/weights.safetensors   the module: all that a deployed network needs
                      averaged.safetensors  the same with the running mean of its weights, if there is one
                      state.pt              the optimiser's state and the random number generators
                      config.json           step, seconds spent, the loop's config, the task's settings

A checkpoint is written under another name, flushed and then renamed, so a kill at any time leaves the previous one. A
resumed run first removes the lines after its checkpoint, so that the files equal those of an uninterrupted run.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from texturevlm.channels.pretrained import optional
from texturevlm_lab.journal import append, cut_unfinished
from texturevlm_lab.train.averaged import AveragedWeights

_WEIGHTS, _AVERAGED, _STATE, _CONFIG = "weights.safetensors", "averaged.safetensors", "state.pt", "config.json"
_ROW = re.compile(rb'(?:\{"step": )?(\d+)')  # the step of a line of log.csv or evaluations.jsonl


def save_checkpoint(
    out: Path,
    step: int,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    config: Mapping[str, Any],
    *,
    keep: int,
    averaged: AveragedWeights | None = None,
) -> None:
    """Write a checkpoint, and remove all but the last `keep`."""
    final = out / f"step-{step:08}"
    partial = out / f".{final.name}.{os.getpid()}"
    partial.mkdir(parents=True)
    _save_weights(module, partial / _WEIGHTS)
    if averaged is not None:
        with averaged.in_place():
            _save_weights(module, partial / _AVERAGED)
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.save({"optimiser": optimiser.state_dict(), "cpu": torch.get_rng_state(), "cuda": cuda}, partial / _STATE)
    (partial / _CONFIG).write_text(json.dumps({"step": step, **config}, indent=1) + "\n", encoding="utf-8")
    for path in partial.iterdir():
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)  # left by a killed run that is repeating this step
    os.rename(partial, final)
    _flush(out)
    for old in checkpoints(out)[:-keep]:
        shutil.rmtree(old)


def _save_weights(module: nn.Module, path: Path) -> None:
    # Cloned: safetensors refuses tensors that share memory, as tied weights do.
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    path.write_bytes(optional("save_checkpoint", "safetensors.torch").save(weights))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path.parent for path in out.glob(f"step-{'[0-9]' * 8}/{_CONFIG}"))


def check_out(out: Path, *, resume: bool) -> None:
    """A run that begins anew must not mix its files with those of another."""
    if not resume and (found := checkpoints(out)):
        raise ValueError(f"fit: out must have no checkpoints, or --resume must be given, got {found[-1]}")


def final_weights(checkpoint: Path) -> Path:
    """The file of weights to deploy: the running mean, if there is one."""
    averaged = checkpoint / _AVERAGED
    return averaged if averaged.is_file() else checkpoint / _WEIGHTS


def load_checkpoint(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, averaged: AveragedWeights | None = None
) -> None:
    """Restore a module, its optimiser, the running mean and the random state."""
    load = optional("load_checkpoint", "safetensors.torch").load
    weights = load((path / _WEIGHTS).read_bytes())
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        wrong = " ".join(str(error).split())
        raise ValueError(f"fit: {path} must hold the weights of {type(module).__name__}: {wrong}") from None
    if averaged is not None:
        averaged.restore(load((path / _AVERAGED).read_bytes()))
    state = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


class Log:
    """Appends to log.csv, evaluations.jsonl and TensorBoard's events, from a step on."""

    def __init__(self, out: Path, *, step: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.curve, self.evaluations = out / "log.csv", out / "evaluations.jsonl"
        for path in (self.curve, self.evaluations):
            _truncate(path, step)
        self.names: list[str] = []
        self.tensorboard: Any = None
        if importlib.util.find_spec("tensorboard") is None:  # the curve is in log.csv as well
            print("no TensorBoard events: pip install 'texturevlm[train]' to get them", file=sys.stderr)
        else:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(out), purge_step=step or None)

    def losses(self, step: int, numbers: Mapping[str, float]) -> None:
        """A row of the curve. All rows have the same names."""
        self.names = self.names or list(numbers)
        if self.names != list(numbers):
            raise ValueError(f"fit: losses must have the same names at every step, {self.names}, got {list(numbers)}")
        header = [] if self.curve.exists() else [["step", *numbers]]
        with self.curve.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*header, [step, *map(repr, numbers.values())]])
        self._summarise("train", step, numbers)

    def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        append(self.evaluations, [{"step": step, **numbers}])
        self._summarise("evaluation", step, numbers)

    def _summarise(self, group: str, step: int, numbers: Mapping[str, float]) -> None:
        if self.tensorboard is not None:
            for name, number in numbers.items():
                self.tensorboard.add_scalar(f"{group}/{name}", number, step)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()


def _truncate(path: Path, step: int) -> None:
    """Remove the lines after a step, and the file if no row is left."""
    cut_unfinished(path)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    steps = [int(row[1]) if (row := _ROW.match(line)) else 0 for line in lines]
    kept = [line for line, after in zip(lines, steps) if after <= step]
    if any(map(_ROW.match, kept)):
        path.write_bytes(b"".join(kept))
    else:
        path.unlink(missing_ok=True)
