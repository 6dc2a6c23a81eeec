"""How far the tokens of a trained tower are from its own if it attends hierarchically, or in windows, in all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask import VLM
from texturevlm.vlm import adapt, own_grid
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import View
from texturevlm_lab.attention import AttentionOptions
from texturevlm_lab.attention.tower import TowerAttention
from texturevlm_lab.bench.attention_error import relative_error

ROWS: Sequence[dict[str, Any]] = (
    {"kind": "hierarchical", "fine": 0.1},
    {"kind": "hierarchical", "fine": 0.25},
    {"kind": "linear", "fine": 0.0},
    {"kind": "window", "fine": 0.0},
    {"kind": "window", "fine": 0.0, "neighbours": 4},
)


def tower_notes(model: VLM, image: Any, *, block: int) -> list[str]:
    """A table of the report: the relative error of the tokens that the language model gets."""
    adapter = adapt(model.model)
    (prepared,) = model.prepare(image).images
    (views,) = model.adapter.groups(PromptImage(prepared.texture, own_grid(model.adapter, prepared.texture)))
    patches = sum(map(len, views)) * adapter.merge**2
    dense = tower_tokens(adapter, views)
    lines = [
        f"Its tower, {patches} patches: relative error of the tokens behind the last block.",
        "",
        "| kind | fine | neighbours | tokens |",
        "|---|---|---|---|",
    ]
    for row in ROWS:
        options = AttentionOptions(block=block, group=block, **row)
        error = relative_error(tower_tokens(adapter, views, options), dense)
        lines.append(f"| {options.kind} | {options.fine:.0%} | {options.neighbours} | {error:.1%} |")
    return ["", *lines, ""]


def tower_tokens(adapter: Any, views: Sequence[View], options: AttentionOptions | None = None) -> Tensor:
    """(n, D): what the language model gets of views from a tower that attends so, densely by default."""
    hooks = [] if options is None else list(TowerAttention(adapter, options).hooks())
    try:
        with torch.no_grad():
            return torch.cat(adapter.embed(views)[0])
    finally:
        for one in reversed(hooks):
            one.remove()
