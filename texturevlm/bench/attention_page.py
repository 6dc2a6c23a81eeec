"""An A4 page with all its tokens in a model: dense and hierarchical attention of the language model, end to end.

The model has Qwen3-VL-4B's architecture with random weights, which do not change the time. The vision tower is dense in
both; it has a row of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from texturevlm.bench.report import Report
from texturevlm.bench.vlm_rows import add_row
from texturevlm.bench.vlm_theirs import prompt_ids, random_model, their_first_token
from texturevlm.types import Texture
from texturevlm.vlm import own_grid
from texturevlm.vlm.hierarchical import AttentionOptions, attend_hierarchically
from texturevlm.vlm.prompts import Picture
from texturevlm.vlm.qwen import QwenAdapter

A4, SMALL_PAGE = (3508, 2480), (256, 320)
WAYS = {
    "dense": None,
    "hierarchical, 10% fine": AttentionOptions(),
    "hierarchical, 10% fine, 4 layers share a choice": AttentionOptions(share=4),
}


def add_page(report: Report) -> None:
    """Rows for the first token and for each further token."""
    adapter = random_model(report.device, small=report.quick)
    size = SMALL_PAGE if report.quick else A4
    texture = Texture((torch.rand(1, 3, *size, device=report.device),)).mipmapped()
    grid = own_grid(adapter, texture)
    (views,) = adapter.groups(Picture(texture, grid))
    tokens = len(views[0])
    inputs = adapter.assemble([prompt_ids(adapter, tokens)], views)
    work = f"page of {tokens} visual tokens, 4B model"
    with torch.no_grad():
        add_row(report, work, "vision tower alone, dense", partial(adapter.embed, views), slow=True)
        for by, options in WAYS.items():
            model = adapter.restore()
            adapter.bind(model)
            if options is not None:
                attend_hierarchically(adapter, options)
            add_row(report, f"{work} → first token", by, partial(their_first_token, adapter, inputs), slow=True)
            add_row(report, f"{work}, each further token", by, next_token(adapter, inputs), slow=True)
    adapter.restore()


def next_token(adapter: QwenAdapter, inputs: dict[str, Tensor]) -> Any:
    """One step of decoding behind the prompt, again and again from the same cache."""
    from transformers import DynamicCache

    model = adapter.model
    cache = DynamicCache(config=model.config.get_text_config())
    model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    following = inputs["input_ids"][:, -1:]

    @torch.no_grad()
    def step() -> int:
        logits: Tensor = model(input_ids=following, past_key_values=cache, use_cache=True).logits
        cache.crop(-1)
        return int(logits[0, -1].argmax())

    return step
