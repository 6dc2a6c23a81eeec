"""A stream: frame in, tokens out, and only what changed is paid for.

Each frame is compared, tile by tile, with the one that the texture holds. What changed is rewritten in place; channels
are refreshed as far as they reach; relevance is carried along the flow; the tokens stay where they are as long as they
are worth nearly as much as when they were chosen; and only patches that read a changed tile are sampled again. A
keyframe does everything anew: the first frame, a cut, every so many frames, and after a failure.

On a GPU the usual frame is a handful of kernels and a graph (`steady.py`), and the host reads one record at its end.
Without a question, and without channels that are carried, nothing is carried there either: relevance is looked at anew
behind a frame (`glance.py`) whenever a quarter of the tiles has changed since the last look, or eight frames did, which
is cheaper than to find the flow; what it says of the held tokens is known with the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.capture import no_capture_because
from texturevlm.channels import DenseEncoder, Projection, resolve
from texturevlm.channels.registry import EMBEDDING
from texturevlm.channels.structure import luma
from texturevlm.check import check_choice, check_count, check_size
from texturevlm.pipeline import Allocator
from texturevlm.relevance import Balance, Relevance, Scorer
from texturevlm.relevance.maps import cell_level
from texturevlm.types import Patches, Texture
from texturevlm.video import state as states
from texturevlm.video.asking import Asking
from texturevlm.video.budget import Rate
from texturevlm.video.canvas import Canvas
from texturevlm.video.carried import carried_channels, give_channels
from texturevlm.video.carry import Carry, worth
from texturevlm.video.change import Changes, Noise, changes, no_noise
from texturevlm.video.choose import Choice
from texturevlm.video.encode import Encode, Encoded
from texturevlm.video.flow import METHODS
from texturevlm.video.frames import as_floats, taken
from texturevlm.video.glance import Glance, can_glance
from texturevlm.video.layers import CARRIED, Layers
from texturevlm.video.result import Step
from texturevlm.video.reuse import Reuse
from texturevlm.video.samples import Samples
from texturevlm.video.steady import Steady
from texturevlm.video.tiles import Rectangle, rectangles, touched
from texturevlm.video.watch import can_watch

EVERYTHING = 0.5  # of the tiles changed and nothing asked: looking anew is as cheap as finding the flow
LEAST_LOOK = 8  # a cut is shown once an eighth of the budget can be paid for


class Stream:
    """One video, frame by frame.

    size:      (height, width) of every frame
    budget:    tokens a frame
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    query:     a question; it is asked at every keyframe, and its answer carried in between
    relevance: a scorer or its name, as for `choose_tokens`; or a function of a Texture that gives a
               Relevance on the same grid as `find_relevance` does
    channels:  a preset or names of layers to keep beside the colours; none by default
    keyframe:  everything is done anew every so many frames; carried relevance drifts within a second where much moves
    hold:      how much less tokens may be worth than when they were chosen before they are given out anew
    flow:      lucas_kanade, dis (OpenCV) or none
    rate:      tokens a second that are sampled anew; by default every frame may spend its budget
    encode:    a model: `adapt(model).encode`; keep and context as for `texturevlm.video.encode.Encoded`
    fps:       frames a second, where the source does not tell times
    options:   the allocator's own
    """

    def __init__(
        self,
        size: tuple[int, int],
        budget: int = 273,
        allocator: str | Allocator = "auto",
        *,
        query: str = "",
        relevance: str | Scorer | Callable[[Texture], Relevance] = "auto",
        balance: Balance | None = None,
        patch: int = 32,
        channels: str | Sequence[str] = (),
        tile: int = 32,
        keyframe: int = 30,
        hold: float = 0.05,
        flow: str = "lucas_kanade",
        rate: float | None = None,
        encode: Encode | None = None,
        keep: str = "exact",
        context: float = 1.0,
        fps: float = 25.0,
        device: torch.device | str = "cpu",
        encoder: DenseEncoder | None = None,
        projection: Projection | None = None,
        **options: Any,
    ) -> None:
        self.settings = {name: value for name, value in locals().items() if name not in ("self", "options")} | options
        self.size, self.budget = check_size("Stream", size), check_count("Stream", "budget", budget, 1)
        self.patch, self.tile = check_count("Stream", "patch", patch, 1), check_count("Stream", "tile", tile, 4)
        self.keyframe = check_count("Stream", "keyframe", keyframe, 1)
        captured = False
        if isinstance(allocator, str):
            check_choice("Stream", "allocator", allocator, tuple(ALLOCATORS))
            captured = no_capture_because(allocator, self.size, patch, budget, options) is None
            allocator = ALLOCATORS[allocator]
        if not 0 <= hold < 1:
            raise ValueError(f"Stream: hold must be at least 0 and below 1, got {hold!r}")
        if not fps > 0:
            raise ValueError(f"Stream: fps must be above 0, got {fps!r}")
        if rate is not None and encode is not None and keep == "exact":
            raise ValueError(
                "Stream: rate with a model needs keep='approximate', since 'exact' encodes every token again"
            )
        check_choice("Stream", "flow", flow, METHODS)
        self.fps, models = fps, {"encoder": encoder, "projection": projection}
        self.asking = Asking(query, relevance, patch, balance or Balance(), models)
        self.canvas = Canvas(self.size, torch.device(device), tile)
        self.device = self.canvas.levels[0].device  # with its number
        cell = min(cell_level(self.size, patch), len(self.canvas.levels) - 1)
        self.cells = self.canvas.levels[cell]
        names, kernels = resolve(channels) if len(channels) else (), can_watch(self.canvas.levels[0], tile)
        self.layers = None
        if names:
            self.layers = Layers(names, self.canvas, marked=kernels, encoder=encoder, projection=projection)
        self.carry = Carry(self.size, tile, flow)
        self.choice = Choice(
            lambda texture, known, tokens: allocator(texture, known, budget=tokens, patch=patch, **options),
            budget,
            hold,
            captured=kernels and captured,
        )
        self.encoded = None if encode is None else Encoded(encode, keep=keep, context=context)
        self.rate = None if rate is None else Rate(rate, budget)
        self.noise = no_noise(self.size, tile, self.device)
        self.samples = Samples(budget, patch, self.device)
        self.steady = Steady(self.canvas, self.layers, self.samples.pixels) if kernels else None
        if self.steady is not None and can_glance(self.canvas, cell) and not _moving(names):
            self.steady.glance = Glance(self.canvas, cell, self.asking.balance, self.steady.watch.found, worth)
        self._patches: Patches | None = None  # as they were given out last
        self._used = self.samples.stale
        self.frames, self.since, self.seconds = 0, 0, 0.0  # since: the last keyframe
        self.moved = False  # whether anything changed since the last keyframe
        self.short = False  # whether the last cut got less than a full look
        self.waiting = "first"  # why the next frame must be a keyframe; "" if it need not

    def step(self, frame: Any, *, time: float | None = None) -> Step:
        """Take the next frame.

        frame:  (3, H, W), (1, 3, H, W) or grey (H, W), bytes or floats from 0 to 1; an array (H, W, 3); a PIL image
        time:   in seconds; by default that of the last frame and 1 / fps
        raises  ValueError for a frame of another size or with NaN; the stream then is as it was before. Whatever else
                fails on the way makes the next frame a keyframe
        """
        image = taken(frame, self.size, self.device, keep_bytes=self.steady is not None)
        now = self.seconds + (1 / self.fps if self.frames else 0.0) if time is None else float(time)
        found = self._compared(image)
        if self.rate is not None:
            self.rate.wait(now - self.seconds)
        self.seconds = now
        why = self._keyframe(found)
        self.waiting = "failure" if why in ("", "interval") else why  # if anything goes wrong half-way
        try:
            with torch.no_grad():
                origin, sampled = self._act(image, found, why)
        except BaseException:
            self.samples.forsake()  # what is held may be this frame already
            raise
        self.frames, self.since = self.frames + 1, 0 if why else self.since + 1
        return self._result(found, why, origin is not None, sampled)

    def point(self, box: tuple[float, float, float, float]) -> None:
        """Say where to look, xyxy in pixels of the frame that is held; it is carried along from here on."""
        self.carry.point(box)
        self._ask()
        self.waiting = self.waiting or "pointed"

    def state(self) -> states.State:
        """All that is needed to go on from here: tensors of its own, and numbers."""
        return states.of(self)

    def restore(self, state: states.State) -> None:
        """Go on from a state of a stream with the same settings. Buffers stay where they are."""
        states.restore(self, state)

    def fork(self) -> Stream:
        """Another stream that begins where this one is."""
        other = Stream(**self.settings)
        other.restore(self.state())
        return other

    def _compared(self, image: Tensor) -> Changes:
        """What changed; by kernels, unless a keyframe is due, also taken over and acted on, all in one go."""
        if self.steady is None:
            return changes(image, self.canvas.levels[0], self.noise, tile=self.tile)
        waiting, due = self.waiting, self._due()
        self.waiting = "failure"  # if anything goes wrong half-way
        if due or self.rate is not None:  # what a rate allows is known only once the host has seen what changed
            self.steady.compare(image, self.noise, take=not due)
        else:
            self.steady.follow(image, self.noise)
        self.steady.wait()
        self.waiting = waiting
        return self.steady.changes()

    def _act(self, image: Tensor, found: Changes, why: str) -> tuple[Tensor | None, Tensor]:
        """What follows from the changes: the slots that tokens had, if they were given out anew; what was sampled."""
        if why not in ("", "interval") and self._affordable(why) < max(1, self.budget // LEAST_LOOK):
            self.samples.forsake()  # another scene, and nothing left to pay for a look at it
            return None, torch.zeros_like(self.samples.stale)
        origin = None
        if why:
            origin = self._anew(image, found, why)
        elif found.count:
            origin = self._follow(image, found)
        else:
            self._stand_still()
        sampled = self._sample(found.mask, origin, why)
        if self.steady is not None and found.count and not why and self._glances():
            self.carry.relevance = self.steady.look_ahead(found.share) or self.carry.relevance
        self.noise = self._learned(found.noise, why)
        self.waiting = ""
        return origin, sampled

    def _stand_still(self) -> None:
        """Nothing changed: what moved last does not any more."""
        if self.layers is None:
            return
        if self.steady is not None and self.rate is not None and self.layers.motion is not None:
            self.steady.advance()  # without a rate the kernels have done it
        self.layers.stand_still()

    def _ask(self) -> None:
        """Relevance from the frame that is held, with the question, or with where someone pointed, or by a glance."""
        if self._glances():
            assert self.steady is not None
            known = self.steady.look_now()
        else:
            rows, columns = self.cells.shape[2:]
            known = self.asking.ask(self.canvas.texture, self.carry.pointed_map(), (rows, columns))
        self.carry.start(known, luma(self.cells))

    def _keyframe(self, found: Changes) -> str:
        """Why this frame must be one; "" if it need not."""
        if self.waiting or found.cut:
            return self.waiting or "cut"
        if self.short and self._affordable("cut") >= self.budget:
            return "refill"
        return self._due()

    def _due(self) -> str:
        """Why the next frame must be a keyframe, whatever it shows."""
        return self.waiting or ("interval" if self.since + 1 >= self.keyframe else "")

    def _learned(self, noise: Noise, why: str) -> Noise:
        """What a frame says about the noise; nothing, where it has little to do with the one before."""
        if not why:
            return noise
        known = noise if why in ("interval", "refill") else self.noise
        tiles = torch.zeros_like(known.tiles) if why == "cut" else known.tiles
        return Noise(known.sensor, tiles, torch.zeros_like(noise.last), known.frames)

    def _affordable(self, why: str) -> int:
        """Tokens that may be paid for now."""
        return self.budget if self.rate is None else self.rate.affordable(cut=why not in ("", "interval"))

    def _anew(self, image: Tensor, found: Changes, why: str) -> Tensor | None:
        """A keyframe: everything from this frame."""
        tokens = self.budget if why == "interval" else min(self.budget, self._affordable(why))
        self.canvas.replace(as_floats(image))
        if self.steady is not None:
            self.steady.let_go()
        if why == "cut":
            self.carry.forget()
        elif why != "failure" and self.carry.relevance is not None and not self._glances():
            self._move(found)
        carried = {} if self.layers is None else carried_channels(self.carry)
        if why != "interval" or self.moved or found.count:  # a question need not be asked again of a still scene
            self._ask()
        self.moved = False
        if self.layers is not None:
            self.layers.remake()
            give_channels(_without_embedding(carried), self.layers, self.carry)
        most = self._affordable(why) if why == "interval" and self.rate is not None else None
        self.short = tokens < self.budget
        origin = self.choice.choose(
            self.canvas.texture, self.carry, tokens=tokens, force=True, free=why in ("first", "cut"), most=most
        )
        self._looked()
        if why == "first":
            self._prepare()
        return origin

    def _prepare(self) -> None:
        """Make the graphs that the next choice will need: a stream may be slow to begin. One that goes on from a state,
        or that someone points in, makes them when they are first needed."""
        assert self.carry.relevance is not None
        if self._glances():
            assert self.steady is not None and self.steady.glance is not None
            self.steady.glance.prepare()
        self.choice.prepare(self.canvas.texture, self.carry.relevance)

    def _follow(self, image: Tensor, found: Changes) -> Tensor | None:
        """The usual frame: some of it changed."""
        before: dict[Rectangle, Tensor] = {}
        if self.steady is None:
            boxes = rectangles(found.marked, self.tile, self.size) if self.layers is not None else []
            before = {box: self.canvas.levels[0][..., box[1] : box[3], box[0] : box[2]].clone() for box in boxes}
            self.canvas.refresh(image, found)
        elif self.rate is not None:
            self.steady.advance()
        self.moved = True
        assert self.carry.relevance is not None and self.choice.allocation is not None
        if self._glances():
            return self._glance(found)
        asked = self.carry.relevance.asked or self.layers is not None or self.carry.pointed is not None
        if asked or found.share <= EVERYTHING:
            self._move(found)
            if self.carry.overdue():
                self.carry.look_again(self.asking.look(self.canvas.texture))
        else:
            self._ask()
        if self.layers is not None:
            carried = carried_channels(self.carry)
            made = self.layers.refresh(found, before)
            give_channels(_without_embedding(carried) if made else carried, self.layers, self.carry)
        most = None if self.rate is None else self._affordable("")
        tokens = int(self.choice.allocation.valid.sum()) if self.short else self.budget
        origin = self.choice.choose(self.canvas.texture, self.carry, tokens=tokens, most=most)
        self._looked()
        return origin

    def _glances(self) -> bool:
        """Whether relevance comes from the image alone, by kernels that look at it anew, and nothing is carried."""
        known = self.carry.relevance
        if self.steady is None or self.steady.glance is None or known is None:
            return False
        return self.asking.silent and self.carry.pointed is None and not known.asked

    def _glance(self, found: Changes) -> Tensor | None:
        """The usual frame where nothing is carried. What was seen behind the last frame decides, on this one's maps."""
        assert self.steady is not None and self.choice.allocation is not None
        if self.layers is not None:
            self.layers.refresh(found, {})
        now = self.steady.worth()
        if now is None or not self.choice.lost(now):
            return None
        self.carry.relevance = self.steady.look_now()
        most = None if self.rate is None else self._affordable("")
        tokens = int(self.choice.allocation.valid.sum()) if self.short else self.budget
        origin = self.choice.choose(self.canvas.texture, self.carry, tokens=tokens, most=most)
        self._looked()
        return origin

    def _move(self, found: Changes) -> None:
        """Carry what is known to the frame that is held now."""
        self.carry.fade()
        self.carry.move(luma(self.cells), found.mask)

    def _looked(self) -> None:
        assert self.choice.scale is not None
        self.carry.looked(self.choice.scale)
        self.hold_tokens()

    def hold_tokens(self) -> None:
        """Tell the kernels where the tokens are."""
        if self.steady is not None and self.choice.allocation is not None and self.choice.scale is not None:
            self.steady.hold(self.choice.allocation, self.choice.scale)

    def _sample(self, mask: Tensor, origin: Tensor | None, why: str) -> Tensor:
        """Patches and tokens of what changed; which those were, (K,)."""
        allocation, texture = self.choice.allocation, self.canvas.texture
        assert allocation is not None
        if origin is None and not why and self.steady is not None and self.rate is None:
            if self.encoded is not None:  # the kernels have done the rest
                everyone = torch.arange(self.budget, device=self.device)
                self.encoded.update(texture, allocation, self.steady.sampled, everyone)
            return self.steady.watch.sampled
        if origin is None:
            origin = torch.arange(self.budget, device=self.device)
        else:
            self.samples.rearrange(origin)
        changed = None if why and self.rate is None else touched(allocation, mask, self.tile)
        cut = why not in ("", "interval")
        paid = self.samples.renew(texture, allocation, changed, origin < 0, rate=self.rate, cut=cut)
        if self.encoded is not None:
            self.encoded.update(texture, allocation, paid, origin)
        return paid

    def _result(self, found: Changes, why: str, chosen: bool, sampled: Tensor) -> Step:
        allocation, known = self.choice.allocation, self.carry.relevance
        assert allocation is not None and known is not None
        if self._patches is None or self._patches.allocation is not allocation:
            self._patches, self._used = Patches(self.samples.pixels, allocation), allocation.valid[0]
        reuse = Reuse(found.marked.size, found.count, why, chosen, sampled, self.samples.stale, self._used)
        return Step(
            self.frames - 1,
            self.seconds,
            self.canvas.texture,
            None if self.layers is None else self.layers.texture,
            known,
            self._patches,
            None if self.encoded is None else self.encoded.tokens,
            reuse,
        )


def _without_embedding(carried: dict[str, Tensor]) -> dict[str, Tensor]:
    """Less what was just made anew."""
    return {name: one for name, one in carried.items() if name not in EMBEDDING}


def _moving(names: Sequence[str]) -> bool:
    """Whether some channels are carried along by the flow."""
    return any(name in (*CARRIED, *EMBEDDING) for name in names)
