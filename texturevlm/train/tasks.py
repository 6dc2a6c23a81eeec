"""The tasks of `texturevlm train`, by name, imported when they are used.

A task is a class with a dataclass `Settings`, filled from the config's table of the task's name. It is constructed from
settings and a device, and implements `fit.Task`.
"""

from __future__ import annotations

import importlib
from typing import Any

from texturevlm.check import check_choice
from texturevlm.train.config import RunConfig, from_table

TASKS: dict[str, str] = {
    "spotter": "texturevlm.train.spotter_task:SpotterTask",
    "ranker": "texturevlm.train.ranker_task:RankerTask",
}


def task_of(config: RunConfig) -> tuple[Any, Any]:
    """The task of a config, and its settings."""
    check_choice("train", "task", config.task, TASKS)
    module, name = TASKS[config.task].split(":")
    kind = getattr(importlib.import_module(module), name)
    settings = from_table(kind.Settings, config.own, config.task)
    return kind(settings, device=config.fit.device), settings
