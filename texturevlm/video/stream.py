"""A video stream: frame in, tokens out; only what changed is computed again.

Each frame is compared, tile by tile, with the frame that the texture holds. Changed tiles are copied; channels are
updated as far as the change reaches; relevance is carried along the flow; tokens stay in place while they keep their
value; and only patches that read a changed tile are sampled again. A keyframe computes everything from its frame: the
first frame, a cut, every so many frames, and the frame after a failure.

On a GPU the usual frame is one captured graph. Without a question and without carried channels, relevance is not
carried there but computed again now and then, behind a frame (`update_gpu.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.channels import EMBEDDING_LAYERS, luma
from texturevlm.check import check_share, check_size
from texturevlm.defaults import ALLOCATOR, BUDGET
from texturevlm.placement import Allocator
from texturevlm.relevance import MOST_CELL, Relevance, cell_level, find_balance, find_relevance
from texturevlm.types import Allocation, Patches, Texture
from texturevlm.video.carry import CarriedRelevance
from texturevlm.video.change import Changes, Noise, NotAnImage, initial_noise, reads_marked
from texturevlm.video.change_gpu import kernels_can_compare
from texturevlm.video.config import StreamConfig
from texturevlm.video.sources import as_floats, as_frame
from texturevlm.video.tokens import HeldPatches, Rate, TokenChoice
from texturevlm.video.update import CARRIED, FrameUpdate, StreamChannels, channel_extents
from texturevlm.video.update_gpu import GpuChannels, GpuFrameUpdate, GpuRelevance

MOSTLY_CHANGED = 0.5  # share of tiles, without a question: computing relevance again is as cheap as finding the flow
LEAST_CUT = 8  # a cut is shown once the rate pays for budget / LEAST_CUT tokens


class Keyframe(StrEnum):
    """Why everything was computed from a frame; NONE, the empty text, if only what changed was."""

    NONE = ""
    FIRST = "first"
    CUT = "cut"
    INTERVAL = "interval"
    REFILL = "refill"  # the full budget after a cut, once the rate pays for it
    POINTED = "pointed"
    FAILURE = "failure"

    @property
    def urgent(self) -> bool:
        """Whether the reserve of a rate may be spent on it."""
        return self not in (Keyframe.NONE, Keyframe.INTERVAL)

    @property
    def goes_on(self) -> bool:
        """Whether the frame goes on from the held one."""
        return self not in (Keyframe.FIRST, Keyframe.CUT, Keyframe.FAILURE)


@dataclass(frozen=True, eq=False)
class Reuse:
    """What one frame cost. Counts are read when they are asked for, so that nothing waits for them.

    tiles, changed: the number of tiles, and of those that changed
    chosen:    whether tokens were chosen again
    refreshed: (K,), which patches were sampled; on the host where a GPU's record says so, see `sampled`
    stale:     (K,), which patches still show an older frame, because the rate did not pay for them
    used:      (K,), which slots hold a token
    """

    tiles: int
    changed: int
    keyframe: Keyframe
    chosen: bool
    refreshed: Tensor
    stale: Tensor
    used: Tensor

    @cached_property
    def sampled(self) -> Tensor:
        """(K,), which patches were sampled, on the device of the patches."""
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
    reuse:       what was kept and what was computed
    """

    index: int
    time: float
    texture: Texture
    channels: Texture | None
    relevance: Relevance
    patches: Patches
    reuse: Reuse

    @property
    def allocation(self) -> Allocation:
        return self.patches.allocation

    def held(self) -> Step:
        """A copy whose picture the next frame does not overwrite: texture and allocation, to be drawn later."""
        texture = replace(self.texture, levels=tuple(level.clone() for level in self.texture.levels), resident=None)
        return replace(self, texture=texture, channels=None)


class TokenStream:
    """One video, frame by frame.

    size:    (height, width) of every frame
    options: fields of `StreamConfig`; other keyword arguments are options of the allocator
    """

    def __init__(
        self, size: tuple[int, int], budget: int = BUDGET, allocator: str | Allocator = ALLOCATOR, **options: Any
    ) -> None:
        given = self.config = StreamConfig.of(budget, allocator, options)
        self.size, self.budget = check_size("VideoStream", size), budget
        self.rate = None if given.rate is None else Rate(given.rate, budget)
        self.patches = HeldPatches(budget, given.tokens.patch, torch.device(given.device), self.rate)
        self.update = make_update(given, self.size, self.patches.pixels)
        self.device, self.channels, self.texture = self.update.device, self.update.channels, self.update.texture
        self.noise = initial_noise(self.size, given.tile, self.device)
        self.carry = CarriedRelevance(self.size, given.tile, given.flow)
        self._cell = min(cell_level(self.size, given.tokens.patch), len(self.texture.levels) - 1)
        self.gpu_relevance = self._make_gpu_relevance()
        captured = self.update.comparison is not None and given.capturable(self.size)
        self.choice = TokenChoice(given.allocate, budget, given.hold, captured=captured)
        self._given: Patches | None = None  # the Patches of the last step
        self.frames, self.since_keyframe, self.seconds = 0, 0, 0.0
        self.changed = False  # whether anything changed since the last keyframe
        self.incomplete = False  # whether the last cut got fewer tokens than the budget
        self.pending = Keyframe.FIRST  # why the next frame must be a keyframe; NONE if it need not

    def step(self, frame: Any, *, time: float | None = None) -> Step:
        """Process the next frame.

        frame:  (3, H, W), (1, 3, H, W) or grey (H, W), bytes or floats from 0 to 1; an array (H, W, 3); a PIL image
        time:   in seconds; by default that of the last frame plus 1 / fps
        raises  ValueError for a frame of another size or with NaN: the stream is then as it was before. After any other
                failure the next frame is a keyframe
        """
        image = as_frame(frame, self.size, self.device, keep_bytes=self.update.comparison is not None)
        now = self.seconds + (1 / self.config.fps if self.frames else 0.0) if time is None else float(time)
        found = self._compare(image)
        if self.rate is not None:
            self.rate.wait(now - self.seconds)
        self.seconds = now
        why = self._due(found)
        self.pending = why if why.urgent else Keyframe.FAILURE  # in case this frame fails
        try:
            with torch.no_grad():
                origin, sampled = self._process(image, found, why)
        except BaseException:
            self.patches.invalidate()  # the texture may hold this frame already
            raise
        self.frames, self.since_keyframe = self.frames + 1, 0 if why else self.since_keyframe + 1
        return self._result(found, why, origin is not None, sampled)

    def point(self, box: Box) -> None:
        """Point at a box, xyxy in pixels of the held frame: it is relevant, and followed from here on."""
        self.carry.point(box)
        self._score()
        self.pending = self.pending or Keyframe.POINTED

    def attend(self, attention: Tensor, *, share: float) -> None:
        """Where a model's attention went in the held frame, (1, h, w) of any extent: it is followed from here on.

        share: of the relevance that goes there
        """
        self.carry.attend(attention, check_share("attend", "share", share))
        self._score()
        self.pending = self.pending or Keyframe.POINTED

    def _make_gpu_relevance(self) -> GpuRelevance | None:
        carried = {*CARRIED, *EMBEDDING_LAYERS}.intersection(self.config.channel_names)
        if carried or self.update.comparison is None or not 1 <= self._cell <= MOST_CELL:
            return None
        balance = find_balance("VideoStream", self.config.tokens.balance, "none")
        return GpuRelevance(self.texture, self._cell, balance, self.update.comparison)

    def _compare(self, image: Tensor) -> Changes:
        pending, due = self.pending, self._due()
        self.pending = Keyframe.FAILURE  # in case the comparison fails
        try:
            # What a rate pays for is known only once the host has seen what changed.
            found = self.update.compare(image, self.noise, keyframe=bool(due), sample=self.rate is None)
        except NotAnImage:
            self.pending = pending
            raise
        self.pending = pending
        return found

    def _due(self, found: Changes | None = None) -> Keyframe:
        """Why the next frame must be a keyframe, whatever it shows; or why this one must, with what was found in it."""
        if self.pending:
            return self.pending
        if found is not None and found.cut:
            return Keyframe.CUT
        if found is not None and self.incomplete and self._affordable(Keyframe.CUT) >= self.budget:
            return Keyframe.REFILL
        return Keyframe.INTERVAL if self.since_keyframe + 1 >= self.config.keyframe else Keyframe.NONE

    def _affordable(self, why: Keyframe) -> int:
        """Tokens that the rate pays for now."""
        return self.budget if self.rate is None else self.rate.affordable(cut=why.urgent)

    def _process(self, image: Tensor, found: Changes, why: Keyframe) -> tuple[Tensor | None, Tensor]:
        """Update everything; returns the slots that tokens had, if they were chosen again, and what was sampled."""
        if why.urgent and self._affordable(why) < max(1, self.budget // LEAST_CUT):
            self.patches.invalidate()  # another scene, and the rate does not pay for showing it
            return None, torch.zeros_like(self.patches.stale)
        origin = None
        if why:
            origin = self._keyframe(image, found, why)
        elif found.count:
            origin = self._follow(image, found)
        else:
            self.update.stand_still()
        sampled = self._sample(found.mask, origin, why)
        if found.count and not why and (fresh := self._fresh_relevance()) is not None:
            self.carry.relevance = fresh.compute_if_due(found.share) or self.carry.relevance
        self.noise = self._next_noise(found.noise, why)
        self.pending = Keyframe.NONE
        return origin, sampled

    def _keyframe(self, image: Tensor, found: Changes, why: Keyframe) -> Tensor | None:
        """Compute everything from this frame."""
        tokens = min(self.budget, self._affordable(why)) if why.urgent else self.budget
        self.update.replace(as_floats(image), found if why.goes_on else None)
        if self.gpu_relevance is not None:
            self.gpu_relevance.reset()
        if why is Keyframe.CUT:
            self.carry.forget()
        elif why is not Keyframe.FAILURE and self.carry.relevance is not None and self._fresh_relevance() is None:
            self.carry.move(self._grey(), found.mask)
        if self.channels is not None and why is not Keyframe.CUT:
            self.channels.write(self.carry.channels(embeddings=False))
        if why.urgent or self.changed or found.count:  # a still scene has the same relevance
            self._score()
        self.changed = False
        if self.channels is not None:
            self.carry.read_channels(self.channels)
        most = None if why.urgent or self.rate is None else self._affordable(why)
        self.incomplete = tokens < self.budget
        origin = self._choose(tokens, most, force=True, free=why in (Keyframe.FIRST, Keyframe.CUT))
        if why is Keyframe.FIRST:  # make the graphs that the next frames will need; after `point` they wait
            assert self.carry.relevance is not None
            if (fresh := self._fresh_relevance()) is not None:
                fresh.graph.prepare()
            self.choice.prepare(self.texture, self.carry.relevance)
        return origin

    def _follow(self, image: Tensor, found: Changes) -> Tensor | None:
        """The usual frame: some of it changed."""
        self.update.apply(image, found)
        self.changed = True
        assert self.choice.allocation is not None
        if (fresh := self._fresh_relevance()) is not None:
            if self.channels is not None:
                self.channels.refresh(found)
            now = fresh.value()
            if now is None or not self.choice.lost(now):
                return None
            self.carry.relevance = fresh.compute()
        else:
            self._carry_relevance(found)
        most = None if self.rate is None else self._affordable(Keyframe.NONE)
        return self._choose(int(self.choice.allocation.valid.sum()) if self.incomplete else self.budget, most)

    def _carry_relevance(self, found: Changes) -> None:
        """Move relevance and carried channels to the held frame; update the other channels."""
        known = self.carry.relevance
        assert known is not None
        needed = known.asked or self.channels is not None or self.carry.box is not None
        if needed or found.share <= MOSTLY_CHANGED:
            self.carry.move(self._grey(), found.mask)
            if self.carry.needs_refresh():
                fresh = find_relevance(self.texture, patch=self.config.tokens.patch, relevance="none")
                self.carry.refresh_untrusted(fresh)
        else:
            self._score()
        if self.channels is not None:
            rebuilt = self.channels.refresh(found)
            self.channels.write(self.carry.channels(embeddings=not rebuilt))
            self.carry.read_channels(self.channels)

    def _fresh_relevance(self) -> GpuRelevance | None:
        """What computes relevance on the GPU, if it depends on the image alone and nothing is carried."""
        known = self.carry.relevance
        if known is None or known.asked or self.config.asks or self.carry.box is not None or self.carry.feedback:
            return None
        return self.gpu_relevance

    def _score(self) -> None:
        """Compute the relevance of the held frame: with the question, with the box, or from the image alone."""
        if (fresh := self._fresh_relevance()) is not None:
            known = fresh.compute()
        else:
            layers = None if self.channels is None else self.channels.layers
            known = self.config.score(self.texture, layers, self.carry.box_map())
            if known.grid != (grid := tuple(self.texture.levels[self._cell].shape[2:])):
                raise ValueError(f"VideoStream: relevance must be on a grid of {grid}, got {known.grid}")
        self.carry.restart(known, self._grey())

    def _grey(self) -> Tensor:
        """(1, 1, h, w): brightness of the held frame's cells."""
        return luma(self.texture.levels[self._cell])

    def _choose(self, tokens: int, most: int | None, *, force: bool = False, free: bool = False) -> Tensor | None:
        assert self.carry.relevance is not None
        origin = self.choice.choose(self.texture, self.carry.relevance, tokens, most, force=force, free=free)
        assert self.choice.scale is not None and self.choice.allocation is not None
        self.carry.add_fixations(self.choice.scale)
        self.update.hold(self.choice.allocation)  # tells the GPU where the tokens are
        if self.gpu_relevance is not None:
            self.gpu_relevance.hold(self.choice.scale)
        return origin

    def _sample(self, mask: Tensor, origin: Tensor | None, why: Keyframe) -> Tensor:
        """Update the patches; returns which were sampled, (K,)."""
        allocation, comparison = self.choice.allocation, self.update.comparison
        assert allocation is not None
        if origin is None and not why and comparison is not None and self.update.samples_patches:
            return comparison.read_sampled.clone()
        if origin is None:
            origin = torch.arange(self.budget, device=self.device)
        else:
            self.patches.rearrange(origin)
        changed = None if why and self.rate is None else reads_marked(allocation, mask, self.config.tile)
        return self.patches.refresh(self.texture, allocation, changed, origin < 0, cut=why.urgent)

    def _next_noise(self, noise: Noise, why: Keyframe) -> Noise:
        """The noise estimate after this frame; one that has little to do with the last frame teaches nothing."""
        if not why:
            return noise
        known = noise if why in (Keyframe.INTERVAL, Keyframe.REFILL) else self.noise
        tiles = torch.zeros_like(known.tiles) if why is Keyframe.CUT else known.tiles
        return Noise(known.sensor, tiles, torch.zeros_like(noise.last), known.frames)

    def _result(self, found: Changes, why: Keyframe, chosen: bool, sampled: Tensor) -> Step:
        allocation, known = self.choice.allocation, self.carry.relevance
        assert allocation is not None and known is not None
        if self._given is None or self._given.allocation is not allocation:
            self._given, self._used = Patches(self.patches.pixels, allocation), allocation.valid[0]
        reuse = Reuse(found.marked.size, found.count, why, chosen, sampled, self.patches.stale, self._used)
        layers = None if self.channels is None else self.channels.layers
        return Step(self.frames - 1, self.seconds, self.texture, layers, known, self._given, reuse)


def make_update(config: StreamConfig, size: tuple[int, int], pixels: Tensor) -> FrameUpdate:
    """The strategy for a device: kernels where they run, PyTorch operations elsewhere.

    pixels: (1, K, 3, P, P), the patches, on the device
    """
    tile, names, models = config.tile, config.channel_names, config.models
    by_kernels = kernels_can_compare(pixels, size, tile)
    update = GpuFrameUpdate(size, tile, pixels) if by_kernels else FrameUpdate(size, tile, pixels.device)
    if names:
        kind = GpuChannels if by_kernels and channel_extents(size)[0] == size else StreamChannels
        update.channels = kind(names, update.texture, tile, **models)
    return update
