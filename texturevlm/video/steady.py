"""The usual frame of a stream on a GPU: compared, taken over, channels and patches refreshed, and nothing waited for.

Every kernel gets the marks of the tiles that changed and leaves the rest as it is, so the same launches serve a still
frame, one that moves a little, and one that moves everywhere. All buffers stay where they are; what follows the
comparison (the only part that reads the frame, wherever that lies) is one CUDA graph. The host then reads one record.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.ops.cuda.mip import update_marked_cuda
from texturevlm.ops.cuda.patches import refresh_patches_cuda
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation
from texturevlm.video.canvas import Canvas
from texturevlm.video.captured import Branch, Captured
from texturevlm.video.change import Changes, Noise
from texturevlm.video.glance import WORTH, Glance
from texturevlm.video.layers import Layers
from texturevlm.video.watch import Watch


class Steady:
    """The kernels' way through a frame, for one stream.

    pixels:  (1, K, 3, P, P), refreshed in place
    sampled: (K,), which patches were, by the last frame
    glance:  looks at the image behind a frame; None: somebody else knows what is relevant
    """

    def __init__(self, canvas: Canvas, layers: Layers | None, pixels: Tensor) -> None:
        self.canvas, self.layers, self.pixels = canvas, layers, pixels
        self.device, count = pixels.device, pixels.shape[1]
        self.watch = Watch(canvas.size, canvas.tile, self.device)
        self.sampled = torch.zeros(count, dtype=torch.bool, device=self.device)
        centre, ddx, ddy = (torch.zeros(1, count, 2, device=self.device) for _ in range(3))
        self._where = (centre, ddx, ddy)
        self._valid = torch.zeros(1, count, dtype=torch.bool, device=self.device)
        self._near, self._coarse, self._patches = (Branch(self.device) for _ in range(3))
        self._rest = Captured(self._refresh, self.device)
        self.glance: Glance | None = None
        self._glanced = False  # whether the record of the next frame says what the held tokens are worth

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none."""
        return self._rest.reason

    def hold(self, allocation: Allocation, scale: Tensor) -> None:
        """The footprints from here on, and what they deliver to each cell, (1, h, w)."""
        for buffer, column in zip(self._where, (allocation.centre, allocation.ddx, allocation.ddy)):
            buffer.copy_(column)
        self._valid.copy_(allocation.valid)
        if self.glance is not None:
            self.glance.scale.copy_(scale)

    def let_go(self) -> None:
        """What is known of the frame before is of no use any more: another one is held, and it stands still."""
        self.watch.forget_motion()
        self._glanced = False
        if self.glance is not None:
            self.glance.behind = True

    def look(self, frame: Tensor, noise: Noise, *, take: bool) -> None:
        """Compare; take: what changed may be taken over (`advance`)."""
        self.watch.look(frame, self.canvas.levels[0], noise, take=take)

    def advance(self, frame: Tensor) -> None:
        """Take over what changed, and refresh all that it acts on."""
        motion = None if self.layers is None else self.layers.motion
        self.watch.take(frame, self.canvas.levels[0], motion)
        self._rest()

    def wait(self) -> None:
        """For all that was started, until the host has its record."""
        self.watch.wait()

    def changes(self) -> Changes:
        """What was found. Raises ValueError for a frame that is no image."""
        return self.watch.changes()

    def look_ahead(self) -> Relevance:
        """Start to find out, behind this frame, what it says by itself and what the held tokens are worth by that."""
        assert self.glance is not None
        self._glanced = True
        return self.glance.look()

    def worth(self) -> tuple[float, float] | None:
        """Of the held tokens, as it was found behind the last frame; None if nobody looked."""
        value, level = self.watch.words[WORTH].tolist()
        return (value, level) if self._glanced else None

    def _refresh(self) -> bool:
        """Canvas, channels and patches, where tiles are marked."""
        marks, layers = self.watch.found.marks, self.layers
        if layers is not None and layers.parts is not None:
            parts = layers.parts
            self._near.run(lambda: parts.near(marks))
            update_marked_cuda(self.canvas.levels, ("mean",) * 3, marks)
            self._coarse.run(lambda: parts.coarse(marks))
            self._patches.run(self._sample)
            parts.text(marks)
            for branch in (self._near, self._coarse, self._patches):
                branch.join()
            layers.refresh_mips(marks, self.watch.found.either)
        else:
            update_marked_cuda(self.canvas.levels, ("mean",) * 3, marks)
            self._sample()
        return True

    def _sample(self) -> None:
        marks = self.watch.found.marks
        refresh_patches_cuda(self.pixels, self.canvas.levels, *self._where, self._valid, self.sampled, marks)
