"""The state of a stream with a model: what the model has seen, to go on later or elsewhere.

It holds the cache and its order, not the held frame: the first frame after a restore is a keyframe, of which only what
differs from what the model was shown goes to the model. It is restored only into a stream with the same settings and
the same model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.types import COLUMNS, Allocation
from texturevlm.video.live_moments import LiveMoment

if TYPE_CHECKING:
    from texturevlm.video.live import VideoStream

STATE_FORMAT = 2
MEMORY_TENSORS = ("keys", "turned", "values", "embeds", "position", "order", "live")
SHARED_SETTINGS = ("size", "budget", "query", "patch", "tile", "keyframe", "hold", "flow", "rate", "fps")
SAMPLED_WEIGHTS = 64  # numbers of each parameter that name a model


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


def save_state(stream: VideoStream) -> StreamState:
    """Copy all that the answers of a stream with a model depend on."""
    talk = stream.conversation
    if talk is None:
        raise ValueError("state: the stream must have a model (VideoStream(…, model=…)), got none")
    numbers = {
        "seconds": stream.tokens.seconds,
        "frames": stream.tokens.frames,
        "shown": talk.frames,
        "failed": talk.failed,
        "evicted": talk.evicted,
        "follow": list(talk.follow),
        "head": [list(talk.head_ids), list(talk.head)],
        "free": list(talk.memory.free),
        "moments": [asdict(moment) for moment in talk.moments],
    }
    tensors = {name: getattr(talk.memory, name).clone() for name in MEMORY_TENSORS}
    if talk.shown is not None and talk.allocation is not None:
        tensors["shown"] = talk.shown.clone()
        tensors |= {f"allocation.{name}": getattr(talk.allocation, name).clone() for name in COLUMNS}
    return StreamState(made_for(stream), numbers, tensors)


def restore_state(stream: VideoStream, state: StreamState) -> None:
    """Go on from a state; everything is checked before anything is changed."""
    talk = stream.conversation
    if talk is None:
        raise ValueError("restore: the stream must have a model (VideoStream(…, model=…)), got none")
    wanted = made_for(stream)
    for name, value in wanted.items():
        if state.made_for.get(name) != value:
            got = state.made_for.get(name)
            raise ValueError(f"restore: state must be of a stream with {name} = {value!r:.80}, got {got!r:.80}")
    numbers, tensors = state.numbers, state.tensors
    for name in MEMORY_TENSORS:
        getattr(talk.memory, name).copy_(tensors[name])
    talk.memory.free = list(numbers["free"])
    talk.head_ids, talk.head = (list(one) for one in numbers["head"])
    talk.follow = (int(numbers["follow"][0]), float(numbers["follow"][1]))
    talk.moments = [LiveMoment(**one) for one in numbers["moments"]]
    talk.frames, talk.evicted, talk.stepped = numbers["shown"], numbers["evicted"], None
    talk.failed = numbers["failed"]
    talk.shown = talk.allocation = None
    if "shown" in tensors:
        talk.shown = tensors["shown"].to(talk.memory.live.device, copy=True)
        columns: Any = {name: tensors[f"allocation.{name}"].clone() for name in COLUMNS}
        talk.allocation = Allocation(**columns, size=stream.tokens.size, patch=stream.tokens.settings.patch)
    stream.tokens.seconds, stream.tokens.frames = numbers["seconds"], numbers["frames"]
    stream.tokens.pending = "first"


def made_for(stream: VideoStream) -> dict[str, Any]:
    """What two streams must share to go on from one another's state, as JSON has it."""
    talk, given = stream.conversation, stream.tokens.settings
    assert talk is not None
    named = {name: _name_of(getattr(given, name)) for name in ("allocator", "relevance")}
    own = {"limit": talk.limit, "refresh": talk.refresh, "interval": talk.interval, "model": _model_name(talk.model)}
    settings = {name: getattr(given, name) for name in SHARED_SETTINGS}
    balance = [str(one) for one in (given.balance.explore, given.balance.focus, given.balance.particularise)]
    table: dict[str, Any] = json.loads(
        json.dumps({**settings, **named, **own, "balance": balance, "options": dict(given.options)}, default=str)
    )
    return table


def _name_of(chosen: Any) -> str:
    """Of an allocator or a scorer."""
    return chosen if isinstance(chosen, str) else str(getattr(chosen, "__qualname__", type(chosen).__qualname__))


def _model_name(model: Any) -> str:
    """A digest of the model: its config, some numbers of every weight, and the wording of prompts."""
    digest = hashlib.blake2b(json.dumps(model.model.config.to_dict(), sort_keys=True, default=str).encode())
    for name, weight in model.model.named_parameters():
        flat = weight.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLED_WEIGHTS)].float().cpu()
        digest.update(name.encode() + some.numpy().tobytes())
    digest.update(str(model.processor.chat_template).encode())
    return digest.hexdigest()[:32]
