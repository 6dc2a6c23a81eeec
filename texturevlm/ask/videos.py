"""A video that questions are asked about: read once, its moments kept, tokens chosen for every question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from texturevlm.ask.asked import Asked
from texturevlm.ask.choose import Chosen
from texturevlm.ask.messages import IMAGE, VIDEO, conversation_with
from texturevlm.ask.options import Choosing, check_context
from texturevlm.draw import question_picture, stacked
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
    """

    def __init__(self, model: VLM, source: Any, options: VideoOptions) -> None:
        if isinstance(source, (list, tuple)) and len(source) == 1 and is_video(source[0]):
            source = source[0]
        adapter, fps = model.adapter, options.fps or FPS
        found = open_video(source, fps=fps, seconds=options.seconds)
        self.model, self.rate, self.fps = model, options.rate, min(fps, found.fps)
        self.read(found, adapter.moments if adapter.videos else 1)
        self.notes = list(found.notes)

    def read(self, source: FrameSource, together: int) -> None:
        """Keep the moments that are worth showing. together: frames per moment"""
        kept = keep_moments(source, together=together)
        self.moments, self.seconds = kept.moments(), kept.seconds + 1 / self.fps
        self._upright: tuple[float | str, list[Moment]] = (0.0, self.moments)

    def upright(self, turn: float | str) -> list[Moment]:
        """The moments turned upright; tokens and answers are about these. turn: as for `ask`"""
        if self._upright[0] != turn:
            self._upright = turn, upright_moments(self.moments, turn)
        return self._upright[1]

    def ask(self, question: Any, **options: Any) -> Any:
        """The answer, or a list of answers to a list of questions; options of `VLM.ask`."""
        return self.model.ask(self, question, **options)

    def look(self, question: str = "", *, answer: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees of each moment; options as for `VLM.ask`: budget, allocator, relevance, turn."""
        how = self.model.choosing(**options)
        shown = self.shown(question, how)
        by_time = {moment.time: moment for moment in self.upright(how.turn)}
        pictures = []
        for one in shown[:: -(-len(shown) // MOST_DRAWN)]:
            texture = Texture((by_time[one.time].frames[:1].float() / 255,)).mipmapped()
            said = f"{one.time:.1f} s  {question}  {answer}".strip()
            pictures.append(question_picture(texture, one.allocation.to("cpu"), one.relevance, said))
        return stacked(pictures)

    def shown(
        self, question: str, how: Choosing, seen: Mapping[float, MomentEvidence] | None = None
    ) -> list[MomentTokens]:
        """The tokens of each moment that is shown. seen: as for `choose_clip`"""
        check_video_relevance("ask", how.relevance)
        budget = how.budget
        if self.rate is not None:  # tokens per second; the budget of the clip is the limit
            budget = max(1, min(budget, round(self.rate * self.seconds)))
            check_context("ask", budget, self.model.model.config)
        return choose_clip(
            self.upright(how.turn),
            question,
            budget=budget,
            patch=self.model.adapter.side,
            allocator=how.allocator,
            relevance=how.relevance,
            device=self.model.device,
            seen=seen,
        )

    def asked(self, prompt: Any, question: str, how: Choosing, *, apart: bool) -> Asked:
        """A prompt with its tokens.

        apart: whether the video was given apart from the messages
        """
        if how.tokens != "chosen":
            raise ValueError(f"ask: tokens must be chosen for a video, got {how.tokens}")
        if how.looks != 1:
            raise ValueError(f"ask: looks must be 1 for a video, got {how.looks!r}")
        adapter = self.model.adapter
        adapter.checked_layout("ask", how.levels, how.coordinates, COORDINATES)
        if adapter.videos:  # wrong messages are refused before slow work
            conversation = conversation_with(prompt, 1, adapter.marks, apart=apart, block=VIDEO)
        shown = self.shown(question, how)
        groups = adapter.clip_groups(self.views(shown, how))
        if not adapter.videos:
            conversation = conversation_with(prompt, len(groups), adapter.marks, apart=apart, block=IMAGE)
        chosen = [Chosen(one.allocation, one.relevance) for one in shown]
        return Asked(conversation, [], chosen, how.budget, how.reduce, groups)

    def views(self, shown: list[MomentTokens], how: Choosing) -> list[View]:
        """One per moment."""
        levels = how.levels or self.model.adapter.trained.levels
        return [
            moment_view(one.pixels, one.allocation, levels=levels, number=index, seconds=one.time, fps=self.fps)
            for index, one in enumerate(shown)
        ]
