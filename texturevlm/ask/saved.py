"""The file beside a saved processor: how tokens are chosen, and the config of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from texturevlm.ask.options import check_context, check_options
from texturevlm.channels.pretrained import Checkpoint
from texturevlm.defaults import BUDGET, TURN

FILE = "texturevlm.json"
SETTINGS = ("budget", "allocator", "relevance", "turn")


def write_settings(folder: Path, processor: Any) -> None:
    """The settings of a TextureProcessor whose allocator has a name."""
    table = {name: getattr(processor, name) for name in SETTINGS}
    table["model"] = processor.config.to_dict()
    (folder / FILE).write_text(json.dumps(table, indent=1, default=str) + "\n")


def read_settings(checkpoint: Checkpoint) -> tuple[dict[str, Any], Any]:
    """The settings and the config of the model; none and None if no TextureProcessor was saved there."""
    from transformers import AutoConfig

    path = checkpoint.file(FILE)
    if path is None:
        return {}, None
    try:
        saved = json.loads(path.read_text())
        model = saved.pop("model")
        config = AutoConfig.for_model(model.pop("model_type"), **model)
        saved.setdefault("turn", TURN)  # files of versions that turned nothing
        settings = {name: saved[name] for name in SETTINGS}
        if isinstance(settings["budget"], list):
            settings["budget"] = tuple(settings["budget"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{checkpoint.function}: {path} must be as save_pretrained wrote it, got {error!r:.80}"
        ) from error
    where = f"{checkpoint.function}: {path}"
    try:
        check_options(where, **settings)
        check_context(where, settings["budget"], config)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return settings, config


def for_answers(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for training, made single: the usual budget within the range, the first relevance."""
    found = dict(settings)
    if isinstance(found.get("budget"), tuple):
        low, high = found["budget"]
        found["budget"] = min(max(BUDGET, low), high)
    if isinstance(found.get("relevance"), list):
        found["relevance"] = found["relevance"][0]
    return found
