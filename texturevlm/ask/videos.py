"""A video that questions are asked about: read once, its moments kept, tokens chosen for every question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from texturevlm.ask.config import KINDS, AskConfig, check_context
from texturevlm.ask.messages import IMAGE, VIDEO, conversation_with
from texturevlm.ask.request import Request
from texturevlm.draw import draw
from texturevlm.frame import Frame
from texturevlm.placement import Picture, Placement
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
from texturevlm.vlm.hook import check_own_pixels
from texturevlm.vlm.places import COORDINATES
from texturevlm.vlm.views import View, moment_view

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

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
        check_video_relevance("ask", how.tokens.relevance)
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
        if how.kind != KINDS[0]:
            raise ValueError(f"ask: tokens must be chosen for a video, got {how.kind}")
        check_own_pixels("video", how.hooks)
        if how.looks != 1:
            raise ValueError(f"ask: looks must be 1 for a video, got {how.looks!r}")
        adapter = self.model.adapter
        adapter.checked_layout("ask", how.levels, how.coordinates, COORDINATES)
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
