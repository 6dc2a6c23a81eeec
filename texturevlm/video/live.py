"""A video that is watched, step by step, asked at any time; and its state, to go on later or elsewhere.

A state holds the model's cache and its order, not the held frame: the first frame after a restore is a keyframe, of
which only what differs from what the model was shown goes to the model. It is restored only into a stream with the same
settings and the same model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.ask import VLM
from texturevlm.defaults import ALLOCATOR, BUDGET
from texturevlm.placement import Allocator
from texturevlm.relevance import find_balance
from texturevlm.types import COLUMNS, Allocation
from texturevlm.video.conversation import Conversation
from texturevlm.video.layout import MomentSlots, TokenPlace
from texturevlm.video.sources import Frame, FrameSource, LatestFrames, open_video
from texturevlm.video.stream import Keyframe, Step, TokenStream

if TYPE_CHECKING:
    from texturevlm.allocate.footprints import Box

ANSWER_TOKENS = 64  # tokens of an answer, unless the caller says otherwise
STATE_FORMAT = 3
MEMORY_TENSORS = ("keys", "turned", "values", "embeds", "position", "order", "live")
SHARED_OPTIONS = ("query", "tile", "keyframe", "hold", "flow", "rate", "fps", "limit", "refresh", "interval")
SHARED_TOKENS = ("budget", "allocator", "relevance", "patch", "options")
SAMPLED_WEIGHTS = 64  # numbers of each parameter that name a model


class TimedAnswer(NamedTuple):
    """time: of the frame, in seconds; answer: to the question, from here on"""

    time: float
    answer: str


@dataclass(frozen=True, eq=False)
class StreamState:
    """What a stream's model has seen.

    made_for: what a stream must share to go on from here
    numbers:  counts, times, slots and moments
    tensors:  copies, by name
    """

    made_for: dict[str, Any]
    numbers: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    def save(self, path: Path | str) -> None:
        record = {"format": STATE_FORMAT, "made_for": self.made_for, "numbers": self.numbers, "tensors": self.tensors}
        path = Path(path)
        unfinished = path.with_name(path.name + ".part")
        torch.save(record, unfinished)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path | str) -> StreamState:
        """Read what `save` wrote. Nothing in the file is executed."""
        try:
            record = torch.load(Path(path), map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file shows as many kinds of error
            raise ValueError(f"StreamState.load: {path} must be a stream's state: {error}") from None
        if not isinstance(record, dict) or record.get("format") != STATE_FORMAT:
            raise ValueError(f"StreamState.load: {path} must be a state of format {STATE_FORMAT}, got another file")
        return cls(record["made_for"], record["numbers"], record["tensors"])


class VideoStream:
    """One video, frame by frame.

    source:  (height, width) of frames that are given to `step`; or what `open_video` takes, whose frames `step` takes
    model:   a VLM that is asked, of a Qwen family; without one, a stream gives tokens
    fps:     frames per second that are taken from the source, or at which frames without a time come
    options: budget, allocator and the other fields of `StreamConfig`, and options of the allocator
    A live source (a camera, a network stream) is not waited for: frames that come too fast are `dropped`.
    """

    def __init__(
        self,
        source: Any,
        budget: int = BUDGET,
        allocator: str | Allocator = ALLOCATOR,
        *,
        model: VLM | None = None,
        fps: float | None = None,
        **options: Any,
    ) -> None:
        if model is not None:
            if not isinstance(model, VLM):
                raise TypeError(f"VideoStream: model must be a VLM (tv.load_vlm), got {type(model).__name__}")
            own = {"patch": model.adapter.side, "finer": model.adapter.trained.finer, "device": model.device}
            options = {**own, **options}
        self.source: FrameSource | None = None
        self._latest: LatestFrames | None = None
        self._frames: Iterator[Frame] = iter(())
        size = source
        if not _is_size(source):
            self.source = open_video(source, fps=fps, seconds=math.inf)
            size = self._begin()
        if rate := fps or getattr(self.source, "fps", None):
            options["fps"] = rate
        self.tokens = TokenStream(size, budget, allocator, **options)
        self.config = self.tokens.config
        self.conversation = None if model is None else Conversation(model, self.tokens.size, self.config)

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
        return self._answered(self._talk("ask"), _text("ask", question), max_new_tokens)

    def state(self) -> StreamState:
        """What the model has seen: to `save`, and to `restore` into a stream with the same options and model."""
        talk = self._talk("state")
        numbers = {
            "seconds": self.tokens.seconds,
            "frames": self.tokens.frames,
            "shown": talk.frames,
            "failed": talk.failed,
            "evicted": talk.evicted,
            "follow": list(talk.follow),
            "head": [list(talk.head_ids), list(talk.head)],
            "free": list(talk.memory.free),
            "moments": [asdict(moment) | {"places": _plain(moment.places)} for moment in talk.moments],
        }
        tensors = {name: getattr(talk.memory, name).clone() for name in MEMORY_TENSORS}
        if talk.shown is not None and talk.allocation is not None:
            tensors["shown"] = talk.shown.clone()
            tensors |= {f"allocation.{name}": getattr(talk.allocation, name).clone() for name in COLUMNS}
        return StreamState(made_for(self), numbers, tensors)

    def restore(self, state: StreamState) -> None:
        """Go on from a state; refused, before anything changes, unless it is of the same options and model."""
        talk = self._talk("restore")
        for name, value in made_for(self).items():
            if state.made_for.get(name) != value:
                got = state.made_for.get(name)
                raise ValueError(f"restore: state must be of a stream with {name} = {value!r:.80}, got {got!r:.80}")
        numbers, tensors = state.numbers, state.tensors
        for name in MEMORY_TENSORS:
            getattr(talk.memory, name).copy_(tensors[name])
        talk.memory.free = list(numbers["free"])
        talk.head_ids, talk.head = (list(part) for part in numbers["head"])
        talk.follow = (int(numbers["follow"][0]), float(numbers["follow"][1]))
        talk.moments = [MomentSlots(**moment) for moment in numbers["moments"]]
        for moment in talk.moments:
            moment.places = {slot: TokenPlace(*place) for slot, place in moment.places.items()}
        talk.frames, talk.evicted, talk.stepped = numbers["shown"], numbers["evicted"], None
        talk.failed = numbers["failed"]
        talk.shown = talk.allocation = None
        if "shown" in tensors:
            talk.shown = tensors["shown"].to(talk.memory.live.device, copy=True)
            columns: Any = {name: tensors[f"allocation.{name}"].clone() for name in COLUMNS}
            talk.allocation = Allocation(**columns, size=self.tokens.size, patch=self.config.tokens.patch)
        self.tokens.seconds, self.tokens.frames = numbers["seconds"], numbers["frames"]
        self.tokens.pending = Keyframe.FIRST

    def watch(self, question: str, *, every: float = 1.0, max_new_tokens: int = ANSWER_TOKENS) -> Iterator[TimedAnswer]:
        """The answers to a question, each time that they change, to the end of the source.

        every: seconds of the video between two times that the model is asked
        """
        talk, asked = self._talk("watch"), _text("watch", question)
        if self.source is None:
            raise ValueError("watch: the stream must have a source, got frames by step; use ask")
        if not 0 <= every < math.inf:
            raise ValueError(f"watch: every must be at least 0, got {every!r}")
        return self._changes(talk, asked, every, max_new_tokens)

    def _changes(self, talk: Conversation, question: str, every: float, most: int) -> Iterator[TimedAnswer]:
        last = None
        talk.expect(question)
        for time in self._times(every):
            answer = self._answered(talk, question, most)
            if answer != last:
                last = answer
                yield TimedAnswer(time, answer)

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

    def _answered(self, talk: Conversation, question: str, most: int) -> str:
        found = talk.ask(question, max_new_tokens=most)
        if self.config.feedback:
            self.tokens.attend(talk.attended(found.attention, self.tokens.size), share=self.config.feedback)
        return found.text

    def _begin(self) -> tuple[int, int]:
        """Open the source; returns the size of its frames."""
        assert self.source is not None
        self._latest = LatestFrames(self.source) if self.source.live else None
        frames = iter(self._latest or self.source)
        first = next(frames)  # a source without a frame says so
        self._frames = chain([first], frames)
        return first.image.shape[1], first.image.shape[2]

    def _talk(self, function: str) -> Conversation:
        if self.conversation is None:
            raise ValueError(f"{function}: the stream must have a model (VideoStream(…, model=…)), got none")
        return self.conversation


def made_for(stream: VideoStream) -> dict[str, Any]:
    """What two streams must share to go on from one another's state, as JSON has it."""
    assert stream.conversation is not None
    config, balance = stream.config, find_balance("VideoStream", stream.config.tokens.balance, "none")
    options = {name: _named(getattr(config, name)) for name in SHARED_OPTIONS}
    options |= {name: _named(getattr(config.tokens, name)) for name in SHARED_TOKENS}
    options["balance"] = [str(number) for number in (balance.explore, balance.focus, balance.particularise)]
    options |= {"size": stream.tokens.size, "model": _model_name(stream.conversation.model)}
    table: dict[str, Any] = json.loads(json.dumps(options, default=str))
    return table


def _plain(places: Mapping[int, TokenPlace]) -> dict[int, tuple[Any, ...]]:
    """Places as tuples, so that a file of them holds no class."""
    return {slot: tuple(place) for slot, place in places.items()}


def _named(chosen: Any) -> Any:
    """A value that JSON has, or the name of a function or of a scorer."""
    if chosen is None or isinstance(chosen, (str, int, float)):
        return chosen
    return dict(chosen) if isinstance(chosen, Mapping) else getattr(chosen, "__qualname__", type(chosen).__qualname__)


def _model_name(model: Any) -> str:
    """A digest of the model: its config, some numbers of every weight, and the wording of prompts."""
    digest = hashlib.blake2b(json.dumps(model.model.config.to_dict(), sort_keys=True, default=str).encode())
    for name, weight in model.model.named_parameters():
        flat = weight.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLED_WEIGHTS)].float().cpu()
        digest.update(name.encode() + some.numpy().tobytes())
    digest.update(str(model.processor.chat_template).encode())
    return digest.hexdigest()[:32]


def _is_size(source: Any) -> bool:
    return isinstance(source, (tuple, list)) and len(source) == 2 and all(isinstance(extent, int) for extent in source)


def _text(function: str, question: Any) -> str:
    if not isinstance(question, str):
        raise TypeError(f"{function}: question must be text, got {type(question).__name__}")
    return question
