"""A processor of transformers that chooses tokens: text and images in, exactly a budget of visual tokens out.

It takes the place of the model's own processor in any code: calls, chat templates, collators, workers, Trainer. It runs
on the CPU and never touches the model: what it returns says where every patch lies. The model must be attached.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from torch.nn.functional import pad
from transformers import BatchFeature, ProcessorMixin
from transformers.processing_utils import ProcessingKwargs

from texturevlm.ask.attachment import attached_to, check_still_hooked, detach, hooked, none_attached
from texturevlm.ask.attention import place_by_model
from texturevlm.ask.config import (
    SAVED,
    check_belongs,
    check_context,
    check_drawn,
    check_family_looks,
    several,
    write_settings,
)
from texturevlm.ask.layout import VideoPrompts, by_prompt, video_options
from texturevlm.ask.messages import Questions, images_of, question_of, without_marks
from texturevlm.channels import HUB_OPTIONS
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE, TURN
from texturevlm.placement import Allocator, Picture, Placement, TokenConfig, open_image, place_together, prepare
from texturevlm.registry import near_miss
from texturevlm.relevance import reads_question
from texturevlm.types import Patches
from texturevlm.vlm import FAMILIES, PromptImage, View, adapter_for, installed
from texturevlm.vlm.prompts import is_conversation
from texturevlm.vlm.views import sampled_view

MASKED = (5, 18)  # of transformers: masks of the assistant's tokens are right behind images since then
OWN_SAMPLING = "texturevlm samples images, and the budget decides how"
OPTION_GROUPS = ("text_kwargs", "images_kwargs", "common_kwargs", "videos_kwargs")  # of a call
NOT_FOR_IMAGES = {"return_tensors", "return_metadata", *OPTION_GROUPS}


class TextureProcessor(ProcessorMixin):  # type: ignore[misc]
    """Wraps a model's processor.

    processor: of the model: what has a tokenizer and an image processor
    config:    of the model
    budget:    visual tokens that all images of a prompt share; a pair (low, high) draws one per prompt, for training
    allocator: how tokens are chosen, as in `choose_tokens`
    relevance: likewise; several names draw one per prompt, for training
    turn:      the angle of the text of images in degrees, or auto: it is found, and patches arrive upright
    The question of a prompt is the last turn of the user in the messages that `apply_chat_template` was given, or the
    argument `question` of a call.
    """

    def __init__(
        self,
        processor: Any,
        config: Any,
        *,
        budget: int | tuple[int, int] = BUDGET,
        allocator: str | Allocator = ALLOCATOR,
        relevance: str | Sequence[str] = RELEVANCE,
        turn: float | str = TURN,
    ) -> None:
        self.processor: Any = processor.processor if isinstance(processor, TextureProcessor) else processor
        processor = self.processor
        if getattr(processor, "tokenizer", None) is None or getattr(processor, "image_processor", None) is None:
            raise TypeError(
                f"TextureProcessor: processor must be the model's processor, which takes images and text, "
                f"got {type(processor).__name__}"
            )
        family = getattr(config, "model_type", type(config).__name__)
        if family not in FAMILIES:
            raise ValueError(f"TextureProcessor: config must be of one of {', '.join(FAMILIES)}, got {family}")
        check_drawn("TextureProcessor", budget, relevance)
        how = TokenConfig(allocator=allocator, turn=turn).check("TextureProcessor")
        self.config = config
        self.budget = (int(budget[0]), int(budget[1])) if isinstance(budget, (tuple, list)) else int(budget)
        self.allocator, self.relevance, self.turn = allocator, relevance, how.turn
        check_context("TextureProcessor", budget, config)
        for name in several(relevance):
            check_family_looks("TextureProcessor", 1, config, name)
        self.adapter = adapter_for(config, processor)
        check_belongs("TextureProcessor", processor, config, self.adapter)
        self.questions = Questions()
        self._warned: set[str] = set()

    def __call__(
        self,
        images: Any = None,
        text: Any = None,
        videos: Any = None,
        audio: Any = None,
        *,
        question: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        """Inputs of the model. Text alone is processed as by the model's own processor.

        images:   one image, a flat list, or a list per text; what `Texture.open` takes, or Patches, whose tokens are
                  chosen already (`corpus.open`)
        videos:   likewise, what `open_video` takes; the option fps says how many frames per second are looked at
        text:     a prompt, or a list of them, with one placeholder per image
        question: of each text, if the texts did not come from this processor's `apply_chat_template`
        options:  of the model's own processor; those for images are refused, because the budget decides
        """
        own = videos is not None and self.adapter.videos and audio is None and text is not None
        if not own and (videos is not None or audio is not None or (text is None and images is not None)):
            if not callable(self.processor):
                raise TypeError(
                    "processor: videos need transformers' own processor, which needs torchvision; got one for images"
                )
            given = {"images": images, "text": text, "videos": videos, "audio": audio}
            return self.processor(**{name: value for name, value in given.items() if value is not None}, **options)
        if text is None:
            raise ValueError("processor: text must be a prompt or a list of prompts, got none")
        texts = list(text) if isinstance(text, (list, tuple)) else [text]
        if not texts:
            raise ValueError("processor: text must be a prompt or a list of prompts, got an empty list")
        if wrong := [prompt for prompt in texts if not isinstance(prompt, str)]:
            raise TypeError(f"processor: text must be a text or a list of texts, got {type(wrong[0]).__name__}")
        options = {name: value for name, value in options.items() if name not in OPTION_GROUPS or value is not None}
        fps = video_options(options) if own else None
        self._check_image_options(options)
        if images is not None or own:
            check_still_hooked(self)
            self._warn_if_none_attached()
        filmed: dict[str, Tensor] = {}
        if own:
            texts, filmed = self._with_videos(texts, images, videos, question, fps)
        views = self._views(texts, images, question)
        found = super().__call__(images=views or None, text=texts, **options)
        found.update(filmed)
        if "input_ids" in found:
            _add_missing(found, self.adapter.id_inputs)
        return found

    def apply_chat_template(self, conversation: Any, *args: Any, **options: Any) -> Any:
        """As that of the model's processor; the question is the text of the last turn of the user."""
        if not conversation:
            raise ValueError("apply_chat_template: conversation must have messages, got none")
        batch = [conversation] if is_conversation(conversation) else list(conversation)
        if wrong := [messages for messages in batch if not is_conversation(messages)]:
            wanted = "messages, or a list of conversations"
            raise TypeError(f"apply_chat_template: conversation must be {wanted}, got {wrong[0]!r:.60}")
        if options.get("return_assistant_tokens_mask") and installed() < MASKED and any(map(images_of, batch)):
            wanted, got = (".".join(map(str, version)) for version in (MASKED, installed()))
            raise ImportError(
                "apply_chat_template: return_assistant_tokens_mask with images needs transformers "
                f"{wanted} or newer, because masks are misaligned before, got {got}"
            )
        questions = [without_marks(question_of(messages), self.adapter.marks) for messages in batch]
        with self.questions.rendering(questions):
            found = super().apply_chat_template(conversation, *args, **options)
        self.questions.remember(found, questions, options.get("chat_template"))
        return found

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **options: Any) -> Any:
        """The files of the model's own processor, and texturevlm.json with our options beside them.

        `TextureProcessor.from_pretrained` and `load_vlm` load them. `AutoProcessor` loads a processor of transformers
        that was wrapped (Qwen's needs torchvision); of the parts that `load_vlm` loaded it makes only a tokenizer.
        push_to_hub, options: as for transformers' `push_to_hub`; repo_id is the name of the folder unless it is given
        """
        for option, given in [
            ("allocator", self.allocator),
            *(("relevance", name) for name in several(self.relevance)),
        ]:
            if not isinstance(given, str):
                raise ValueError(f"save_pretrained: {option} must be a name to be saved, got {given!r:.60}")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        saved = self.processor.save_pretrained(folder)
        write_settings(folder, self)
        if push_to_hub:  # by itself, because the processor's own would push nothing that it did not write
            self.push_to_hub(options.pop("repo_id", folder.resolve().name), **options)
        return saved

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> TextureProcessor:
        """From a folder of `save_pretrained`, or from any checkpoint of a family; options override what is saved."""
        from texturevlm.ask.pretrained import load_processor

        given = {option: options.pop(option, None) for option in SAVED}
        own = {option: value for option, value in given.items() if value is not None}
        if unknown := [option for option in options if option not in HUB_OPTIONS]:
            known = (*SAVED, *HUB_OPTIONS)
            got = f"{', '.join(unknown)}{near_miss(unknown[0], known)}"
            raise TypeError(f"from_pretrained: options must be of {', '.join(known)}, got {got}")
        processor, config, saved = load_processor("TextureProcessor", name, **options)
        return cls(processor, config, **saved | own)

    def detach(self) -> Any:
        """Undo `attach`: the model reads whole images again if no other processor is attached to it."""
        return detach(self)

    def __getattr__(self, name: str) -> Any:
        if name != "processor" and not name.startswith("__") and hasattr(self.processor, name):
            return getattr(self.processor, name)
        raise AttributeError(f"TextureProcessor and what it wraps have no attribute {name!r}")

    def __repr__(self) -> str:
        allocator = self.allocator if isinstance(self.allocator, str) else getattr(self.allocator, "__name__", "custom")
        return (
            f"TextureProcessor({type(self.processor).__name__} for {self.config.model_type}, budget={self.budget}, "
            f"allocator={allocator!r}, relevance={self.relevance!r})"
        )

    # What ProcessorMixin asks of a processor.

    @property
    def chat_template(self) -> Any:
        """The processor's own, or its tokenizer's."""
        return getattr(self.processor, "chat_template", None) or getattr(
            self.processor.tokenizer, "chat_template", None
        )

    @chat_template.setter
    def chat_template(self, template: str) -> None:
        """Of the processor that is wrapped, so that it is saved and asked with, too."""
        holder = self.processor if hasattr(self.processor, "chat_template") else self.processor.tokenizer
        holder.chat_template = template

    @property
    def image_token(self) -> str:
        """What stands for an image in a prompt."""
        return self.adapter.mark

    @property
    def image_token_id(self) -> int:
        """The id of a visual token."""
        return int(self.config.image_token_id)

    @property
    def model_input_names(self) -> list[str]:
        """As the model's own processor says."""
        return list(getattr(self.processor, "model_input_names", ["input_ids", "attention_mask", "pixel_values"]))

    @property
    def valid_processor_kwargs(self) -> Any:
        """As the model's own processor says."""
        return getattr(self.processor, "valid_processor_kwargs", ProcessingKwargs)

    def prepare_inputs_layout(
        self, images: Any = None, text: Any = None, videos: Any = None, audio: Any = None, **_: Any
    ) -> Any:
        """Everything was laid out by `__call__`."""
        return images, text, videos, audio

    def _process_images(self, images: Sequence[View], **options: Any) -> tuple[dict[str, Tensor], list[str]]:
        inputs = self.adapter.pixel_inputs(images)
        if inputs["pixel_values"].ndim > 2:
            # (images, patches, row): as many patches for all, so that collators can concatenate batches
            most = self.budget if isinstance(self.budget, int) else self.budget[1]
            missing = max(0, most * self.adapter.merge**2 - inputs["pixel_values"].shape[-2])
            inputs["pixel_values"] = pad(inputs["pixel_values"], (0, 0, 0, missing))
        return inputs, [self.adapter.placeholders(len(view)) for view in images]

    def _check_special_mm_tokens(self, text: Sequence[str], text_inputs: Any, modalities: Sequence[str]) -> None:
        word = self.adapter.word(self.config.image_token_id)
        wanted = [prompt.count(word) for prompt in text]
        got = [sum(int(index) == self.image_token_id for index in ids) for ids in text_inputs["input_ids"]]
        if wanted != got:
            raise ValueError(
                f"processor: max_length must leave room for all visual tokens {wanted}, got {got} after truncation"
            )

    # Choosing.

    def _views(self, texts: Sequence[str], images: Any, question: str | Sequence[str] | None) -> list[View]:
        """The chosen tokens of all images, in the order of their placeholders."""
        counts = [text.count(self.image_token) for text in texts]
        views: list[View] = []
        for own, asked in zip(by_prompt(images, counts), self.questions.of(texts, question, self._user_begins)):
            if not own:
                continue
            if any(isinstance(image, Patches) for image in own):
                views += self._sampled(own)
                continue
            how = self.config_for(len(own))
            if how.relevance == "attention":
                raise ValueError("processor: relevance must not be 'attention', which takes the looks of `VLM.ask`")
            if asked is None and reads_question(how.relevance):
                self._warn_once(
                    "processor: the question of this prompt is unknown, so tokens are chosen without one; render it "
                    "with this processor's apply_chat_template, or give the argument question"
                )
            placed = self._placed([prepare(open_image(image), how) for image in own], asked or "", how)
            for placement in placed:
                image = PromptImage(placement.picture.texture, placement.allocation)
                views += [view for group in self.adapter.groups(image) for view in group]
        return views

    def _user_begins(self, template: Any) -> str:
        """What a chat template writes between an answer and the words of a user; empty if that cannot be told."""
        said = [("user", "§1"), ("assistant", "§2"), ("user", "§3")]
        turns = [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in said]
        render = partial(self.processor.tokenizer.apply_chat_template, tokenize=False)
        template = template or self.chat_template
        try:
            answered, whole = (render(turns[:count], chat_template=template) for count in (2, 3))
        except (TemplateError, ValueError, TypeError, KeyError):  # one that takes other messages
            return ""
        ends, between = answered.partition("§2")[2], whole.partition("§2")[2].partition("§3")[0]
        ended = next((at for at, pair in enumerate(zip(ends, between)) if pair[0] != pair[1]), len(ends))
        return str(between[ended:]).strip()

    def config_for(self, images: int) -> TokenConfig:
        """How the tokens of a prompt with so many images are placed: what may be several is drawn."""
        names = several(self.relevance)
        relevance = names[0] if len(names) == 1 else random.choice(names)
        finer, side = self.adapter.trained.finer, self.adapter.side
        budget = self._drawn_budget(images)
        return TokenConfig(budget, self.allocator, relevance, turn=self.turn, finer=finer, patch=side)

    def _sampled(self, images: Sequence[Any]) -> list[View]:
        """The views of images whose tokens are chosen already."""
        if wrong := [image for image in images if not isinstance(image, Patches)]:
            got = type(wrong[0]).__name__
            raise TypeError(f"processor: images of a prompt must all be Patches if one is, got {got} among them")
        return [
            sampled_view("processor", patches, self.adapter.side, levels=self.adapter.trained.levels)
            for patches in images
        ]

    def _placed(self, pictures: Sequence[Picture], question: str, how: TokenConfig) -> list[Placement]:
        """The tokens of the images of one prompt; only the process that holds the model can ask its attention."""
        if how.relevance != "model":
            return place_together(pictures, question, how)
        if parent_process() is not None:
            raise ValueError(
                "processor: relevance 'model' asks the attached model, which a worker process does not have; process "
                "the images in the main process (DataLoader with num_workers=0), or choose another relevance"
            )
        network = attached_to(self)
        if network is None:
            raise ValueError("processor: relevance 'model' asks the attached model, got none; attach returns one")
        adapter = hooked(network, self).beside(self.processor)
        there = [picture.to(adapter.device) for picture in pictures]
        found = place_by_model(adapter, there, question, how)
        return [
            replace(placement, picture=picture, upright=placement.upright.to("cpu"))
            for picture, placement in zip(pictures, found)
        ]

    def _with_videos(
        self, texts: list[str], images: Any, videos: Any, question: str | Sequence[str] | None, fps: float | None
    ) -> tuple[list[str], dict[str, Tensor]]:
        """The texts with the placeholders of their videos, and the inputs that hold those."""
        if any(self.image_token in text for text in texts) and images is not None:
            raise ValueError("processor: images must be none beside videos, which share the budget, got some")
        prompts = VideoPrompts(self.adapter, fps, self.config_for(1))
        questions = self.questions.of(texts, question, self._user_begins)
        found, views = prompts.fill(texts, videos, questions, self._drawn_budget)
        return found, self.adapter.pixel_inputs(views)

    def _warn_if_none_attached(self) -> None:
        """The model itself would only say that a shape is wrong."""
        if none_attached():
            self._warn_once(
                "processor: no model of this process is attached, and a model that is not fails on chosen tokens: "
                "processor = tv.attach(model, processor)"
            )

    def _warn_once(self, said: str) -> None:
        if said not in self._warned:
            self._warned.add(said)
            warnings.warn(said, stacklevel=4)  # where the processor was called

    def _drawn_budget(self, images: int) -> int:
        if isinstance(self.budget, int):
            return self.budget
        low, high = self.budget
        return max(images, round(math.exp(random.uniform(math.log(low), math.log(high)))))

    def _check_image_options(self, options: dict[str, Any]) -> None:
        """Refuse what would be ignored."""
        kinds = self.valid_processor_kwargs.__annotations__
        for_text = set(getattr(kinds.get("text_kwargs"), "__annotations__", ())) | NOT_FOR_IMAGES
        for_images = set(getattr(kinds.get("images_kwargs"), "__annotations__", ()))
        for_images |= set(getattr(getattr(self.image_processor, "valid_kwargs", None), "__annotations__", ()))
        given = dict(options)
        for group in OPTION_GROUPS:
            if not isinstance(inner := options.get(group, {}), Mapping):
                raise TypeError(f"processor: {group} must be a dict of options, got {inner!r:.60}")
            given |= inner if group in ("images_kwargs", "text_kwargs") else {}
        for name, value in given.items():
            if name in for_images - for_text:
                raise ValueError(f"processor: {name} has no effect, because {OWN_SAMPLING}; got {name}={value!r:.40}")
            if name in SAVED:
                raise TypeError(f"processor: {name} must be given to attach or to TextureProcessor, got it in a call")
            if name not in for_text:
                got = f"{name}{near_miss(name, for_text)}"
                raise TypeError(f"processor: options must be those for text ({', '.join(sorted(for_text))}), got {got}")


def _add_missing(found: BatchFeature, id_inputs: Callable[[Tensor], dict[str, Tensor]]) -> None:
    """Add inputs that follow from the ids, as lists, arrays or tensors like these."""
    ids = found["input_ids"]
    rows = [id_inputs(torch.as_tensor(np.asarray(row))[None]) for row in ids]
    if "token_type_ids" in rows[0]:
        found.pop("mm_token_type_ids", None)  # Gemma 3 has another name for them, and refuses this one
    for name in rows[0]:
        if name not in found:
            table = [row[name][0].tolist() for row in rows]
            like = torch.tensor if isinstance(ids, Tensor) else np.array if isinstance(ids, np.ndarray) else list
            found[name] = like(table)
