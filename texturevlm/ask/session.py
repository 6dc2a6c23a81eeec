"""A session: one or several images under one budget, prepared once for any number of questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from texturevlm.ask.attended import place_by_model, place_in_two_looks
from texturevlm.ask.config import AskConfig
from texturevlm.ask.messages import conversation_with
from texturevlm.ask.request import Request
from texturevlm.draw import draw
from texturevlm.placement import Picture, Placement, place_together, prepare
from texturevlm.placement.placement import check_budget
from texturevlm.types import Texture
from texturevlm.vlm import grid_weights, own_grid

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM


class ImageSession:
    """Images prepared for a model; made by `VLM.prepare`.

    read: what the model read last: the question, how, and the placements
    """

    def __init__(self, model: VLM, pictures: Sequence[Picture]) -> None:
        self.model, self.pictures = model, list(pictures)
        self.read: tuple[Any, list[Placement]] | None = None

    def ask(self, question: Any, **options: Any) -> Any:
        """The answer, or a list of answers to a list of questions; options of `VLM.ask`."""
        return self.model.ask(self, question, **options)

    def look(self, question: str = "", *, answer: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees when it is asked: what the tokens show, the footprints, the relevance; upright.

        answer: to write behind the question; options of `VLM.ask`
        """
        return draw(self.choose(question, **options), f"{question}  {answer}".strip())

    def choose(self, question: str = "", **options: Any) -> list[Placement]:
        """The tokens of each image, without asking the model for an answer; options of `VLM.ask`.

        What the model read last for this question is not placed again.
        """
        if not isinstance(question, str):
            raise TypeError(f"ask: question must be text, got {type(question).__name__}")
        how = self.model.config_for(**options)
        if self.read is not None and self.read[0] == self._key(question, how):
            return list(self.read[1])
        return self.placements(question, how)

    def placements(self, question: str, how: AskConfig) -> list[Placement]:
        """The tokens of each image for a question."""
        if how.kind == "weighted":  # the model's own grid over the image as it is
            return [self._weighted(picture, question, how) for picture in self.prepared(how, own_grid=True)]
        check_budget(how.tokens.budget, len(self.pictures), "ask")
        pictures = self.prepared(how)
        if how.looks == 2 or how.tokens.relevance == "model":
            self.model.check_attached()
            by = place_in_two_looks if how.looks == 2 else place_by_model
            return by(self.model.adapter, pictures, question, how.tokens)
        key = self._key(question, how)
        if self.read is not None and self.read[0] == key and isinstance(how.tokens.allocator, str):
            return self.read[1]
        return place_together(pictures, question, how.tokens, captured=self.model.captured_choice)

    def prepared(self, how: AskConfig, *, own_grid: bool = False) -> list[Picture]:
        """The pictures as this config wants them; own_grid: as they were given."""
        tokens = replace(how.tokens, turn=0.0, finer=type(how.tokens.finer)()) if own_grid else how.tokens
        self.pictures = [prepare(picture, tokens, device=self.model.device) for picture in self.pictures]
        return self.pictures

    def request(self, prompt: Any, question: str, how: AskConfig, *, apart: bool) -> Request:
        """A prompt with its tokens.

        apart: whether the images were given apart from the messages
        """
        conversation = conversation_with(prompt, len(self.pictures), self.model.adapter.marks, apart=apart)
        placements = self.kept(question, how, self.placements(question, how))
        closer = how.looks == 2 and placements[0].relevance.scorer == "attention"  # or the overview showed everything
        return Request(conversation, placements, how.tokens.budget, how.hooks, looks=1 + closer)

    def kept(self, question: str, how: AskConfig, placements: Sequence[Placement]) -> list[Placement]:
        """These placements with what the hooks of the model show in them; they are what the model read last."""
        found = [self._shown(placement, how) for placement in placements]
        self.read = self._key(question, how), found
        return found

    def _shown(self, placement: Placement, how: AskConfig) -> Placement:
        texture, relevance = placement.picture.texture, placement.relevance
        for hook in how.hooks:
            pixels = hook.pixels(self.model.adapter, texture, placement.upright, relevance, placement.allocation)
            placement = placement if pixels is None else replace(placement, pixels=pixels)
        return placement

    def _key(self, question: str, how: AskConfig) -> Any:
        """What decides where the tokens lie."""
        return question, replace(how, levels=None, coordinates=None), self.model.device

    def _weighted(self, picture: Picture, question: str, how: AskConfig) -> Placement:
        """The model's own grid; the most relevant cell has the weight 1."""
        texture: Texture = picture.texture
        balance = how.tokens.weighing(how.tokens.budget)
        relevance = picture.memo.find(question, scorer=how.tokens.relevance, balance=balance)
        weights = grid_weights(self.model.adapter, texture, relevance.mass)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return Placement(picture, own_grid(self.model.adapter, texture), relevance, weight=weights)
