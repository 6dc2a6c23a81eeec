"""A session: one or several images under one budget, prepared once for any number of questions.

A second look keeps the overview of the first and spends the rest of the budget where the attention of the model went.
With relevance "model" the overview is not kept: the model sees COARSE_VIEW tokens, and all of the budget follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.ask.choose import Chosen, check_budget, choose, joined, spend
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.generation import Asked
from texturevlm.ask.messages import conversation_with
from texturevlm.ask.options import Choosing
from texturevlm.ask.prepared import PreparedImage
from texturevlm.draw import question_picture, stacked
from texturevlm.pipeline import MIN_CHANCE, Allocator
from texturevlm.relevance import AttentionScorer, Relevance
from texturevlm.types import Texture
from texturevlm.vlm import grid_weights, own_grid

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

FIRST_LOOK = 0.25  # share of the budget for the overview of several looks
COARSE_VIEW = 64  # tokens of the view that relevance "model" is made from
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
    ) -> Image.Image:
        """Draw what the model sees when it is asked: what the tokens show, the footprints, the relevance.

        answer: to write behind the question; other arguments as for `VLM.ask`
        """
        chosen = self.choose(question, looks=looks, budget=budget, allocator=allocator, relevance=relevance)
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
    ) -> list[Chosen]:
        """Choose the tokens of each image, without asking the model for an answer; arguments as for `VLM.ask`."""
        if not isinstance(question, str):
            raise TypeError(f"ask: question must be text, got {type(question).__name__}")
        how = self.model.choosing(looks=looks, budget=budget, allocator=allocator, relevance=relevance)
        return self.chosen(question, how)

    def chosen(self, question: str, how: Choosing) -> list[Chosen]:
        """The tokens of each image. `look` after `ask` gets what was chosen then, as far as nothing else decides."""
        check_budget(how.budget, len(self.images))
        for image in self.images:
            image.on(self.model.device)
        wanted = (question, how, self.model.device)
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
            maps, chances = self._attended(question, self._overview(max(len(self.images), COARSE_VIEW)))
            return spend(self.images, maps, chances, how.budget, how.allocator)
        if how.tokens == "weighted":
            maps = [image.relevance(question, relevance=how.relevance) for image in self.images]
            return [self._weighted(image.texture, own) for image, own in zip(self.images, maps)]
        options: Any = {"budget": how.budget, "allocator": how.allocator, "relevance": how.relevance}
        captured = self.model.choose_captured(self.images[0], question, **options) if len(self.images) == 1 else None
        return choose(self.images, question, **options) if captured is None else [captured]

    def asked(self, prompt: Any, question: str, how: Choosing, *, apart: bool) -> Asked:
        """A prompt with its tokens.

        apart: whether the images were given apart from the messages
        """
        conversation = conversation_with(prompt, len(self.images), self.model.adapter.marks, apart=apart)
        chosen = self.chosen(question, how)
        return Asked(conversation, [image.texture for image in self.images], chosen, how.budget, how.reduce)

    def _weighted(self, texture: Texture, relevance: Relevance) -> Chosen:
        """The model's own grid; the most relevant cell has the weight 1."""
        weights = grid_weights(self.model.adapter, texture, relevance.mass)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return Chosen(own_grid(self.model.adapter, texture), relevance, weights)

    def _second_look(self, question: str, how: Choosing) -> list[Chosen]:
        overview = self._overview(max(len(self.images), round(how.budget * FIRST_LOOK)))
        used = sum(int(one.allocation.valid.sum()) for one in overview)
        coarsest = max(float(2 ** one.allocation.level[one.allocation.valid].max()) for one in overview)
        if coarsest <= FINEST or how.budget - used < len(self.images):
            return overview
        maps, chances = self._attended(question, overview)
        closer = spend(self.images, maps, chances, how.budget - used, how.allocator)
        return [
            Chosen(joined(one.allocation, other.allocation), other.relevance) for one, other in zip(overview, closer)
        ]

    def _overview(self, tokens: int) -> list[Chosen]:
        """All images at one scale each, in so many tokens."""
        maps = [image.relevance("", relevance="none") for image in self.images]
        return spend(self.images, maps, [1.0] * len(maps), tokens, "fit")

    def _attended(self, question: str, overview: Sequence[Chosen]) -> tuple[list[Relevance], list[float]]:
        """Relevance by the model's attention to an overview, and the chance that each image is asked about."""
        model = self.model
        model.check_attached()
        allocations = [one.allocation for one in overview]
        textures = [image.texture for image in self.images]
        with model.adapter.lock, evaluating(model.model):
            attention = question_attention(model.adapter, question, textures, allocations)
        pointed = pointed_at(attention, allocations)
        maps = [image.relevance(question, relevance=AttentionScorer(one)) for image, one in zip(self.images, pointed)]
        return maps, [max(MIN_CHANCE, float(one.sum())) for one in pointed]
