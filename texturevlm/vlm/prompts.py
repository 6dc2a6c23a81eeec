"""Prompts and their pictures: which picture belongs to which prompt, and the text around them.

One prompt with its images, or a list of prompts with theirs; a prompt is a question, a conversation (a list of
messages), or text that already holds the model's own placeholders.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor

from texturevlm.check import check_shapes
from texturevlm.types import Allocation, Texture

Prompt = str | list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class PromptImage:
    """Images of one size, or the frames of a video, with their allocation.

    weight: (B, K), weight of each token; None: 1
    pixels: (B, K, 3, P, P), what the tokens show in the place of the texture's own samples; None: these
    """

    texture: Texture
    allocation: Allocation
    weight: Tensor | None = None
    pixels: Tensor | None = None

    @property
    def is_video(self) -> bool:
        """Several frames under one allocation."""
        return self.texture.batch > 1 and self.allocation.batch == 1


def is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)


def pair(
    function: str, prompts: Any, textures: Any, allocations: Any, weights: Any = None, pixels: Any = None
) -> list[tuple[Prompt, list[PromptImage]]]:
    """Each prompt with its pictures.

    prompts: one, or a list of them. With one, all textures belong to it, in order; a Texture that has several images
             where its Allocation has one is a video. With several, one entry of textures (a Texture or a list) each,
             or one Texture whose batch has as many images
    """
    if isinstance(prompts, str) or is_conversation(prompts):
        return [(prompts, _pictures(function, textures, allocations, weights, pixels))]
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise TypeError(f"{function}: prompts must be a text, messages, or a list of those, got {prompts!r:.60}")
    if isinstance(textures, Texture):
        textures, allocations, weights, pixels = _apart(function, textures, allocations, weights, pixels)
    weights, pixels = ([None] * len(prompts) if column is None else column for column in (weights, pixels))
    if not len(prompts) == len(textures) == len(allocations) == len(weights) == len(pixels):
        raise ValueError(
            f"{function}: textures and allocations must be one per prompt ({len(prompts)}), "
            f"got {len(textures)} and {len(allocations)}"
        )
    given = zip(prompts, textures, allocations, weights, pixels)
    return [(prompt, _pictures(function, *own)) for prompt, *own in given]


def _pictures(function: str, textures: Any, allocations: Any, weights: Any, pixels: Any) -> list[PromptImage]:
    if isinstance(textures, Texture) != isinstance(allocations, Allocation):
        got = f"{type(textures).__name__} and {type(allocations).__name__}"
        raise TypeError(f"{function}: textures and allocations must both be lists, or one of each, got {got}")
    if isinstance(textures, Texture):
        textures, allocations, weights, pixels = [textures], [allocations], [weights], [pixels]
    weights, pixels = ([None] * len(textures) if column is None else column for column in (weights, pixels))
    if not len(textures) == len(allocations) == len(weights) == len(pixels):
        raise ValueError(f"{function}: allocations must be one per texture ({len(textures)}), got {len(allocations)}")
    for allocation, weight, own in zip(allocations, weights, pixels):
        if weight is not None:
            check_shapes(function, valid=(allocation.valid, "B K"), weights=(weight, "B K"))
        if own is not None:
            side = allocation.patch
            check_shapes(function, valid=(allocation.valid, "B K"), pixels=(own, f"B K 3 {side} {side}"))
    return [PromptImage(*parts) for parts in zip(textures, allocations, weights, pixels)]


def _apart(function: str, texture: Texture, allocation: Allocation, *columns: Tensor | None) -> tuple[Any, ...]:
    """A batch as single images."""
    if not isinstance(allocation, Allocation) or allocation.batch != texture.batch:
        got = allocation.batch if isinstance(allocation, Allocation) else type(allocation).__name__
        raise ValueError(f"{function}: allocations must be for the texture's {texture.batch} images, got {got}")
    singles = [slice(image, image + 1) for image in range(texture.batch)]
    allocations = [allocation.each(itemgetter(image)) for image in singles]
    return (
        texture.split(),
        allocations,
        *(None if column is None else [column[own] for own in singles] for column in columns),
    )


def worded(function: str, processor: Any, prompt: Prompt, pictures: Sequence[PromptImage], marks: Sequence[str]) -> str:
    """The prompt as text by the chat template of the model, with one placeholder per picture.

    marks: the placeholders; a text that holds one of them is used as it is
    """
    if isinstance(prompt, str):
        if any(mark in prompt for mark in marks):
            return prompt
        content: list[dict[str, Any]] = []
        for picture in pictures:
            content += [{"type": "video"}] if picture.is_video else [{"type": "image"}] * picture.texture.batch
        prompt = [{"role": "user", "content": [*content, {"type": "text", "text": prompt}]}]
    speaker: Any
    for speaker in (processor, getattr(processor, "tokenizer", None)):
        if getattr(speaker, "chat_template", None):
            return str(speaker.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))
    raise ValueError(
        f"{function}: processor must have a chat template to make a prompt of a question (a file chat_template.jinja "
        f"beside the model); without one give the prompt with its placeholders, {' or '.join(marks)}"
    )


def filled(function: str, text: str, marks: Sequence[str], fillings: Sequence[str]) -> str:
    """The text with its placeholders, in order, replaced."""
    longest_first = sorted(marks, key=len, reverse=True)
    mark = re.compile("|".join(re.escape(placeholder) for placeholder in longest_first))
    if (count := len(mark.findall(text))) != len(fillings):
        raise ValueError(f"{function}: prompt must have one placeholder per picture ({len(fillings)}), got {count}")
    following = iter(fillings)
    return mark.sub(lambda _: next(following), text)
