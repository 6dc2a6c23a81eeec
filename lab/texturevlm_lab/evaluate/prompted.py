"""Prompts that are ready for a model, with chosen tokens, with its own input or without an image; answered in batches.

`VLM.ask` chooses and answers in one call. Here the two are apart, so that a measurement can compare what the same model
says to different inputs, and how likely it finds a given answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask import conversation_about
from texturevlm.ask.decoding import GREEDY, end_ids
from texturevlm.ask.messages import Message
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import Adapter, CapturedDecode, ModelHook, PromptImage, View, evaluating
from texturevlm.vlm.adapter import answer_ids
from texturevlm.vlm.captured_generate import decoded_by_graph
from texturevlm.vlm.hook import running
from texturevlm_lab.evaluate.own_input import OwnInput

NOWHERE: Mapping[str, str] = {}  # neither levels nor coordinates but the adapter's own


@dataclass(frozen=True, eq=False)
class Prompted:
    """One prompt.

    ids:    its tokens, one placeholder per visual token
    tokens: how many of them are visual
    views:  the chosen tokens, if they are
    own:    the pixel inputs of the model's own image processor otherwise; empty without an image
    """

    ids: list[int]
    tokens: int = 0
    views: list[View] = field(default_factory=list)
    own: dict[str, Tensor] = field(default_factory=dict)


def chosen_prompt(
    adapter: Adapter,
    prompt: str | list[Message],
    textures: Sequence[Texture],
    allocations: Sequence[Allocation],
    *,
    place: Mapping[str, str] = NOWHERE,
) -> Prompted:
    """A question, or a conversation with one block per image, about the chosen tokens of images, or about none.

    place: levels and coordinates, as in `Adapter.prepare`
    """
    pictures = [PromptImage(*pair) for pair in zip(textures, allocations)]
    groups = [group for one in pictures for group in adapter.groups(one, **place)]
    messages = conversation_about(len(pictures), prompt, adapter.marks) if isinstance(prompt, str) else prompt
    ids = adapter.spell(messages, pictures, [adapter.filling(group, 0) for group in groups])
    views = [view for group in groups for view in group]
    return Prompted(ids, sum(len(view) for view in views), views)


def own_prompt(adapter: Adapter, question: str, image: OwnInput) -> Prompted:
    """A question about one image as the unmodified model gets it."""
    conversation = conversation_about(1, question, adapter.marks)
    ids = adapter.spell(conversation, [], [adapter.image_filling(image.tokens)])
    return Prompted(ids, image.tokens, own=image.inputs)


def batched_inputs(
    adapter: Adapter,
    prompts: Sequence[Prompted],
    endings: Sequence[Sequence[int]] | None = None,
    *,
    place: Mapping[str, str] = NOWHERE,
) -> dict[str, Tensor]:
    """The inputs of the model for prompts of one kind, padded on the left.

    endings: token ids that follow each prompt
    place:   as in `chosen_prompt`
    """
    ids = [one.ids for one in prompts]
    if endings is not None:
        ids = [[*one, *more] for one, more in zip(ids, endings)]
    if views := [view for one in prompts for view in one.views]:
        return adapter.assemble(ids, views, **{name: one for name, one in place.items() if name == "coordinates"})
    inputs = {name: value.to(adapter.device) for name, value in adapter.text_inputs(ids).items()}
    return inputs | {name: torch.cat([one.own[name] for one in prompts]) for name in prompts[0].own}


def generated(
    adapter: Adapter,
    prompts: Sequence[Prompted],
    *,
    place: Mapping[str, str] = NOWHERE,
    hooks: Sequence[ModelHook] = (),
    decode: CapturedDecode | None = None,
    **options: Any,
) -> list[str]:
    """The answers to prompts of one kind.

    place:   as in `chosen_prompt`
    hooks:   what changes the model
    decode:  a graph that every token but the first comes from, where it can
    options: of the model's `generate`; decoding is greedy unless they ask for sampling
    """
    inputs = batched_inputs(adapter, prompts, place=place)
    how = GREEDY | options
    with (
        adapter.lock,
        torch.no_grad(),
        evaluating(adapter.model),
        running(adapter, hooks) as known,
        nullcontext() if decode is None else decoded_by_graph(adapter.model, decode, known, how),
    ):
        found = adapter.model.generate(**inputs, **how)
    return [text.strip() for text in adapter.decode(answer_ids(found, inputs["input_ids"].shape[1]))]


def log_likelihoods(
    adapter: Adapter,
    prompts: Sequence[Prompted],
    answers: Sequence[str],
    *,
    place: Mapping[str, str] = NOWHERE,
    hooks: Sequence[ModelHook] = (),
) -> list[list[float]]:
    """The log-probability of each token of a given answer, and of the token that ends it, if the model has one.

    The answer is given to the model token by token (teacher forcing), all prompts in one forward pass.
    """
    end = end_token(adapter)
    endings = [
        adapter.tokenizer(text, add_special_tokens=False)["input_ids"] + ([] if end is None else [end])
        for text in answers
    ]
    if any(not ending for ending in endings):
        raise ValueError("log_likelihoods: answers must have at least one token, got an empty one")
    inputs = batched_inputs(adapter, prompts, endings, place=place)
    kept = 1 + max(len(ending) for ending in endings)
    run = running(adapter, hooks, endings=[len(ending) for ending in endings])
    with adapter.lock, torch.no_grad(), evaluating(adapter.model), run:
        logits = adapter.model(**inputs, logits_to_keep=kept, use_cache=False).logits
    # Every prompt ends at the last position, because they are padded on the left.
    said = logits[:, -kept:-1].float().log_softmax(-1)
    found = said.gather(-1, inputs["input_ids"][:, 1 - kept :, None].to(said.device))[..., 0].tolist()
    return [row[len(row) - len(ending) :] for row, ending in zip(found, endings)]


def end_token(adapter: Adapter) -> int | None:
    """The id with which the model ends an answer: its tokenizer's own if that is among several."""
    ends = end_ids(adapter.model)
    own = getattr(adapter.tokenizer, "eos_token_id", None)
    return None if not ends else own if own in ends else ends[0]
