"""Inputs of a model that always include the ids of the prompt.

LLaVA takes embeddings; the ids beside them say where the visual tokens are, and let `generate` return the prompt before
the answer, as users expect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.prompts import filled, pair, worded


def inputs_with_ids(adapter: Any, prompts: Any, textures: Any, allocations: Any) -> dict[str, Tensor]:
    """The inputs that the adapter prepares, and `input_ids`."""
    inputs: dict[str, Tensor] = adapter.prepare(prompts, textures, allocations)
    if "input_ids" in inputs:
        return inputs
    (mark,) = adapter.tokenizer.convert_ids_to_tokens([adapter.model.config.image_token_id])
    mask = inputs["attention_mask"]
    ids = torch.full_like(mask, getattr(adapter.tokenizer, "pad_token_id", None) or 0)
    for row, (prompt, pictures) in zip(ids, pair("prepare", prompts, textures, allocations)):
        counts = [int(count) for picture in pictures for count in picture.allocation.valid.sum(1)]
        text = worded("prepare", adapter.processor, prompt, pictures, [mark])
        own = adapter.tokenizer(filled("prepare", text, [mark], [mark * adapter.tokens_for(one) for one in counts]))
        row[len(row) - len(own["input_ids"]) :] = torch.as_tensor(own["input_ids"])
    return {"input_ids": ids, **inputs}
