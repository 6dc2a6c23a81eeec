"""The TOML file of a training run: the task, the loop's config, and the task's settings. Unknown names are errors.

task = "spotter"          # a name of `tasks.TASKS`

[fit]                     # FitConfig
steps = 1000

[spotter]                 # the task's Settings
pages = "runs/pages"
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from texturevlm.check import check_choice, check_count
from texturevlm.train.schedule import SCHEDULES

PRECISIONS = ("float32", "bfloat16")
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class FitConfig:
    """The config of the loop.

    steps:     total number of steps
    seed:      of all random numbers
    rate:      peak learning rate
    warmup:    steps over which the rate grows to its peak
    schedule:  of the rate after warm-up: cosine, linear or constant
    decay:     AdamW's weight decay for matrices; vectors and numbers have none
    clip:      largest norm of the gradient; 0 for no limit
    precision: float32, or bfloat16 by autocast
    device:    cpu or cuda
    save_every, evaluate_every, log_every: steps; 0 for only at the end
    keep:      number of checkpoints to keep
    ahead:     batches that are prepared ahead, in threads
    losses:    weights of the task's losses (default: 1)
    """

    steps: int = 1000
    seed: int = 0
    rate: float = 1e-3
    warmup: int = 0
    schedule: str = "cosine"
    decay: float = 0.01
    clip: float = 0.0
    precision: str = "float32"
    device: str = "cpu"
    save_every: int = 500
    evaluate_every: int = 0
    log_every: int = 10
    keep: int = 2
    ahead: int = 0
    losses: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("FitConfig", "steps", self.steps, 1)
        for name in ("warmup", "save_every", "evaluate_every", "log_every", "ahead"):
            check_count("FitConfig", name, getattr(self, name), 0)
        check_count("FitConfig", "keep", self.keep, 1)
        check_choice("FitConfig", "schedule", self.schedule, SCHEDULES)
        check_choice("FitConfig", "precision", self.precision, PRECISIONS)
        for name in ("rate", "decay", "clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"FitConfig: {name} must be at least 0, got {getattr(self, name)!r}")


# What a resumed run may change: nothing that the loss curve depends on.
MAY_CHANGE = ("device", "save_every", "evaluate_every", "log_every", "keep", "ahead")


@dataclass(frozen=True)
class RunConfig:
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
    _check_names(str(path), table, ["task", "fit", name])
    for part in ("fit", name):
        if not isinstance(table.get(part, {}), dict):
            raise ValueError(f"train: {path}: {part} must be a table, got {table[part]!r:.60}")
    return RunConfig(name, from_table(FitConfig, table.get("fit", {}), f"{path}: fit"), dict(table.get(name, {})))


def from_table(kind: type[Kind], table: dict[str, Any], where: str) -> Kind:
    """A dataclass from a TOML table; an unknown name or a wrong type is an error that lists the known names.

    Fields may be bool, int, float, str, Path, tuple[T, ...], dict[str, T] or T | None of these.
    """
    hints = typing.get_type_hints(kind)
    fields: Any = kind
    known = {one.name: one for one in dataclasses.fields(fields)}
    _check_names(where, table, known)
    needed = [
        name
        for name, one in known.items()
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING and name not in table
    ]
    if needed:
        raise ValueError(f"train: {where} must have {needed[0]}")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in table.items()})


def _check_names(where: str, table: dict[str, Any], known: typing.Iterable[str]) -> None:
    known = list(known)
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
    return {one.name: _plain(getattr(config, one.name)) for one in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return str(value) if isinstance(value, Path) else value
