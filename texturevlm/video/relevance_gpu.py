"""Relevance without a question on a GPU, and the value of the held tokens by it, as one CUDA graph behind a frame.

Computing it again is cheaper than finding the flow. It runs after the patches of a frame, once enough has changed since
the last time, and the host reads the value with the next frame: a choice of tokens that has lost its value is found one
frame late. At a keyframe it runs at once.
"""

from __future__ import annotations

from torch import Tensor

from texturevlm.relevance import Balance, Relevance
from texturevlm.relevance.information import MOST_CELL
from texturevlm.relevance.salience import maps_by_kernels
from texturevlm.types import Texture
from texturevlm.video.change_gpu import GpuComparison
from texturevlm.video.choice import TokenValue, token_value
from texturevlm.video.update_gpu import CapturedWork

VALUE = slice(4, 6)  # where the value stands among the record's words
MOST_CHANGED = 0.25  # share of tiles changed since relevance was computed: it is computed again,
MOST_FRAMES = 8  # or after this many frames with changes


def kernels_can_score(texture: Texture, cell: int) -> bool:
    """Whether the kernels support cells of this mip level."""
    return 1 <= cell <= MOST_CELL and cell < len(texture.levels)


class GpuRelevance:
    """The relevance of the held frame without a question.

    texture:    of the held frame; cell: the mip level whose texels are the cells
    comparison: its record receives the value
    scale:      (1, h, w), pixels per sample that the held tokens deliver to each cell
    """

    def __init__(self, texture: Texture, cell: int, balance: Balance, comparison: GpuComparison) -> None:
        self.texture, self.cell, self.balance, self.comparison = texture, cell, balance, comparison
        cells, finer = texture.levels[cell], texture.levels[1]
        self.scale = cells.new_ones((1, *cells.shape[2:]))
        self._layers = finer.new_zeros((1, 2, *finer.shape[2:]))
        self._graph = CapturedWork(self._compute, finer.device)
        self._valued = False  # whether the next record holds the value of the tokens that are held now
        self._changed, self._frames = 0.0, 0  # share of tiles changed, and frames with changes, since the last time

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none."""
        return self._graph.reason

    def prepare(self) -> None:
        """Make the graph, if there is none yet."""
        if not self._graph.prepared:
            self._graph.prepare()

    def hold(self, scale: Tensor) -> None:
        """Other tokens are held, which deliver `scale`: the last value was that of others."""
        self._valued = False
        self.scale.copy_(scale)

    def reset(self, *, soon: bool = False) -> None:
        """Another frame is held. soon: compute relevance after the next frame that changes."""
        self._valued = False
        self._changed, self._frames = 0.0, MOST_FRAMES if soon else 0

    def compute_if_due(self, changed: float) -> Relevance | None:
        """Start to compute relevance and value, if enough has changed; `changed`: the share of tiles in this frame."""
        self._changed, self._frames = self._changed + changed, self._frames + 1
        if self._changed < MOST_CHANGED and self._frames < MOST_FRAMES:
            return None
        return self.compute()

    def compute(self) -> Relevance:
        """Start to compute relevance and value. The next call overwrites the result."""
        self._valued, self._changed, self._frames = True, 0.0, 0
        return self._graph()

    def value(self) -> TokenValue | None:
        """The value of the held tokens, as computed behind an earlier frame; None if that was not done."""
        value, level = self.comparison.words[VALUE].tolist()
        return (value, level) if self._valued else None

    def _compute(self) -> Relevance:
        maps = maps_by_kernels(self.texture.levels, self.cell, self._layers)
        relevance = self.balance.weigh(None, maps, self.texture.size)
        self.comparison.found.words[VALUE].copy_(token_value(relevance, self.scale))
        return relevance
