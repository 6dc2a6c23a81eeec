"""What a stream gives and keeps: the `Step` of one frame, and the `StreamState` from which a stream continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation, Patches, Texture
from texturevlm.video.change import Noise
from texturevlm.video.choice import RELEVANCE_MAPS
from texturevlm.vlm import Tokens

if TYPE_CHECKING:
    from texturevlm.video.stream import VideoStream

STREAM_NUMBERS = ("frames", "since_keyframe", "seconds", "pending", "incomplete", "changed")  # attributes of a stream
CARRY_TENSORS = ("grey", "untrusted", "box")  # tensors of its CarriedRelevance, each perhaps None
STATE_FORMAT = 3


@dataclass(frozen=True, eq=False)
class Reuse:
    """What one frame cost. Counts are read when they are asked for, so that nothing waits for them.

    tiles, changed: the number of tiles, and of those that changed
    keyframe:  why everything was computed again: first, cut, interval, refill (the full budget after a cut, once the
               rate pays for it), pointed, failure; "" if it was not
    chosen:    whether tokens were chosen again
    refreshed: (K,), which patches were sampled; on the host where a GPU's record says so, see `sampled`
    stale:     (K,), which patches still show an older frame, because the rate did not pay for them
    used:      (K,), which slots hold a token
    """

    tiles: int
    changed: int
    keyframe: str
    chosen: bool
    refreshed: Tensor
    stale: Tensor
    used: Tensor

    @cached_property
    def sampled(self) -> Tensor:
        """(K,), which patches were sampled (and encoded), on the device of the patches."""
        return self.refreshed.to(self.used.device)

    @property
    def share(self) -> float:
        """The share of tiles that changed."""
        return self.changed / self.tiles

    @property
    def tokens(self) -> int:
        return int(self.used.sum())

    @property
    def fresh(self) -> int:
        """Tokens that were sampled for this frame."""
        return int((self.sampled & self.used).sum())

    @property
    def kept(self) -> int:
        """Tokens that were kept from the last frame."""
        return self.tokens - self.fresh


@dataclass(frozen=True, eq=False)
class Step:
    """The result of one frame. All of it except the counts is the stream's own; the next frame overwrites it.

    index, time: of the frame, from 0; in seconds
    texture:     red, green and blue of the held frame
    channels:    the other channels, if any are kept
    patches:     (1, K, 3, P, P) with the allocation
    tokens:      with a model
    reuse:       what was kept and what was computed
    """

    index: int
    time: float
    texture: Texture
    channels: Texture | None
    relevance: Relevance
    patches: Patches
    tokens: Tokens | None
    reuse: Reuse

    @property
    def allocation(self) -> Allocation:
        return self.patches.allocation


@dataclass(frozen=True, eq=False)
class StreamState:
    """What a stream holds between two frames.

    made_for: the settings that a stream must share to restore it: size, budget, patch, tile and the channels' names
    numbers:  counts, times and words
    tensors:  copies, by name
    """

    made_for: dict[str, Any]
    numbers: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    def save(self, path: Path | str) -> None:
        torch.save({"format": STATE_FORMAT, **vars(self)}, Path(path))

    @classmethod
    def load(cls, path: Path | str) -> StreamState:
        """Read what `save` wrote. Nothing in the file is executed."""
        try:
            record = torch.load(Path(path), map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file shows as many kinds of error
            raise ValueError(f"StreamState.load: {path} must be a stream's state: {error}") from None
        if not isinstance(record, dict) or record.pop("format", None) != STATE_FORMAT:
            raise ValueError(f"StreamState.load: {path} must be a state of format {STATE_FORMAT}, got another file")
        return cls(**record)


def save_stream(stream: VideoStream) -> StreamState:
    """Copy everything that a stream's next frame depends on."""
    carry, choice, known = stream.carry, stream.choice, stream.carry.relevance
    numbers: dict[str, Any] = {name: getattr(stream, name) for name in STREAM_NUMBERS}
    numbers |= {"value": choice.value, "refused": choice.refused, "noise_frames": stream.noise.frames}
    if stream.rate is not None:
        numbers["saved"] = stream.rate.saved
    tokens = None if stream.encoded is None else stream.encoded.tokens
    tensors: dict[str, Tensor | None] = {
        "colour": stream.texture.levels[0],
        "pixels": stream.patches.pixels,
        "stale": stream.patches.stale,
        "scale": choice.scale,
        **_tensors_of("noise", stream.noise, ("sensor", "tiles", "last")),
        **_tensors_of("carry", carry, CARRY_TENSORS),
        **_tensors_of("allocation", choice.allocation, COLUMNS),
        **_tensors_of("relevance", known, RELEVANCE_MAPS),
        **_tensors_of("tokens", tokens, ("embeds", "position", "size", "weight")),
        **{f"map.{name}": one for name, one in carry.maps.items()},
        **{f"deepstack.{index}": one for index, one in enumerate(tokens.deepstack if tokens else ())},
    }
    if known is not None:
        numbers["scorer"] = known.scorer
    if stream.channels is not None:
        tensors |= {"channels": stream.channels.levels[0], "changed": torch.from_numpy(stream.channels.changed)}
        tensors["moved"] = stream.update.moved
    copies = {name: one.detach().clone() for name, one in tensors.items() if one is not None}
    return StreamState(_made_for(stream), numbers, copies)


def restore_stream(stream: VideoStream, state: StreamState) -> None:
    """Write a state into a stream's buffers."""
    wanted = _made_for(stream)
    if state.made_for != wanted:
        raise ValueError(f"restore: state must be of a stream with {wanted}, got one of {state.made_for}")
    carry, choice, numbers = stream.carry, stream.choice, state.numbers
    tensors = {name: one.to(stream.device) for name, one in state.tensors.items()}
    for name in STREAM_NUMBERS:
        setattr(stream, name, numbers[name])
    stream.noise = Noise(**_group(tensors, "noise"), frames=numbers["noise_frames"])
    stream.patches.pixels.copy_(tensors["pixels"])
    stream.patches.stale = tensors["stale"].clone()
    if stream.rate is not None:
        stream.rate.saved = numbers.get("saved", stream.rate.saved)
    saved = [tensors.get(name, torch.zeros(0)) for name in ("changed", "moved")]
    stream.update.restore(tensors["colour"], tensors.get("channels"), *saved)
    for name in CARRY_TENSORS:
        setattr(carry, name, _group(tensors, "carry").get(name))
    carry.maps, maps, columns = (_group(tensors, group) for group in ("map", "relevance", "allocation"))
    carry.relevance = Relevance(**maps, size=stream.size, scorer=numbers["scorer"]) if maps else None
    choice.value, choice.refused = numbers["value"], numbers["refused"]
    choice.allocation = choice.scale = None
    if columns:
        choice.allocation = Allocation(**columns, size=stream.size, patch=stream.settings.patch)
        choice.scale = tensors["scale"].clone()
        stream.hold_tokens()
    if stream.gpu_relevance is not None:
        stream.gpu_relevance.reset(soon=True)  # what it computed behind the last frames is not part of a state
    if stream.encoded is not None:
        tokens, deepstack = _group(tensors, "tokens"), _group(tensors, "deepstack")
        layers = tuple(deepstack[str(index)] for index in range(len(deepstack)))
        stream.encoded.tokens = Tokens(**tokens, deepstack=layers) if tokens else None


def _tensors_of(group: str, owner: object, names: Sequence[str]) -> dict[str, Tensor | None]:
    """Some tensors of an object that may be None, named GROUP.NAME."""
    return {} if owner is None else {f"{group}.{name}": getattr(owner, name) for name in names}


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Any]:
    """Copies of the tensors of one group, by name."""
    start = f"{group}."
    return {name.removeprefix(start): one.clone() for name, one in tensors.items() if name.startswith(start)}


def _made_for(stream: VideoStream) -> dict[str, Any]:
    given = stream.settings
    common = {"budget": given.budget, "patch": given.patch, "tile": given.tile}
    return {"size": list(given.size), **common, "channels": list(given.channel_names)}
