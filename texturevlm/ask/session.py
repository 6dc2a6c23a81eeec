"""Sessions: images, a document or a video under one budget, prepared once for any number of questions.

The pages of a document are chosen per question, and the prompt says which page is which. A video is read once, its
moments are kept, and tokens are chosen for every question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from texturevlm.ask.answer import Request
from texturevlm.ask.attention import place_by_model, place_in_two_looks
from texturevlm.ask.config import KINDS, AskConfig, check_context
from texturevlm.ask.messages import IMAGE, VIDEO, conversation_with
from texturevlm.check import check_choice
from texturevlm.draw import draw
from texturevlm.frame import Frame
from texturevlm.pages import PageTokens, choose_pages, open_pages
from texturevlm.pages.pictures import PagePictures
from texturevlm.placement import Picture, Placement, place_together, prepare
from texturevlm.placement.placement import check_budget
from texturevlm.types import Texture
from texturevlm.video import (
    ARRAYS,
    FrameSource,
    Moment,
    MomentEvidence,
    MomentTokens,
    choose_clip,
    is_live,
    keep_moments,
    open_video,
    upright_moments,
)
from texturevlm.vlm import COORDINATES, View, grid_weights, moment_view, own_grid
from texturevlm.vlm.hook import check_own_pixels
from texturevlm.vlm.prompts import worded

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM


class ImageSession:
    """Images prepared for a model; made by `VLM.prepare`.

    read: what the model read last: the question, how, and the placements
    """

    def __init__(self, model: VLM, pictures: Sequence[Picture]) -> None:
        self.model, self.pictures = model, list(pictures)
        self.read: tuple[Any, list[Placement]] | None = None

    @classmethod
    def check(cls, how: AskConfig) -> None:
        """Raise if this kind of session cannot be asked so."""

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
        self.check(how)
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


class DocumentSession(ImageSession):
    """A document prepared for a model; made by `VLM.prepare`. What no question changes of its pages is kept.

    tokens_by_page: of the last question, by page number; a page that was only seen small, among others, has 1
    """

    def __init__(self, model: VLM, document: Any) -> None:
        super().__init__(model, [])
        pages = open_pages(document, function="ask")
        self.pages = pages if isinstance(pages, PagePictures) else PagePictures(pages)
        self.chosen: tuple[Any, list[PageTokens]] | None = None  # the last question, and its pages

    @classmethod
    def check(cls, how: AskConfig) -> None:
        for name, got, wanted in (("looks", how.looks, 1), ("tokens", how.kind, "chosen")):
            if got != wanted:
                raise ValueError(f"ask: {name} must be {wanted} for a document, got {got}")
        check_own_pixels("document", how.hooks)
        if how.tokens.relevance == "model":
            raise ValueError("ask: relevance must be a scorer for a document, got 'model', which takes images")

    def about(self, question: str, how: AskConfig) -> list[PageTokens]:
        """The pages for a question, with their tokens."""
        key = self._key(question, how)
        if self.chosen is None or self.chosen[0] != key:
            device = self.model.device
            found = choose_pages(self.pages, question, how=how.tokens, fine_pages=how.fine_pages, device=device)
            self.chosen = key, found
        return self.chosen[1]

    def placements(self, question: str, how: AskConfig) -> list[Placement]:
        """The tokens of each page that gets some, and of the sheet of the others."""
        return [page.placement for page in self.about(question, how)]

    @property
    def tokens_by_page(self) -> dict[int, int]:
        pages = [] if self.chosen is None else self.chosen[1]
        return {number: page.tokens if len(page.numbers) == 1 else 1 for page in pages for number in page.numbers}

    def request(self, prompt: Any, question: str, how: AskConfig, *, apart: bool) -> Request:
        """A prompt with the pages that were chosen for its question, each after its number."""
        pages, marks = self.about(question, how), self.model.adapter.marks
        names = [_name(page, len(self.pages)) for page in pages] if _keeps_places(self.model.adapter) else []
        conversation = conversation_with(prompt, len(pages), marks, apart=apart, names=names)
        placements = self.kept(question, how, [page.placement for page in pages])
        return Request(conversation, placements, how.tokens.budget, how.hooks, pages=self.tokens_by_page)


def _name(page: PageTokens, count: int) -> str:
    """What stands before the page in a prompt."""
    if len(page.numbers) == 1:
        return f"Page {page.numbers[0]} of {count}:"
    return f"The other pages, small, row by row ({', '.join(map(str, page.numbers))}):"


def _keeps_places(adapter: Any) -> bool:
    """Whether the chat template writes text and images in the order of the blocks; the reader's writes text first."""
    blocks = [{"type": "text", "text": "before"}, IMAGE, {"type": "text", "text": "after"}]
    text = worded("ask", adapter.processor, [{"role": "user", "content": blocks}], [], adapter.marks)
    places = [text.find(mark) for mark in adapter.marks if mark in text]
    return bool(places) and text.find("before") < min(places) < text.find("after")


FPS = 2.0  # frames per second that are looked at, as Qwen's own processor does
VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv", ".ogv")
MOST_DRAWN = 6  # moments in a picture of what the model sees


class VideoOptions(NamedTuple):
    """How a video is read; the fields are options of `ask`."""

    fps: float | None = None
    seconds: float | None = None
    rate: float | None = None

    def check(self) -> VideoOptions:
        for name, value in self._asdict().items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
                raise ValueError(f"ask: {name} must be above 0, got {value!r:.40}")
        return self


def is_video(source: Any, *, fps: float | None = None) -> bool:
    """Whether this is a video and no image; a list is one if its frames have a rate."""
    if isinstance(source, (str, Path)):
        name = str(source)
        if name.startswith("data:"):
            return False
        suffix = Path(name.partition("?")[0]).suffix.lower()
        return suffix in (*VIDEO_SUFFIXES, *ARRAYS) or Path(name).is_dir() or is_live(name)
    if isinstance(source, (np.ndarray, Tensor)):
        return source.ndim == 4 and len(source) > 1
    if isinstance(source, (list, tuple)):
        return fps is not None or (len(source) == 1 and is_video(source[0]))
    return isinstance(source, (FrameSource, Iterator)) and not isinstance(source, IOBase)  # which iterates over lines


def check_video_relevance(function: str, relevance: Any) -> None:
    """Raise if a video's tokens cannot be chosen so."""
    if relevance == "model":
        raise ValueError(f"{function}: relevance must be a scorer for a video, got 'model', which takes images")


class VideoSession:
    """A video prepared for a model; made by `VLM.prepare`.

    notes: what went wrong when it was read
    shown: the moments of the last placements
    read:  what the model read last: the question, how, and the placements
    """

    def __init__(self, model: VLM, source: Any, options: VideoOptions) -> None:
        if isinstance(source, (list, tuple)) and len(source) == 1 and is_video(source[0]):
            source = source[0]
        adapter, fps = model.adapter, options.fps or FPS
        found = open_video(source, fps=fps, seconds=options.seconds)
        self.model, self.rate, self.fps = model, options.rate, min(fps, found.fps)
        self.keep(found, adapter.moments if adapter.videos else 1)
        self.notes = list(found.notes)
        self.shown: list[MomentTokens] = []
        self.read: tuple[Any, list[Placement]] | None = None

    @classmethod
    def check(cls, how: AskConfig) -> None:
        """Raise if a video cannot be asked about so."""
        check_video_relevance("ask", how.tokens.relevance)
        if how.kind != KINDS[0]:
            raise ValueError(f"ask: tokens must be chosen for a video, got {how.kind}")
        check_own_pixels("video", how.hooks)
        if how.looks == 2:
            raise ValueError(f"ask: looks must be 1 for a video, got {how.looks!r}")
        if how.coordinates is not None:
            check_choice("ask", "coordinates", how.coordinates, COORDINATES)

    def keep(self, source: FrameSource, together: int) -> None:
        """Keep the moments that are worth showing. together: frames per moment"""
        kept = keep_moments(source, together=together)
        self.moments, self.seconds = kept.moments, kept.seconds + 1 / self.fps
        self._upright: tuple[float | str, tuple[list[Moment], Frame]] = 0.0, upright_moments(self.moments, 0.0)

    def upright(self, turn: float | str) -> tuple[list[Moment], Frame]:
        """The moments turned upright, which tokens and answers are about, and their frame; turn: as for `ask`"""
        if self._upright[0] != turn:
            self._upright = turn, upright_moments(self.moments, turn)
        return self._upright[1]

    def ask(self, question: Any, **options: Any) -> Any:
        """The answer, or a list of answers to a list of questions; options of `VLM.ask`."""
        return self.model.ask(self, question, **options)

    def look(self, question: str = "", *, answer: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees of each moment; options of `VLM.ask`."""
        how = self.model.config_for(**options)
        self.check(how)
        if self.read is None or self.read[0] != (question, how):
            self.kept(question, how, self.placements(question, how))
        assert self.read is not None
        placements = self.read[1]
        few = slice(None, None, -(-len(placements) // MOST_DRAWN))
        times = [moment.time for moment in self.shown]
        return draw(placements[few], [f"{time:.1f} s  {question}  {answer}".strip() for time in times[few]])

    def kept(self, question: str, how: AskConfig, placements: list[Placement]) -> list[Placement]:
        """These placements are what the model read last."""
        self.read = (question, how), placements
        return placements

    def placements(
        self, question: str, how: AskConfig, attention: Mapping[float, Tensor] | None = None
    ) -> list[Placement]:
        """The tokens of each moment that is shown.

        attention: where the model looked in the placements before, by the time of the moment: further tokens are placed
        """
        tokens = how.tokens
        if self.rate is not None:  # tokens per second; the budget of the clip is the limit
            tokens = replace(tokens, budget=max(1, min(tokens.budget, round(self.rate * self.seconds))))
            check_context("ask", tokens.budget, self.model.model.config)
        before = {moment.time: moment for moment in self.shown}
        seen = {time: MomentEvidence(before[time].allocation, own) for time, own in (attention or {}).items()}
        moments, frame = self.upright(how.tokens.turn)
        self.shown = choose_clip(moments, question, tokens, device=self.model.device, seen=seen)
        first = {turned.time: (given.frames[:1], turned.frames[:1]) for given, turned in zip(self.moments, moments)}
        return [
            Placement(Picture.of_frame(*first[shown.time], frame, tokens.patch), shown.allocation, shown.relevance)
            for shown in self.shown
        ]

    def request(self, prompt: Any, question: str, how: AskConfig, *, apart: bool) -> Request:
        """A prompt with its tokens.

        apart: whether the video was given apart from the messages
        """
        adapter = self.model.adapter
        if adapter.videos:  # wrong messages are refused before slow work
            conversation = conversation_with(prompt, 1, adapter.marks, apart=apart, block=VIDEO)
        placements = self.kept(question, how, self.placements(question, how))
        groups = adapter.clip_groups(self.views(how))
        if not adapter.videos:
            conversation = conversation_with(prompt, len(groups), adapter.marks, apart=apart, block=IMAGE)
        return Request(conversation, placements, how.tokens.budget, how.hooks, groups)

    def views(self, how: AskConfig) -> list[View]:
        """One per moment that is shown."""
        levels = how.levels or self.model.adapter.trained.levels
        return [
            moment_view(shown.pixels, shown.allocation, levels=levels, number=index, seconds=shown.time, fps=self.fps)
            for index, shown in enumerate(self.shown)
        ]
