"""A session: one or several images under one budget, prepared once for any number of questions.

A second look keeps the overview of the first and spends the rest of the budget where the attention of the model went.
With relevance "model" the overview is not kept, and all of the budget follows (attended.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from texturevlm.ask.asked import Asked
from texturevlm.ask.attended import attended, choose_by_model, overview
from texturevlm.ask.choose import Chosen, check_budget, choose, joined, shown_by, spend
from texturevlm.ask.messages import conversation_with
from texturevlm.ask.options import Choosing
from texturevlm.ask.prepared import PreparedImage
from texturevlm.draw import question_picture, stacked
from texturevlm.pipeline import Allocator
from texturevlm.relevance import Relevance
from texturevlm.types import Texture
from texturevlm.vlm import grid_weights, own_grid

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

FIRST_LOOK = 0.25  # share of the budget for the overview of several looks
FINEST = 1.001  # pixels per sample: an overview that is nowhere coarser needs no second look


class ImageSession:
    """Images prepared for a model; made by `VLM.prepare`."""

    def __init__(self, model: VLM, images: Sequence[PreparedImage]) -> None:
        self.model, self.images = model, list(images)
        self._last: tuple[Any, list[Chosen]] | None = None  # what was chosen last, and for what

    def ask(self, question: Any, **options: Any) -> Any:
        """The answer, or a list of answers to a list of questions; options of `VLM.ask`."""
        return self.model.ask(self, question, **options)

    def look(
        self,
        question: str = "",
        *,
        answer: str = "",
        looks: int | str | None = None,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
    ) -> Image.Image:
        """Draw what the model sees when it is asked: what the tokens show, the footprints, the relevance; upright.

        answer: to write behind the question; other arguments as for `VLM.ask`
        """
        chosen = self.chosen(question, self._how(question, looks, budget, allocator, relevance, turn))
        pictures = [
            question_picture(image.texture, one.allocation, one.relevance, f"{question}  {answer}".strip())
            for image, one in zip(self.images, chosen)
        ]
        return stacked(pictures)

    def choose(
        self,
        question: str = "",
        *,
        looks: int | str | None = None,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
    ) -> list[Chosen]:
        """Choose the tokens of each image, without asking the model for an answer; arguments as for `VLM.ask`."""
        how = self._how(question, looks, budget, allocator, relevance, turn)
        return self.as_given(self.chosen(question, how))

    def as_given(self, chosen: Sequence[Chosen]) -> list[Chosen]:
        """What `chosen` returns, with footprints in the images as they were given, which may be turned."""
        return [
            replace(one, allocation=image.as_given(one.allocation), relevance=image.relevance_as_given(one.relevance))
            for image, one in zip(self.images, chosen)
        ]

    def _how(self, question: Any, looks: Any, budget: Any, allocator: Any, relevance: Any, turn: Any) -> Choosing:
        if not isinstance(question, str):
            raise TypeError(f"ask: question must be text, got {type(question).__name__}")
        options = {"looks": looks, "budget": budget, "allocator": allocator, "relevance": relevance, "turn": turn}
        return self.model.choosing(**options)

    def chosen(self, question: str, how: Choosing) -> list[Chosen]:
        """The tokens of each image, turned upright. What was chosen last is kept, as far as nothing else decides."""
        check_budget(how.budget, len(self.images))
        for image in self.images:
            image.on(self.model.device)
            image.enlarge(how.tokens != "weighted")  # which is the model's own grid over the image as it is
            image.turn(how.turn)
        wanted = (question, how.of_tokens, self.model.device)
        if self._last is not None and self._last[0] == wanted:
            return list(self._last[1])
        found = self._chosen(question, how)
        alone = how.looks == 1 and how.relevance != "model"  # the model's weights decide nothing
        if alone and isinstance(how.allocator, str):  # weights and functions of a caller may change
            self._last = wanted, list(found)  # the caller may change what it gets
        return found

    def _chosen(self, question: str, how: Choosing) -> list[Chosen]:
        if how.looks == 2:
            return self._second_look(question, how)
        if how.relevance == "model":
            self.model.check_attached()
            return choose_by_model(
                self.model.adapter, self.images, question, budget=how.budget, allocator=how.allocator
            )
        if how.tokens == "weighted":
            by: Any = {"budget": how.budget, "relevance": how.relevance}
            return [self._weighted(image.texture, image.relevance(question, **by)) for image in self.images]
        options: Any = {"budget": how.budget, "allocator": how.allocator, "relevance": how.relevance}
        captured = self.model.choose_captured(self.images[0], question, **options) if len(self.images) == 1 else None
        return choose(self.images, question, **options) if captured is None else [captured]

    def asked(self, prompt: Any, question: str, how: Choosing, *, apart: bool) -> Asked:
        """A prompt with its tokens.

        apart: whether the images were given apart from the messages
        """
        conversation = conversation_with(prompt, len(self.images), self.model.adapter.marks, apart=apart)
        chosen = self.chosen(question, how)
        read = [replace(one, allocation=image.followed(one.allocation)) for image, one in zip(self.images, chosen)]
        textures, given = [image.texture for image in self.images], self.as_given(chosen)
        read = [shown_by(how.hooks, self.model.adapter, *one) for one in zip(textures, chosen, read)]
        closer = how.looks == 2 and chosen[0].relevance.scorer == "attention"  # or the overview showed everything
        return Asked(conversation, textures, read, how.budget, how.hooks, given=given, looks=1 + closer)

    def _weighted(self, texture: Texture, relevance: Relevance) -> Chosen:
        """The model's own grid; the most relevant cell has the weight 1."""
        weights = grid_weights(self.model.adapter, texture, relevance.mass)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return Chosen(own_grid(self.model.adapter, texture), relevance, weights)

    def _second_look(self, question: str, how: Choosing) -> list[Chosen]:
        first = overview(self.images, max(len(self.images), round(how.budget * FIRST_LOOK)))
        used = sum(int(one.allocation.valid.sum()) for one in first)
        coarsest = max(float(2 ** one.allocation.level[one.allocation.valid].max()) for one in first)
        if coarsest <= FINEST or how.budget - used < len(self.images):
            return first
        self.model.check_attached()
        rest = how.budget - used
        maps, chances = attended(self.model.adapter, self.images, question, first, budget=rest)
        closer = spend(self.images, maps, chances, rest, how.allocator)
        return [Chosen(joined(one.allocation, other.allocation), other.relevance) for one, other in zip(first, closer)]
