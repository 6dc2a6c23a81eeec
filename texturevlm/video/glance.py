"""Relevance without a question on a GPU, and what the held tokens are worth by it, as one CUDA graph.

It runs behind the patches of a frame, once enough has changed, and the host reads the two numbers with the next frame:
a choice of tokens that is worth too little is so found a little late. At a keyframe it runs at once.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from texturevlm.channels.channels_kernel import coarse_layers
from texturevlm.channels.saliency import SCALES as SALIENCY_LEVELS
from texturevlm.channels.structure import COARSE, COARSER
from texturevlm.channels.text_kernel import text_layer
from texturevlm.ops.mip import mipmap
from texturevlm.relevance import Balance, ImageMaps, Relevance
from texturevlm.relevance.information import NOISE_SHARE
from texturevlm.relevance.information_kernel import information_cuda
from texturevlm.relevance.photograph import PAGE
from texturevlm.relevance.salience import MOST_CELL, normalised
from texturevlm.video.canvas import Canvas
from texturevlm.video.captured import Captured
from texturevlm.video.change_kernel import Comparison

WORTH = slice(4, 6)  # of the record's words


class Glance:
    """What a stream's frame says by itself.

    found: of the stream's comparison: whose record gets the worth
    worth: of a `scale` (1, h, w) on a relevance, two numbers on the device: see `carry.worth`
    scale: (1, h, w), what the held tokens deliver to each cell
    """

    def __init__(
        self,
        canvas: Canvas,
        cell: int,
        balance: Balance,
        found: Comparison,
        worth: Callable[[Relevance, Tensor], Tensor],
    ) -> None:
        self.canvas, self.cell, self.balance = canvas, cell, balance
        self.worth, self.words = worth, found.words[WORTH]
        finer = canvas.levels[1:]
        self._layers = finer[0].new_zeros((1, 2, *finer[0].shape[2:]))
        self.scale = canvas.levels[cell].new_ones((1, *canvas.levels[cell].shape[2:]))
        device = finer[0].device
        self._captured = Captured(self._look, device)

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none."""
        return self._captured.reason

    def prepare(self) -> None:
        """Make the graph, if there is none yet."""
        if not self._captured.prepared:
            self._captured.prepare()

    def look(self) -> Relevance:
        """Relevance of the frame that is held; its worth goes into the record. The next look overwrites it."""
        return self._captured()

    def _look(self) -> Relevance:
        levels = self.canvas.levels
        finer, last = levels[1:], len(levels) - 2
        text_layer(self._layers, finer, 0)
        wanted = [finer[min(level, last)] for level in (COARSE, SALIENCY_LEVELS[-1], COARSER)]
        coarse_layers(self._layers, wanted, -1, 1)
        found = mipmap(self._layers, levels=self.cell, backend="cuda")[-1]
        worth, half, ink, scene = information_cuda(levels, self.cell, found, quiet=NOISE_SHARE, page=PAGE)
        relevance = self.balance.weigh(None, ImageMaps(normalised(worth), half, ink, scene), self.canvas.size)
        self.words.copy_(self.worth(relevance, self.scale))
        return relevance


def can_glance(canvas: Canvas, cell: int) -> bool:
    """Whether the kernels know cells of this level."""
    return 1 <= cell <= MOST_CELL and cell < len(canvas.levels)
