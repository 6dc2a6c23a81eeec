"""What `texturevlm train` can train, by name: a class each, imported when it is asked for.

A class has `Settings`, a dataclass that the config's table of that name fills, and is made from one and a device; what
it must do then is in `fit.Task`.
"""

from __future__ import annotations

import importlib
from typing import Any

from texturevlm.check import check_choice
from texturevlm.train.config import RunConfig, from_table

TASKS: dict[str, str] = {
    "spotter": "texturevlm.train.spotting:Spotting",
    "ranker": "texturevlm.train.ranking:Ranking",
}


def task_of(config: RunConfig) -> tuple[Any, Any]:
    """The task that a config names, and its settings."""
    check_choice("train", "task", config.task, TASKS)
    module, name = TASKS[config.task].split(":")
    kind = getattr(importlib.import_module(module), name)
    settings = from_table(kind.Settings, config.own, config.task)
    return kind(settings, device=config.fit.device), settings
