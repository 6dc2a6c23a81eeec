"""The usual frame of a stream on a GPU: compared, taken over, channels and patches refreshed, and nothing waited for.

Every kernel gets the marks of the tiles that changed and leaves the rest as it is, so the same launches serve a still
frame, one that moves a little, and one that moves everywhere. All buffers stay where they are, and where the frame lies
is told by a note, so all of it is one CUDA graph. The host then reads one record.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from texturevlm.channels.fused import LayersInPlace
from texturevlm.channels.structure import COARSER
from texturevlm.channels.text_kernel import TEXT_LEVELS
from texturevlm.cuda.launch import MAX_LEVELS
from texturevlm.ops.mip_kernel import update_marked_cuda
from texturevlm.ops.patches_kernel import refresh_patches_cuda
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation
from texturevlm.video.canvas import Canvas
from texturevlm.video.captured import Branch, Captured
from texturevlm.video.change import Changes, Noise
from texturevlm.video.glance import WORTH, Glance
from texturevlm.video.layers import Layers
from texturevlm.video.watch import Watch

UNSEEN = 0.25  # of the tiles changed since the last look at what matters: time for another,
LATEST = 8  # or after so many frames in which something did


class Steady:
    """The kernels' way through a frame, for one stream.

    pixels:  (1, K, 3, P, P), refreshed in place
    glance:  looks at the image behind a frame; None: somebody else knows what is relevant
    """

    def __init__(self, canvas: Canvas, layers: Layers | None, pixels: Tensor) -> None:
        self.canvas, self.layers, self.pixels = canvas, layers, pixels
        self.device, count = pixels.device, pixels.shape[1]
        self.watch = Watch(canvas.size, canvas.tile, self.device, tokens=count)
        centre, ddx, ddy = (torch.zeros(1, count, 2, device=self.device) for _ in range(3))
        self._where = (centre, ddx, ddy)
        self._valid = torch.zeros(1, count, dtype=torch.bool, device=self.device)
        self._near, self._coarse, self._listing = (Branch(self.device) for _ in range(3))
        self._whole, self._rest = Captured(self._follow, self.device), Captured(self._advance, self.device)
        self.glance: Glance | None = None
        self._glanced = False  # whether the record of the next frame says what the held tokens are worth
        self._unseen, self._since = 0.0, 0  # tiles that changed since the last glance, as a share; frames since then

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none."""
        return self._whole.reason

    def hold(self, allocation: Allocation, scale: Tensor) -> None:
        """The footprints from here on, and what they deliver to each cell, (1, h, w)."""
        for buffer, column in zip(self._where, (allocation.centre, allocation.ddx, allocation.ddy)):
            buffer.copy_(column)
        self._valid.copy_(allocation.valid)
        self._glanced = False  # what was found was about others
        if self.glance is not None:
            self.glance.scale.copy_(scale)

    def let_go(self, *, soon: bool = False) -> None:
        """What is known of the frame before is of no use any more: another one is held, and it stands still.

        soon: look at what matters behind the next frame that changes
        """
        self.watch.forget_motion()
        self._glanced = False
        self._unseen, self._since = 0.0, LATEST if soon else 0

    def compare(self, frame: Tensor, noise: Noise, *, take: bool) -> None:
        """Find what changed; take: it may be taken over (`advance`)."""
        if take:
            self._prepare(self._rest, frame, noise)
        self.watch.tell(frame, noise, take=take)
        self.watch.look(self.canvas.levels[0])
        self.watch.report()

    def advance(self) -> None:
        """Take over what changed, and refresh all that it acts on but the patches."""
        self._rest()

    def follow(self, frame: Tensor, noise: Noise) -> None:
        """Compare, take over what changed, and refresh all that it acts on."""
        self._prepare(self._whole, frame, noise)
        self.watch.tell(frame, noise, take=True)
        self._whole()

    def wait(self) -> None:
        """For all that was started, until the host has its record."""
        self.watch.wait()

    def changes(self) -> Changes:
        """What was found. Raises ValueError for a frame that is no image."""
        return self.watch.changes()

    @property
    def sampled(self) -> Tensor:
        """(K,), on the device: which patches the last frame wrote."""
        return self.watch.found.more

    def look_ahead(self, changed: float) -> Relevance | None:
        """Start to find out, behind this frame, what it says by itself and what the held tokens are worth by that.

        changed: share of the tiles; not before enough of them did since the last look does it look again
        """
        assert self.glance is not None
        self._unseen, self._since = self._unseen + changed, self._since + 1
        if self._unseen < UNSEEN and self._since < LATEST:
            return None
        return self.look_now()

    def look_now(self) -> Relevance:
        """The same, whatever has changed."""
        assert self.glance is not None
        self._glanced, self._unseen, self._since = True, 0.0, 0
        return self.glance.look()

    def worth(self) -> tuple[float, float] | None:
        """Of the held tokens, as it was found behind a frame before; None if nobody looked since they are held."""
        value, level = self.watch.words[WORTH].tolist()
        return (value, level) if self._glanced else None

    def _prepare(self, work: Captured[bool], frame: Tensor, noise: Noise) -> None:
        """Make a graph while nothing is marked, so that it does not matter how often the work is run for that."""
        if not work.prepared:
            self.watch.tell(frame, noise, take=False)
            self.watch.look(self.canvas.levels[0])
            self.watch.report()  # which waits for all that `look` has started
            work.prepare()
            self.watch.wait()

    def _follow(self) -> bool:
        self.watch.look(self.canvas.levels[0])
        self._take_over(self._sample)
        self.watch.report()
        return True

    def _advance(self) -> bool:
        self._take_over(lambda: None)
        return True

    def _take_over(self, sample: Callable[[], None]) -> None:
        """What is held, canvas, channels and patches, where tiles are marked."""
        if self.layers is not None and self.layers.parts is not None:
            return self._take_over_layers(self.layers, self.layers.parts, sample)
        self.watch.take(self.canvas.levels[0], None)
        self._shrink()
        sample()

    def _take_over_layers(self, layers: Layers, parts: LayersInPlace, sample: Callable[[], None]) -> None:
        """The same with channels, which do not wait for one another: text takes longest, and needs no coarse level."""
        found, marks = self.watch.found, self.watch.found.marks
        tiles = self._listing.run(lambda: parts.text_tiles(marks))
        self.watch.take(self.canvas.levels[0], layers.motion)
        self._near.run(lambda: parts.near(marks))
        made = self._shrink(until=TEXT_LEVELS - 1)

        def coarse() -> int:
            last = self._shrink(since=made, until=COARSER) if made < COARSER else made
            parts.coarse(marks)
            return last

        def shrink() -> None:
            self._coarse.join()
            layers.refresh_mips(marks, found.either)

        def rest() -> None:
            self._shrink(since=known)
            sample()

        known = self._coarse.run(coarse)
        self._near.run(shrink)
        self._coarse.run(rest)
        self._listing.join()
        parts.text(tiles)
        layers.refresh_text_mips(marks)
        self._near.join()
        self._coarse.join()

    def _shrink(self, *, since: int = 0, until: int = MAX_LEVELS) -> int:
        """The canvas's levels after `since`, where tiles are marked, at least up to `until`; returns the last made."""
        levels, marks = self.canvas.levels, self.watch.found.marks
        return update_marked_cuda(levels, ("mean",) * 3, marks, since=since, until=until, early=since == 0)

    def _sample(self) -> None:
        marks = self.watch.found.marks
        refresh_patches_cuda(self.pixels, self.canvas.levels, *self._where, self._valid, self.sampled, marks)
