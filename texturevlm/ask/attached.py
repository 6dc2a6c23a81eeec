"""`attach`: make a model and a processor that the user has read a budget of chosen tokens.

After that a call of the processor, and so `apply_chat_template(tokenize=True)`, chooses tokens wherever text comes with
images; what it returns goes into the model's `forward` and `generate` as before. Text alone and videos are processed as
before. The processor gets a class of its own for this, because Python looks up calls on the class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from texturevlm.ask.inputs import inputs_with_ids
from texturevlm.ask.model import VLM, check_options
from texturevlm.ask.pretrained import ARCHITECTURES
from texturevlm.check import check_choice
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE
from texturevlm.pipeline import Allocator
from texturevlm.vlm import adapt

MARK = "texturevlm_vlm"  # attribute of the class of an attached processor
CUT = "\0"  # stands for a special token
# The role of a turn: behind a special token, or in capitals with a colon.
HEAD = re.compile(rf"(?i:(?:^|(?<={CUT}))\s*(user|human|assistant|system)\b\s*:?)|\b(USER|HUMAN|ASSISTANT)\s*:")


def attach(
    model: nn.Module,
    processor: Any,
    *,
    budget: int = BUDGET,
    allocator: str | Allocator = ALLOCATOR,
    relevance: str = RELEVANCE,
    captured: bool | None = None,
) -> VLM:
    """Make a transformers model and its processor read a budget of chosen tokens; attaching again changes the options.

    budget:    visual tokens that all images of a prompt share
    allocator, relevance: how they are chosen, as in `choose_tokens`; the question is the user's last turn
    captured:  as in `load_vlm`, for `ask` only; the user's own `generate` runs as before
    returns    a VLM, which can be asked too; its `detach` restores everything
    The processor then always returns tensors on the model's device, and pads batches on the left.
    """
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    check_choice("attach", "model", family, ARCHITECTURES)
    if not callable(processor) or getattr(processor, "tokenizer", None) is None:
        raise TypeError(
            f"attach: processor must be the model's processor, which takes images and text, "
            f"got {type(processor).__name__}"
        )
    check_options("attach", budget, allocator, relevance)
    earlier: VLM | None = getattr(type(processor), MARK, None)
    if earlier is not None:
        earlier.detach()
    vlm = VLM(adapt(model, processor), budget=budget, allocator=allocator, relevance=relevance, captured=captured)
    own = type(processor)

    def call(self: Any, images: Any = None, text: Any = None, videos: Any = None, **options: Any) -> Any:
        if text is None or videos is not None or not _flat(images):
            given = {"images": images, "text": text, "videos": videos}
            return own.__call__(self, **{name: value for name, value in given.items() if value is not None}, **options)
        return _batch(_chosen_inputs(vlm, text, images))

    processor.__class__ = type(own.__name__, (own,), {"__call__": call, MARK: vlm, "__module__": own.__module__})
    hook = model.register_forward_pre_hook(_embeddings_before_ids, with_kwargs=True)
    vlm.on_detach(hook.remove)
    vlm.on_detach(lambda: setattr(processor, "__class__", own))
    return vlm


def question_in(text: str, special: Sequence[str]) -> str:
    """The last turn of the user in a text that a chat template made, without special tokens."""
    marks = "|".join(re.escape(mark) for mark in sorted(special, key=len, reverse=True) if mark)
    plain = re.sub(marks, CUT, text) if marks else text
    heads = list(HEAD.finditer(plain))
    ends = [head.start() for head in heads[1:]] + [len(plain)]
    turns = [
        plain[head.end() : end]
        for head, end in zip(heads, ends)
        if (head.group(1) or head.group(2)).lower() in ("user", "human")
    ]
    return " ".join((turns[-1] if turns else plain).replace(CUT, " ").split())


def _chosen_inputs(vlm: VLM, text: Any, images: Any) -> dict[str, Tensor]:
    """Inputs for the prompts, with tokens chosen for the question of each."""
    texts = [text] if isinstance(text, str) else list(text)
    if wrong := [one for one in texts if not isinstance(one, str)]:
        raise TypeError(f"processor: text must be a text or a list of texts, got {type(wrong[0]).__name__}")
    adapter = vlm.adapter
    tokenizer, config = adapter.tokenizer, adapter.model.config
    (mark,) = tokenizer.convert_ids_to_tokens([config.image_token_id])
    special = {*tokenizer.all_special_tokens, *getattr(tokenizer, "added_tokens_encoder", {})}
    textures, allocations = [], []
    for prompt, own in zip(texts, _by_prompt(images, [prompt.count(mark) for prompt in texts])):
        session = vlm.prepare([_opened(image) for image in own])
        chosen = session.choose(question_in(prompt, sorted(special)))
        textures.append([image.texture for image in session.images])
        allocations.append([one.allocation for one in chosen])
    return inputs_with_ids(adapter, texts, textures, allocations)


def _by_prompt(images: Any, counts: Sequence[int]) -> list[list[Any]]:
    """Distribute images, flat or in lists, over prompts with `counts` placeholders each."""
    flat = _flat(images)
    if len(flat) != sum(counts) or 0 in counts:
        raise ValueError(
            f"processor: each text must have one placeholder per image and at least one, got {len(flat)} images for "
            f"{list(counts)} placeholders"
        )
    following = iter(flat)
    return [[next(following) for _ in range(count)] for count in counts]


def _flat(images: Any) -> list[Any]:
    if images is None:
        return []
    if isinstance(images, (list, tuple)):
        return [image for part in images for image in _flat(part)]
    return [images]


def _opened(image: Any) -> Any:
    """Open what transformers takes for an image: URLs and base64 too."""
    if isinstance(image, str) and not os.path.exists(image):
        from transformers.image_utils import load_image

        return load_image(image)
    return image


def _embeddings_before_ids(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop the ids beside LLaVA's embeddings: only `generate` needs them."""
    if kwargs.get("inputs_embeds") is not None and kwargs.get("input_ids") is not None:
        return args, kwargs | {"input_ids": None}
    return None


def _batch(inputs: dict[str, Tensor]) -> Any:
    return _batch_class()(inputs)


@lru_cache(maxsize=1)
def _batch_class() -> Any:
    from transformers import BatchFeature

    class ChosenInputs(BatchFeature):  # type: ignore[misc]  # transformers is not checked, so this is Any
        """What the processor returns. Positions may be fractions: a cast to fp16 or bf16 leaves them in float32."""

        def to(self, *args: Any, **kwargs: Any) -> Any:
            exact = self.data.get("position_ids")
            moved = super().to(*args, **kwargs)
            if exact is not None:
                moved.data["position_ids"] = exact.to(moved.data["input_ids"].device)
            return moved

    return ChosenInputs
