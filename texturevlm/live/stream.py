"""A video that is watched: step by step, asked at any time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from texturevlm.ask import VLM
from texturevlm.check import check_share
from texturevlm.live.conversation import Conversation
from texturevlm.live.latest import LatestFrames
from texturevlm.live.state import StreamState, restore_state, save_state
from texturevlm.placement import Allocator
from texturevlm.video.frames import Frame, FrameSource
from texturevlm.video.sources import open_video
from texturevlm.video.step import Step
from texturevlm.video.stream import TokenStream

if TYPE_CHECKING:
    from texturevlm.allocate.footprints import Box

KEPT_TOKENS = 4096
REFRESH = 32
INTERVAL = 0.5
ANSWER_TOKENS = 64  # tokens of an answer, unless the caller says otherwise


class Watched(NamedTuple):
    """time: of the frame, in seconds; answer: to the question, from here on"""

    time: float
    answer: str


class VideoStream:
    """One video, frame by frame.

    source:   (height, width) of frames that are given to `step`; or what `open_video` takes, whose frames `step` takes
    budget:   tokens per frame; allocator and other settings: see `StreamSettings`
    model:    a VLM that is asked, of a Qwen family; without one, a stream gives tokens
    fps:      frames per second that are taken from the source, or at which frames without a time come
    limit:    tokens of the video that the model keeps
    refresh:  tokens at the beginning of a moment that are computed anew with what changed; "full": all that is kept
    interval: seconds after which what changes begins a new moment; before, it replaces what the model saw at its place;
              math.inf: the model keeps only what is there now
    feedback: share of the relevance that goes where the model's attention went when it was asked last; 0: none
    A live source (a camera, a network stream) is not waited for: frames that come too fast are `dropped`.
    """

    def __init__(
        self,
        source: Any,
        budget: int = 273,
        allocator: str | Allocator = "auto",
        *,
        model: VLM | None = None,
        fps: float | None = None,
        limit: int = KEPT_TOKENS,
        refresh: int | str = REFRESH,
        interval: float = INTERVAL,
        feedback: float = 0.0,
        **settings: Any,
    ) -> None:
        if model is not None:
            if not isinstance(model, VLM):
                raise TypeError(f"VideoStream: model must be a VLM (tv.load_vlm), got {type(model).__name__}")
            settings = {"patch": model.adapter.side, "device": model.device, **settings}
        self.source: FrameSource | None = None
        self._latest: LatestFrames | None = None
        self._frames: Iterator[Frame] = iter(())
        size = source
        if not _is_size(source):
            self.source = open_video(source, fps=fps, seconds=math.inf)
            size = self._begin()
        self.tokens = TokenStream(size, budget, allocator, fps=fps or getattr(self.source, "fps", 25.0), **settings)
        self.model = model
        self.feedback = feedback if feedback == 0 else check_share("VideoStream", "feedback", feedback)
        self.conversation: Conversation | None = None
        if model is not None:
            given: Any = {"limit": limit, "refresh": refresh, "interval": interval}
            self.conversation = Conversation(model, self.tokens.size, self.tokens.budget, **given)

    @property
    def dropped(self) -> int:
        """Frames of a live source that came faster than they were taken."""
        return 0 if self._latest is None else self._latest.dropped

    @property
    def seconds(self) -> float:
        """The time of the last frame."""
        return self.tokens.seconds

    def step(self, frame: Any = None, *, time: float | None = None) -> Step:
        """Process the next frame; arguments as for `TokenStream.step`. Without a frame, the next one of the source.

        raises StopIteration at the end of the source
        """
        if frame is None:
            if self.source is None:
                raise ValueError("step: frame must be given to a stream without a source, got none")
            frame, time = next(self._frames)
        found = self.tokens.step(frame, time=time)
        if self.conversation is not None:
            self.conversation.see(found)
        return found

    def __iter__(self) -> Iterator[Step]:
        """The steps of the source, to its end."""
        while True:
            try:
                yield self.step()
            except StopIteration:
                return

    def point(self, box: Box) -> None:
        """Point at a box, xyxy in pixels of the held frame: it is relevant, and followed from here on."""
        self.tokens.point(box)

    def ask(self, question: str, *, max_new_tokens: int = ANSWER_TOKENS) -> str:
        """The answer to a question about what was seen so far."""
        return self._asked(self._talk("ask"), _text("ask", question), max_new_tokens)

    def state(self) -> StreamState:
        """What the model has seen: to `save`, and to `restore` into a stream with the same settings and model."""
        return save_state(self)

    def restore(self, state: StreamState) -> None:
        """Go on from a state; refused unless it is of a stream with the same settings and model."""
        restore_state(self, state)

    def watch(self, question: str, *, every: float = 1.0, max_new_tokens: int = ANSWER_TOKENS) -> Iterator[Watched]:
        """The answers to a question, each time that they change, to the end of the source.

        every: seconds of the video between two times that the model is asked
        """
        talk, asked = self._talk("watch"), _text("watch", question)
        if self.source is None:
            raise ValueError("watch: the stream must have a source, got frames by step; use ask")
        if not 0 <= every < math.inf:
            raise ValueError(f"watch: every must be at least 0, got {every!r}")
        return self._watched(talk, asked, every, max_new_tokens)

    def _watched(self, talk: Conversation, question: str, every: float, most: int) -> Iterator[Watched]:
        last = None
        talk.expect(question)
        for time in self._times(every):
            answer = self._asked(talk, question, most)
            if answer != last:
                last = answer
                yield Watched(time, answer)

    def _times(self, every: float) -> Iterator[float]:
        """Step through the source; yields whenever it is time to ask, and once more at the end."""
        due, unasked = -math.inf, None
        for step in self:
            unasked = step.time
            if step.time >= due:
                due, unasked = step.time + every, None
                yield step.time
        if unasked is not None:
            yield unasked

    def _asked(self, talk: Conversation, question: str, most: int) -> str:
        found = talk.ask(question, max_new_tokens=most)
        if self.feedback:
            self.tokens.attend(talk.attended(found.attention, self.tokens.size), share=self.feedback)
        return found.text

    def _begin(self) -> tuple[int, int]:
        """Open the source; returns the size of its frames."""
        assert self.source is not None
        frames: Iterator[Frame]
        if self.source.live:
            self._latest = LatestFrames(self.source)
            frames = iter(self._latest)
        else:
            frames = iter(self.source)
        first = next(frames)  # a source without a frame says so
        self._frames = chain([first], frames)
        return first.image.shape[1], first.image.shape[2]

    def _talk(self, function: str) -> Conversation:
        if self.conversation is None:
            raise ValueError(f"{function}: the stream must have a model (VideoStream(…, model=…)), got none")
        return self.conversation


def _is_size(source: Any) -> bool:
    return isinstance(source, (tuple, list)) and len(source) == 2 and all(isinstance(one, int) for one in source)


def _text(function: str, question: Any) -> str:
    if not isinstance(question, str):
        raise TypeError(f"{function}: question must be text, got {type(question).__name__}")
    return question
