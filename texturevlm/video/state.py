"""The state of a stream: all that it needs to continue, as tensors and numbers; kept, saved or given to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation
from texturevlm.video.change import Noise
from texturevlm.video.choice import RELEVANCE_MAPS
from texturevlm.vlm import Tokens

if TYPE_CHECKING:
    from texturevlm.video.stream import VideoStream

STREAM_NUMBERS = ("frames", "since_keyframe", "seconds", "pending", "incomplete", "changed")  # attributes of a stream
CARRY_TENSORS = ("grey", "untrusted", "box")  # tensors of its CarriedRelevance, each perhaps None
NOISE_TENSORS = ("sensor", "tiles", "last")
TOKEN_TENSORS = ("embeds", "position", "size", "weight")
STATE_FORMAT = 3


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
        record = {"format": STATE_FORMAT, "made_for": self.made_for, "numbers": self.numbers, "tensors": self.tensors}
        torch.save(record, Path(path))

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


def save_stream(stream: VideoStream) -> StreamState:
    """Copy everything that a stream's next frame depends on."""
    carry, choice = stream.carry, stream.choice
    numbers: dict[str, Any] = {name: getattr(stream, name) for name in STREAM_NUMBERS}
    numbers |= {"value": choice.value, "refused": choice.refused, "noise_frames": stream.noise.frames}
    tensors: dict[str, Tensor | None] = {
        "colour": stream.texture.levels[0],
        "pixels": stream.patches.pixels,
        "stale": stream.patches.stale,
        "scale": choice.scale,
        **_attributes("noise", stream.noise, NOISE_TENSORS),
        **_attributes("carry", carry, CARRY_TENSORS),
        **{f"map.{name}": one for name, one in carry.maps.items()},
    }
    if stream.rate is not None:
        numbers["saved"] = stream.rate.saved
    if choice.allocation is not None:
        tensors |= _attributes("allocation", choice.allocation, COLUMNS)
    if carry.relevance is not None:
        numbers["scorer"] = carry.relevance.scorer
        tensors |= _attributes("relevance", carry.relevance, RELEVANCE_MAPS)
    if stream.channels is not None:
        tensors |= {"channels": stream.channels.levels[0], "changed": torch.from_numpy(stream.channels.changed)}
        tensors["moved"] = stream.update.moved
    if stream.encoded is not None and (tokens := stream.encoded.tokens) is not None:
        tensors |= _attributes("tokens", tokens, TOKEN_TENSORS)
        tensors |= {f"deepstack.{index}": one for index, one in enumerate(tokens.deepstack)}
    copies = {name: one.detach().clone() for name, one in tensors.items() if one is not None}
    return StreamState(_made_for(stream), numbers, copies)


def restore_stream(stream: VideoStream, state: StreamState) -> None:
    """Write a state into a stream's buffers."""
    wanted = _made_for(stream)
    if state.made_for != wanted:
        raise ValueError(f"restore: state must be of a stream with {wanted}, got one of {state.made_for}")
    numbers, tensors = state.numbers, {name: one.to(stream.device) for name, one in state.tensors.items()}
    for name in STREAM_NUMBERS:
        setattr(stream, name, numbers[name])
    stream.noise = Noise(**_group(tensors, "noise"), frames=numbers["noise_frames"])
    stream.patches.pixels.copy_(tensors["pixels"])
    stream.patches.stale = tensors["stale"].clone()
    if stream.rate is not None:
        stream.rate.saved = numbers.get("saved", stream.rate.saved)
    empty = torch.zeros(0)
    stream.update.restore(
        tensors["colour"], tensors.get("channels"), tensors.get("changed", empty), tensors.get("moved", empty)
    )
    _restore_choice(stream, numbers, tensors)
    if stream.gpu_relevance is not None:
        stream.gpu_relevance.reset(soon=True)  # what it computed behind the last frames is not part of a state
    if stream.encoded is not None:
        deepstack = _group(tensors, "deepstack")
        layers = tuple(deepstack[str(index)] for index in range(len(deepstack)))
        known = _group(tensors, "tokens")
        stream.encoded.tokens = Tokens(**known, deepstack=layers) if known else None


def _restore_choice(stream: VideoStream, numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    carry, choice = stream.carry, stream.choice
    known = _group(tensors, "carry")
    for name in CARRY_TENSORS:
        setattr(carry, name, known.get(name))
    carry.maps = _group(tensors, "map")
    carry.relevance = choice.allocation = choice.scale = None
    choice.value, choice.refused = numbers["value"], numbers["refused"]
    if maps := _group(tensors, "relevance"):
        carry.relevance = Relevance(**maps, size=stream.size, scorer=numbers["scorer"])
    if columns := _group(tensors, "allocation"):
        choice.allocation = Allocation(**columns, size=stream.size, patch=stream.settings.patch)
        choice.scale = tensors["scale"].clone()
        stream.hold_tokens()


def _attributes(group: str, owner: object, names: tuple[str, ...]) -> dict[str, Tensor | None]:
    """Some tensors of an object, named GROUP.NAME."""
    return {f"{group}.{name}": getattr(owner, name) for name in names}


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Any]:
    """Copies of the tensors of one group, by name."""
    start = f"{group}."
    return {name.removeprefix(start): one.clone() for name, one in tensors.items() if name.startswith(start)}


def _made_for(stream: VideoStream) -> dict[str, Any]:
    names = [] if stream.channels is None else list(stream.channels.names)
    given = stream.settings
    common = {"budget": given.budget, "patch": given.patch, "tile": given.tile}
    return {"size": list(given.size), **common, "channels": names}
