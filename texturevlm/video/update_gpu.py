"""`FrameUpdate` on a GPU: texture, channels and patches by one captured graph per frame; the host waits once.

Every kernel gets the marks of the changed tiles and leaves the rest as it is, so the same launches serve a still frame,
one with a little motion, and one that moves everywhere. All buffers stay at their addresses, and the address of the
frame is passed in a note that the kernels read, so that all of it is one CUDA graph. At its end the host reads one
small record. A frame that is not an image, or that begins another scene, marks nothing: the held frame stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from texturevlm.channels import CHANNELS, COARSER_LEVEL, IN_PARTS, TEXT_LEVELS, LayersInPlace
from texturevlm.cuda import MAX_LEVELS, Replay
from texturevlm.ops import MOVED, UNCHANGED, Marks, refresh_patches_cuda, update_marked_cuda, update_region
from texturevlm.relevance import Balance, Relevance, maps_by_kernels
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import Changes, Noise
from texturevlm.video.change_gpu import Branch, GpuComparison
from texturevlm.video.tokens import TokenValue, token_value
from texturevlm.video.update import CARRIED, FrameUpdate, StreamChannels

VALUE = slice(4, 6)  # where the value of the held tokens stands among the record's words
MOST_CHANGED = 0.25  # share of tiles changed since relevance was computed: it is computed again,
MOST_FRAMES = 8  # or after this many frames with changes
_Result = TypeVar("_Result")


class CapturedWork(Generic[_Result]):
    """A function without arguments, of buffers at fixed addresses: captured in a CUDA graph once, replayed after that.

    On other devices it just runs. The next call overwrites the result.
    """

    def __init__(self, work: Callable[[], _Result], device: torch.device) -> None:
        self.work, self.device = work, device
        self.replay: Replay | None = None  # made by the first call; its `reason` says why there is no graph

    def prepare(self) -> Replay:
        """Make the graph, if there is none yet. On a GPU this runs the function: do it when that is harmless."""
        if self.replay is None:
            self.replay = Replay(self._run, [], device=self.device)
        return self.replay

    def __call__(self) -> _Result:
        replay = self.replay or self.prepare()
        if replay.reason is None:
            replay.graph.replay()
        else:
            self._run()
        return self._result

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        self._result = self.work()
        return ()


class GpuChannels(StreamChannels):
    """Channels that kernels update in place around marked tiles; `motion` (H, W) is written with the changed tiles."""

    def __init__(self, names: Sequence[str], texture: Texture, tile: int, **models: Any) -> None:
        super().__init__(names, texture, tile, parts=False, **models)
        self._before = None  # the kernel that copies tiles writes motion
        self.motion = self.levels[0][0, self.names.index("motion")] if "motion" in self.names else None
        self._by_kernel = [name for name in self.names if name in IN_PARTS]
        self._reach = {name: CHANNELS[name].reach or 0 for name in self._by_kernel} | {"motion": MOVED}
        self.kernels = LayersInPlace(self.levels[0], self.names, self._by_kernel, texture.levels)
        everything = [[[0, 0, texture.size[1], texture.size[0]]]]
        self._everything = torch.tensor(everything, dtype=torch.int32, device=texture.device)

    def rebuild(self) -> None:
        self._clear_carried()
        self._build_whole([name for name in self.names if name not in CARRIED and name not in self._by_kernel])
        self._run_everywhere()
        self.moved, self.changed = [], np.zeros(0, dtype=bool)

    def refresh(self, changes: Changes) -> bool:
        return self._refresh_global(changes)  # the kernels have updated the others

    def update_mips(self, marks: Marks, either: Marks) -> None:
        """The mip levels of what the kernels wrote, except text; either: the marks of this frame and the one before."""
        reach = tuple([UNCHANGED if name == "text" else self._reach.get(name, UNCHANGED) for name in self.names])
        if set(reach) != {UNCHANGED}:
            update_marked_cuda(self.levels, self.reduce, marks, reach=reach, either=either)

    def update_text_mips(self, marks: Marks) -> None:
        """Those of the text channel, which takes longest; directly after `kernels.text`."""
        if "text" in self._reach:
            slot = self.names.index("text")
            levels = [level[:, slot : slot + 1] for level in self.levels]
            update_marked_cuda(levels, self.reduce[slot : slot + 1], marks, reach=(self._reach["text"],), early=True)

    def _run_everywhere(self) -> None:
        """All kernels on the whole frame, with what they keep from frame to frame."""
        if self._by_kernel:
            self.kernels.near(None)
            self.kernels.coarse(None)
            self.kernels.text(None)
            update_region(self.levels, self._everything, reduce=self.reduce)


class GpuFrameUpdate(FrameUpdate):
    """`FrameUpdate` by kernels. `graph` compares a frame and updates all, the patches `pixels` (1, K, 3, P, P) too."""

    comparison: GpuComparison

    def __init__(self, size: tuple[int, int], tile: int, pixels: Tensor) -> None:
        super().__init__(size, tile, pixels.device)
        self.pixels, count = pixels, pixels.shape[1]
        self.comparison = GpuComparison(self.texture.levels[0], tile, tokens=count)
        centre, ddx, ddy = (torch.zeros(1, count, 2, device=self.device) for _ in range(3))
        self._footprints = (centre, ddx, ddy)
        self._valid = torch.zeros(1, count, dtype=torch.bool, device=self.device)
        self._near, self._coarse, self._listing = (Branch(self.device) for _ in range(3))
        self.graph = CapturedWork(self._compare_and_update, self.device)
        self._update = CapturedWork(partial(self._update_marked, sample=False), self.device)
        self._pending = False  # whether marked tiles of the last comparison wait for `apply`

    def hold(self, allocation: Allocation) -> None:
        for buffer, column in zip(self._footprints, (allocation.centre, allocation.ddx, allocation.ddy)):
            buffer.copy_(column)
        self._valid.copy_(allocation.valid)

    def compare(self, frame: Tensor, noise: Noise, *, keyframe: bool = False, sample: bool = True) -> Changes:
        """Unless a keyframe is due, the update follows in the same graph; without `sample` it waits for `apply`."""
        self.samples_patches, self._pending = sample and not keyframe, not sample and not keyframe
        work = self.graph if sample else self._update
        if work.replay is None and not keyframe:  # make it while nothing is marked: how often it runs does not matter
            self._mark(frame, noise, copy=False)
            work.prepare()
            self.comparison.wait()
        if self.samples_patches:
            self.comparison.set_frame(frame, noise, copy=True)
            self.graph()
        else:
            self._mark(frame, noise, copy=self._pending)
        self.comparison.wait()
        return self.comparison.changes()

    def _mark(self, frame: Tensor, noise: Noise, *, copy: bool) -> None:
        self.comparison.set_frame(frame, noise, copy=copy)
        self.comparison.mark()
        self.comparison.report()  # which waits for all that `mark` has started

    def replace(self, frame: Tensor, found: Changes | None = None) -> None:
        super().replace(frame, found)
        if found is not None and isinstance(self.channels, GpuChannels) and self.channels.motion is not None:
            self.comparison.moved.copy_(found.mask)
        else:
            self.comparison.moved.zero_()

    def apply(self, frame: Tensor, found: Changes) -> None:
        if self._pending:
            self._update()

    def stand_still(self) -> None:
        if not isinstance(self.channels, GpuChannels):
            super().stand_still()
        elif self._pending and self.channels.motion is not None:
            self._update()

    def _compare_and_update(self) -> None:
        self.comparison.mark()
        self._update_marked(sample=True)
        self.comparison.report()

    def _update_marked(self, *, sample: bool) -> None:
        """Texture, channels and patches, where tiles are marked."""
        if isinstance(self.channels, GpuChannels):
            return self._update_with_channels(self.channels, sample)
        self.comparison.copy_marked(None)
        self._update_mips()
        if sample:
            self._sample()

    def _update_with_channels(self, channels: GpuChannels, sample: bool) -> None:
        """The same with channels, which do not wait for one another: text takes longest, and needs no coarse level."""
        marks, either = self.comparison.marks, self.comparison.either
        tiles = self._listing.run(lambda: channels.kernels.text_tiles(marks))
        self.comparison.copy_marked(channels.motion)
        self._near.run(lambda: channels.kernels.near(marks))
        made = self._update_mips(until=TEXT_LEVELS - 1)

        def coarse() -> int:
            last = self._update_mips(since=made, until=COARSER_LEVEL) if made < COARSER_LEVEL else made
            channels.kernels.coarse(marks)
            return last

        def channel_mips() -> None:
            self._coarse.join()
            channels.update_mips(marks, either)

        def rest() -> None:
            self._update_mips(since=known)
            if sample:
                self._sample()

        known = self._coarse.run(coarse)
        self._near.run(channel_mips)
        self._coarse.run(rest)
        self._listing.join()
        channels.kernels.text(tiles)
        channels.update_text_mips(marks)
        self._near.join()
        self._coarse.join()

    def _update_mips(self, *, since: int = 0, until: int = MAX_LEVELS) -> int:
        """The texture's levels after `since`, where tiles are marked, at least up to `until`; returns the last made."""
        levels, marks = self.texture.levels, self.comparison.marks
        return update_marked_cuda(levels, ("mean",) * 3, marks, since=since, until=until, early=since == 0)

    def _sample(self) -> None:
        sampled, marks = self.comparison.sampled, self.comparison.marks
        refresh_patches_cuda(self.pixels, self.texture.levels, self._footprints, self._valid, sampled, marks)


class GpuRelevance:
    """The relevance of the held frame without a question, and the value of the held tokens by it, as one CUDA graph.

    Computing it again is cheaper than finding the flow. It runs behind the patches of a frame, once enough has changed
    since the last time, and the host reads the value with the next record: a choice of tokens that has lost its value
    is found one frame late. At a keyframe it runs at once. Cells are the texels of mip level `cell`.
    """

    def __init__(self, texture: Texture, cell: int, balance: Balance, comparison: GpuComparison) -> None:
        self.texture, self.cell, self.balance, self.comparison = texture, cell, balance, comparison
        cells, finer = texture.levels[cell], texture.levels[1]
        self.scale = cells.new_ones((1, *cells.shape[2:]))  # pixels per sample that the held tokens deliver
        self._layers = finer.new_zeros((1, 2, *finer.shape[2:]))
        self.graph = CapturedWork(self._compute, finer.device)
        self._valued = False  # whether the next record holds the value of the tokens that are held now
        self._changed, self._frames = 0.0, 0  # share of tiles changed, and frames with changes, since the last time

    def hold(self, scale: Tensor) -> None:
        """Other tokens are held, which deliver `scale`: the last value was that of others."""
        self._valued = False
        self.scale.copy_(scale)

    def reset(self) -> None:
        """Another frame is held."""
        self._valued, self._changed, self._frames = False, 0.0, 0

    def compute_if_due(self, changed: float) -> Relevance | None:
        """Start to compute relevance and value, if enough has changed; `changed`: the share of tiles in this frame."""
        self._changed, self._frames = self._changed + changed, self._frames + 1
        due = self._changed >= MOST_CHANGED or self._frames >= MOST_FRAMES
        return self.compute() if due else None

    def compute(self) -> Relevance:
        """Start to compute relevance and value. The next call overwrites the result."""
        self._valued, self._changed, self._frames = True, 0.0, 0
        return self.graph()

    def value(self) -> TokenValue | None:
        """The value of the held tokens, as computed behind an earlier frame; None if that was not done."""
        value, level = self.comparison.read_words[VALUE].tolist()
        return (value, level) if self._valued else None

    def _compute(self) -> Relevance:
        maps = maps_by_kernels(self.texture.levels, self.cell, self._layers)
        relevance = self.balance.weigh(None, maps, self.texture.size)
        self.comparison.words[VALUE].copy_(token_value(relevance, self.scale))
        return relevance
