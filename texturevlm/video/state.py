"""The state of a stream: all that it needs to go on, as tensors and numbers, to be kept, saved or given to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.ops.mip import update_region
from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation
from texturevlm.video.change import Noise
from texturevlm.video.tiles import rectangles, tile_grid
from texturevlm.vlm import Tokens

if TYPE_CHECKING:
    from texturevlm.video.stream import Stream

TOKENS = ("embeds", "position", "size", "weight")
NUMBERS = ("frames", "since", "seconds", "waiting", "short", "moved")
FORMAT = 2


@dataclass(frozen=True, eq=False)
class State:
    """What a stream holds between two frames.

    made_for: the settings that a stream must share to take it: size, budget, patch, tile and the channels' names
    numbers:  counts, times and words
    tensors:  by name, copies of their own
    """

    made_for: dict[str, Any]
    numbers: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)

    def save(self, path: Path | str) -> None:
        record = {"format": FORMAT, "made_for": self.made_for, "numbers": self.numbers, "tensors": self.tensors}
        torch.save(record, Path(path))

    @classmethod
    def load(cls, path: Path | str) -> State:
        """What `save` wrote. Nothing in the file is run."""
        try:
            record = torch.load(Path(path), map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file shows as many kinds of error
            raise ValueError(f"State.load: {path} must be a stream's state: {error}") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"State.load: {path} must be a stream's state of format {FORMAT}, got another file")
        return cls(record["made_for"], record["numbers"], record["tensors"])


def of(stream: Stream) -> State:
    """A copy of everything that a stream's next frame depends on."""
    carry, choice = stream.carry, stream.choice
    numbers: dict[str, Any] = {name: getattr(stream, name) for name in NUMBERS}
    numbers |= {"worth": choice.worth, "refused": choice.refused, "learned": stream.noise.frames}
    tensors: dict[str, Tensor | None] = {
        "colour": stream.canvas.levels[0],
        "sensor": stream.noise.sensor,
        "flicker": stream.noise.tiles,
        "blocks": stream.noise.last,
        "pixels": stream.samples.pixels,
        "stale": stream.samples.stale,
        "grey": carry.grey,
        "waits": carry.waits,
        "pointed": carry.pointed,
        "scale": choice.scale,
    }
    tensors |= {f"map.{name}": one for name, one in carry.maps.items()}
    if stream.rate is not None:
        numbers["saved"] = stream.rate.saved
    if choice.allocation is not None:
        tensors |= {f"allocation.{name}": getattr(choice.allocation, name) for name in COLUMNS}
    if (known := carry.relevance) is not None:
        numbers["scorer"] = known.scorer
        tensors |= {
            "mass": known.mass,
            "legible_scale": known.legible_scale,
            "ink": known.ink,
            "photograph": known.photograph,
        }
    if stream.layers is not None:
        tensors |= {"layers": stream.layers.levels[0], "changed": torch.from_numpy(stream.layers.changed)}
        tensors["moving"] = _moving(stream)
    if stream.encoded is not None and (tokens := stream.encoded.tokens) is not None:
        tensors |= {f"tokens.{name}": getattr(tokens, name) for name in TOKENS}
        tensors |= {f"deepstack.{index}": one for index, one in enumerate(tokens.deepstack)}
    copies = {name: one.detach().clone() for name, one in tensors.items() if one is not None}
    return State(_made_for(stream), numbers, copies)


def restore(stream: Stream, state: State) -> None:
    """Write a state into a stream's buffers."""
    wanted = _made_for(stream)
    if state.made_for != wanted:
        raise ValueError(f"restore: state must be of a stream with {wanted}, got one of {state.made_for}")
    numbers, tensors = state.numbers, {name: one.to(stream.device) for name, one in state.tensors.items()}
    for name in NUMBERS:
        setattr(stream, name, numbers[name])
    stream.canvas.levels[0].copy_(tensors["colour"])
    update_region(stream.canvas.levels, stream.canvas.everything)
    sensor, flicker, blocks = (tensors[name].clone() for name in ("sensor", "flicker", "blocks"))
    stream.noise = Noise(sensor, flicker, blocks, numbers["learned"])
    stream.samples.pixels.copy_(tensors["pixels"])
    stream.samples.stale = tensors["stale"].clone()
    if stream.rate is not None:
        stream.rate.saved = numbers.get("saved", stream.rate.saved)
    _restore_choice(stream, numbers, tensors)
    if stream.steady is not None:
        stream.steady.let_go(soon=True)  # what was seen behind the last frames is not part of a state
    if stream.layers is not None:
        moving = tensors["moving"]
        boxes = rectangles(moving.cpu().numpy(), stream.tile, stream.size)
        stream.layers.restore(tensors["layers"], tensors["changed"].cpu().numpy().astype(bool), boxes)
        if stream.steady is not None:
            stream.steady.watch.found.moved.copy_(moving)
    if stream.encoded is not None:
        stream.encoded.tokens = None
        if "tokens.embeds" in tensors:
            deep = tuple(one.clone() for name, one in sorted(tensors.items()) if name.startswith("deepstack."))
            stream.encoded.tokens = Tokens(
                **{name: tensors[f"tokens.{name}"].clone() for name in TOKENS}, deepstack=deep
            )


def _restore_choice(stream: Stream, numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    carry, choice = stream.carry, stream.choice
    carry.grey, carry.waits, carry.pointed = (
        tensors[name].clone() if name in tensors else None for name in ("grey", "waits", "pointed")
    )
    carry.maps = {name[4:]: one.clone() for name, one in tensors.items() if name.startswith("map.")}
    carry.relevance = choice.allocation = choice.scale = None
    choice.worth, choice.refused = numbers["worth"], numbers["refused"]
    if "mass" in tensors:
        mass, half, ink = (tensors[name].clone() for name in ("mass", "legible_scale", "ink"))
        scene = tensors["photograph"].clone() if "photograph" in tensors else None
        carry.relevance = Relevance(mass, half, ink, stream.size, numbers["scorer"], scene)
    if "allocation.centre" in tensors:
        columns: Any = {name: tensors[f"allocation.{name}"].clone() for name in COLUMNS}
        choice.allocation = Allocation(**columns, size=stream.size, patch=stream.patch)
        choice.scale = tensors["scale"].clone()
        stream.hold_tokens()


def _moving(stream: Stream) -> Tensor:
    """(rows, columns) bool: the tiles where the motion channel is not zero."""
    assert stream.layers is not None
    if stream.steady is not None:
        return stream.steady.watch.found.moved
    tile = stream.tile
    mask = torch.zeros(tile_grid(stream.size, tile), dtype=torch.bool, device=stream.device)
    for left, top, right, bottom in stream.layers.moved:
        mask[top // tile : -(-bottom // tile), left // tile : -(-right // tile)] = True
    return mask


def _made_for(stream: Stream) -> dict[str, Any]:
    names = [] if stream.layers is None else list(stream.layers.names)
    return {
        "size": list(stream.size),
        "budget": stream.budget,
        "patch": stream.patch,
        "tile": stream.tile,
        "channels": names,
    }
