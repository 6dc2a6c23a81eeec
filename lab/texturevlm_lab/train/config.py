"""The TOML file of a training run: the task, the loop's config, and the task's settings. Unknown names are errors.

task = "spotter"          # a name of TASKS

[fit]                     # FitConfig
steps = 1000

[spotter]                 # the task's Settings
pages = "runs/pages"
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from texturevlm.check import check_choice, check_count

# A task is a class with a dataclass `Settings`, filled from the config's table of the task's name. It is constructed
# from settings and a device, implements `fit.Task`, and is imported when it is used.
TASKS = {
    "spotter": "texturevlm_lab.train.spotter_task:SpotterTask",
    "ranker": "texturevlm_lab.train.ranker_task:RankerTask",
    "confidence": "texturevlm_lab.train.confidence_task:ConfidenceTask",
    "reader": "texturevlm_lab.train.reader.task:ReaderTask",
    "balance": "texturevlm_lab.train.balance_task:BalanceTask",
    "channels": "texturevlm_lab.train.channel_task:ChannelTask",
    "rate": "texturevlm_lab.train.rate_task:RateTask",
    "bands": "texturevlm_lab.train.bands_task:BandsTask",
    "answers": "texturevlm_lab.train.answer_task:AnswerTask",
    "compensator": "texturevlm_lab.train.compensator_task:CompensatorTask",
}
# What a resumed run may change: nothing that the loss curve depends on.
MAY_CHANGE = ("device", "save_every", "evaluate_every", "log_every", "keep", "ahead", "captured")
_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class FitConfig:
    """The config of the loop."""

    steps: int = 1000  # in all
    seed: int = 0  # of all random numbers
    seconds: float = 0.0  # a run ends after this time, with its schedule, even if steps are left; 0 for no limit
    optimiser: str = "adamw"  # or muon
    rate: float = 1e-3  # peak learning rate
    schedule: str = "cosine"  # how the rate falls; or linear
    warmup: int = 0  # steps over which the rate grows to its peak
    decay: float = 0.01  # weight decay for matrices; vectors and numbers have none
    clip: float = 0.0  # largest norm of the gradient; 0 for no limit
    average: float = 0.0  # share of the running mean of the weights that a step keeps, such as 0.998; 0 for no mean
    precision: str = "float32"  # or bfloat16, by autocast
    device: str = "cpu"  # or cuda
    save_every: int = 500  # steps; 0 for only at the end, here and in the next two
    evaluate_every: int = 0
    log_every: int = 10
    keep: int = 2  # number of checkpoints
    ahead: int = 0  # batches that are prepared ahead, in threads
    captured: bool = False  # whether steps are CUDA graphs, one per shape of batch; the task's losses must allow that
    losses: dict[str, float] = field(default_factory=dict)  # weights of the task's losses; 1 for those not given

    def __post_init__(self) -> None:
        for name in ("steps", "warmup", "save_every", "evaluate_every", "log_every", "ahead", "keep"):
            check_count("FitConfig", name, getattr(self, name), 1 if name in ("steps", "keep") else 0)
        check_choice("FitConfig", "precision", self.precision, ("float32", "bfloat16"))
        check_choice("FitConfig", "optimiser", self.optimiser, ("adamw", "muon"))
        check_choice("FitConfig", "schedule", self.schedule, ("cosine", "linear"))
        if self.captured and not self.device.startswith("cuda"):
            raise ValueError(f"FitConfig: captured must be false unless device is cuda, got {self.device!r}")
        if not 0 <= self.average < 1:
            raise ValueError(f"FitConfig: average must be at least 0 and below 1, got {self.average!r}")
        for name in ("rate", "decay", "clip", "seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"FitConfig: {name} must be at least 0, got {getattr(self, name)!r}")


class RunConfig(NamedTuple):
    """A parsed file: the task's name, the loop's config, and the task's table, unchecked."""

    task: str
    fit: FitConfig
    own: dict[str, Any]


def read_config(path: Path | str) -> RunConfig:
    """Read the file of a run; an error names the place in the file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"train: {path} must be TOML: {error}") from None
    name = table.get("task")
    if not isinstance(name, str):
        raise ValueError(f'train: {path} must name its task, such as task = "spotter", got {name!r}')
    check_choice(f"train: {path}", "task", name, TASKS)
    _check_names(str(path), table, ["task", "fit", name])
    for part in ("fit", name):
        if not isinstance(table.get(part, {}), dict):
            raise ValueError(f"train: {path}: {part} must be a table, got {table[part]!r:.60}")
    return RunConfig(name, from_table(FitConfig, table.get("fit", {}), f"{path}: fit"), dict(table.get(name, {})))


def task_of(config: RunConfig) -> tuple[Any, Any]:
    """The task of a config, and its settings."""
    module, name = TASKS[config.task].split(":")
    kind = getattr(importlib.import_module(module), name)
    settings = from_table(kind.Settings, config.own, config.task)
    return kind(settings, device=config.fit.device), settings


def from_table(kind: type[_Settings], table: dict[str, Any], where: str) -> _Settings:
    """A dataclass from a TOML table; an unknown name or a wrong type is an error that lists the known names.

    Fields may be bool, int, float, str, Path, tuple[T, ...], dict[str, T] or T | None of these.
    """
    hints = typing.get_type_hints(kind)
    _check_names(where, table, hints)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and name not in table:
            raise ValueError(f"train: {where} must have {name}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in table.items()})


def _check_names(where: str, table: Iterable[str], known: Collection[str]) -> None:
    for name in table:
        if name not in known:
            alike = get_close_matches(name, known, 1)
            meant = f" (did you mean {alike[0]}?)" if alike else ""
            raise ValueError(f"train: {where} may have {', '.join(known)}, got {name!r}{meant}")


def _value(hint: Any, value: Any, where: str) -> Any:
    """A TOML value as the type of a field."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):  # X | None: TOML has no None, so it is X
        return _value(next(part for part in parts if part is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(parts[0], one, f"{where}[{index}]") for index, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {name: _value(parts[1], one, f"{where}.{name}") for name, one in value.items()}
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"train: {where} must be {getattr(origin or hint, '__name__', hint)}, got {value!r:.60}")
    return value


def to_json(config: Any) -> dict[str, Any]:
    """Such a dataclass as JSON values."""
    table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return table
