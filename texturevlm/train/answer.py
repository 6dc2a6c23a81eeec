"""Answer likelihood: how surprised an attached model is by the right answer, given what the tokens show.

Each candidate's embedding is multiplied by its weight on its way into the language model, so that gradients come back
to scores through the weights, and to positions and levels through the vision tower. All candidates that count at all
attend to one another in the tower: there the soft path is richer than the hard one until the temperature is low.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.train.soft import SoftTokens
from texturevlm.types import Texture


def surprise(adapter: Any, question: str, answer: str, texture: Texture, tokens: SoftTokens) -> Tensor:
    """The mean negative log-likelihood of the answer's tokens: a number, differentiable in the soft tokens.

    adapter: of a vision-language model (`texturevlm.vlm.adapt`), with its tokenizer
    texture: one image, with mip levels
    """
    ids = torch.tensor(adapter.tokenizer(answer, add_special_tokens=False)["input_ids"])
    if ids.numel() == 0:
        raise ValueError(f"surprise: answer must have words that the model knows, got {answer!r}")
    inputs = adapter.prepare(question, texture, tokens.allocation(), weights=tokens.weight)
    length = inputs["attention_mask"].shape[1]
    inputs = followed(adapter, inputs, ids.to(inputs["attention_mask"].device))
    logits = adapter.model(**inputs).logits[0, length - 1 : -1]
    return functional.cross_entropy(logits.float(), ids.to(logits.device))


def followed(adapter: Any, inputs: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Inputs of one prompt with the ids (n,) of an answer behind it."""
    count = len(ids)
    longer = dict(inputs)
    longer["attention_mask"] = functional.pad(inputs["attention_mask"], (0, count), value=1)
    if "input_ids" in inputs:
        longer["input_ids"] = torch.cat([inputs["input_ids"], ids[None]], 1)
    else:  # the family hands over embeddings
        embeds = adapter.model.get_input_embeddings()(ids[None])
        longer["inputs_embeds"] = torch.cat([inputs["inputs_embeds"], embeds.to(inputs["inputs_embeds"])], 1)
    if "mm_token_type_ids" in inputs:
        longer["mm_token_type_ids"] = functional.pad(inputs["mm_token_type_ids"], (0, count))
    if "position_ids" in inputs:
        last = inputs["position_ids"][..., -1:]
        further = torch.arange(1, count + 1, device=last.device).to(last.dtype)
        longer["position_ids"] = torch.cat([inputs["position_ids"], last + further], -1)
    return longer
