"""Bringing texture, channels and patches to the next frame on a GPU, by one captured graph; the host waits once.

Every kernel gets the marks of the changed tiles and leaves the rest as it is, so the same launches serve a still frame,
one with a little motion, and one that moves everywhere. All buffers stay at their addresses, and the address of the
frame is passed in a note that the kernels read, so that all of it is one CUDA graph. At its end the host reads one
small record. A frame that is not an image, or that begins another scene, marks nothing: the held frame stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from texturevlm.channels import CHANNELS
from texturevlm.channels.fused import IN_PARTS, LayersInPlace
from texturevlm.channels.structure import COARSER_LEVEL
from texturevlm.channels.text_kernel import TEXT_LEVELS
from texturevlm.cuda.graph import Replay
from texturevlm.cuda.launch import MAX_LEVELS
from texturevlm.ops.lookup_kernel import refresh_patches_cuda
from texturevlm.ops.marks import Marks
from texturevlm.ops.mip import update_region
from texturevlm.ops.mip_kernel import MOVED, UNCHANGED, update_marked_cuda
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import Changes, Noise
from texturevlm.video.change_gpu import Branch, GpuComparison
from texturevlm.video.channels import CARRIED, StreamChannels
from texturevlm.video.tiles import Rectangle
from texturevlm.video.update import FrameUpdate

_Result = TypeVar("_Result")


class CapturedWork(Generic[_Result]):
    """A function without arguments, of buffers at fixed addresses: captured in a CUDA graph once, replayed after that.

    On other devices it just runs. The next call overwrites the result.
    """

    def __init__(self, work: Callable[[], _Result], device: torch.device) -> None:
        self.work, self.device = work, device
        self._replay: Replay | None = None
        self._result: _Result | None = None

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none; the first call makes it."""
        return None if self._replay is None else self._replay.reason

    @property
    def prepared(self) -> bool:
        return self._replay is not None

    def prepare(self) -> None:
        """Make the graph. On a GPU this runs the function a few times: do it when that is harmless."""
        self._replay = Replay(self._run, [], device=self.device)

    def __call__(self) -> _Result:
        if self._replay is None:
            self.prepare()
        assert self._replay is not None
        if self._replay.reason is None:
            self._replay.graph.replay()
        else:
            self._run()
        assert self._result is not None
        return self._result

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        self._result = self.work()
        return ()


class GpuChannels(StreamChannels):
    """Channels that kernels update in place around marked tiles.

    kernels: those of `LayersInPlace`, for the channels that have one; motion is written with the changed tiles
    """

    _keeps_previous = False

    def __init__(self, names: Sequence[str], texture: Texture, tile: int, **models: Any) -> None:
        super().__init__(names, texture, tile, parts=False, **models)
        self._by_kernel = [name for name in self.names if name in IN_PARTS]
        self.kernels = LayersInPlace(self.levels[0], self.names, self._by_kernel, texture.levels)
        self._everything = torch.tensor(
            [[[0, 0, texture.size[1], texture.size[0]]]], dtype=torch.int32, device=texture.device
        )

    @property
    def motion(self) -> Tensor | None:
        """(H, W), where the kernel that copies tiles writes how much they changed; None if motion is not kept."""
        return self.levels[0][0, self.names.index("motion")] if "motion" in self.names else None

    def rebuild(self) -> None:
        self._build_whole([name for name in self.names if name not in CARRIED and name not in self._by_kernel])
        self._run_everywhere()
        self.moved, self.changed = [], np.zeros(0, dtype=bool)

    def refresh(self, changes: Changes) -> bool:
        return self._refresh_global(changes)  # the kernels have updated the others

    def stop_motion(self) -> None:
        """Nothing to do: the kernels have written it."""

    def restore(self, finest: Tensor, changed: np.ndarray, moved: list[Rectangle]) -> None:
        super().restore(finest, changed, moved)
        self._run_everywhere()

    def update_mips(self, marks: Marks, either: Marks) -> None:
        """The mip levels of what the kernels wrote, except text; either: the marks of this frame and the one before."""
        reach = tuple([UNCHANGED if name == "text" else self._reach.get(name, UNCHANGED) for name in self.names])
        if set(reach) != {UNCHANGED}:
            update_marked_cuda(self.levels, self.reduce, marks, reach=reach, either=either)

    def update_text_mips(self, marks: Marks) -> None:
        """Those of the text channel, which takes longest; directly after `kernels.text`."""
        if "text" in self._reach:
            slot = self.names.index("text")
            one = [level[:, slot : slot + 1] for level in self.levels]
            update_marked_cuda(one, self.reduce[slot : slot + 1], marks, reach=(self._reach["text"],), early=True)

    @cached_property
    def _reach(self) -> dict[str, int]:
        """The reach of each channel that the kernels write, as `update_marked_cuda` takes it."""
        return {name: CHANNELS[name].reach or 0 for name in self._by_kernel} | {"motion": MOVED}

    def _run_everywhere(self) -> None:
        """All kernels on the whole frame, with what they keep from frame to frame."""
        if self._by_kernel:
            self.kernels.near(None)
            self.kernels.coarse(None)
            self.kernels.text(None)
            update_region(self.levels, self._everything, reduce=self.reduce)


class GpuFrameUpdate(FrameUpdate):
    """`FrameUpdate` by kernels.

    pixels: (1, K, 3, P, P), the patches, refreshed in place
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device, pixels: Tensor) -> None:
        super().__init__(size, tile, device)
        self.pixels, count = pixels, pixels.shape[1]
        self.comparison = GpuComparison(size, tile, self.device, tokens=count)
        centre, ddx, ddy = (torch.zeros(1, count, 2, device=self.device) for _ in range(3))
        self._footprints = (centre, ddx, ddy)
        self._valid = torch.zeros(1, count, dtype=torch.bool, device=self.device)
        self._near, self._coarse, self._listing = (Branch(self.device) for _ in range(3))
        self._all = CapturedWork(self._compare_and_update, self.device)
        self._update = CapturedWork(self._update_without_patches, self.device)
        self._pending = False  # whether marked tiles of the last comparison wait for `apply`

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none."""
        return self._all.reason

    def hold(self, allocation: Allocation) -> None:
        for buffer, column in zip(self._footprints, (allocation.centre, allocation.ddx, allocation.ddy)):
            buffer.copy_(column)
        self._valid.copy_(allocation.valid)

    def compare(self, frame: Tensor, noise: Noise, *, keyframe: bool = False, sample: bool = True) -> Changes:
        """As the base class. Unless a keyframe is due, all of the update follows in the same graph; without `sample`,
        the update waits for `apply`. frame: bytes are taken as well."""
        self.samples_patches = sample and not keyframe
        self._pending = not sample and not keyframe
        if self.samples_patches:
            self._prepare(self._all, frame, noise)
            self.comparison.set_frame(frame, noise, copy=True)
            self._all()
        else:
            if self._pending:
                self._prepare(self._update, frame, noise)
            self.comparison.set_frame(frame, noise, copy=self._pending)
            self.comparison.mark(self.texture.levels[0])
            self.comparison.report()
        self.comparison.wait()
        return self.comparison.changes()

    def replace(self, frame: Tensor) -> None:
        super().replace(frame)
        self.comparison.found.moved.zero_()

    def apply(self, frame: Tensor, found: Changes) -> None:
        if self._pending:
            self._update()

    def stand_still(self) -> None:
        if self._pending and isinstance(self.channels, GpuChannels) and self.channels.motion is not None:
            self._update()
        super().stand_still()

    @property
    def sampled(self) -> Tensor:
        """(K,), on the device: which patches `compare` wrote."""
        return self.comparison.found.more

    @property
    def moved(self) -> Tensor:
        return self.comparison.found.moved

    def restore(self, colour: Tensor, layers: Tensor | None, changed: Tensor, moved: Tensor) -> None:
        super().restore(colour, layers, changed, moved)
        if layers is not None:
            self.comparison.found.moved.copy_(moved)

    def _prepare(self, work: CapturedWork[bool], frame: Tensor, noise: Noise) -> None:
        """Make a graph while nothing is marked, so that it does not matter how often the work runs for that."""
        if not work.prepared:
            self.comparison.set_frame(frame, noise, copy=False)
            self.comparison.mark(self.texture.levels[0])
            self.comparison.report()  # which waits for all that `mark` has started
            work.prepare()
            self.comparison.wait()

    def _compare_and_update(self) -> bool:
        self.comparison.mark(self.texture.levels[0])
        self._update_marked(self._sample)
        self.comparison.report()
        return True

    def _update_without_patches(self) -> bool:
        self._update_marked(lambda: None)
        return True

    def _update_marked(self, sample: Callable[[], None]) -> None:
        """Texture, channels and patches, where tiles are marked."""
        if isinstance(self.channels, GpuChannels):
            return self._update_with_channels(self.channels, sample)
        self.comparison.found.copy_marked(self.texture.levels[0], None)
        self._update_mips()
        sample()

    def _update_with_channels(self, channels: GpuChannels, sample: Callable[[], None]) -> None:
        """The same with channels, which do not wait for one another: text takes longest, and needs no coarse level."""
        found, marks = self.comparison.found, self.comparison.found.marks
        tiles = self._listing.run(lambda: channels.kernels.text_tiles(marks))
        found.copy_marked(self.texture.levels[0], channels.motion)
        self._near.run(lambda: channels.kernels.near(marks))
        made = self._update_mips(until=TEXT_LEVELS - 1)

        def coarse() -> int:
            last = self._update_mips(since=made, until=COARSER_LEVEL) if made < COARSER_LEVEL else made
            channels.kernels.coarse(marks)
            return last

        def channel_mips() -> None:
            self._coarse.join()
            channels.update_mips(marks, found.either)

        def rest() -> None:
            self._update_mips(since=known)
            sample()

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
        levels, marks = self.texture.levels, self.comparison.found.marks
        return update_marked_cuda(levels, ("mean",) * 3, marks, since=since, until=until, early=since == 0)

    def _sample(self) -> None:
        marks = self.comparison.found.marks
        refresh_patches_cuda(self.pixels, self.texture.levels, self._footprints, self._valid, self.sampled, marks)
