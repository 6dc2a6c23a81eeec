"""Which moments of a video are worth showing: a few are kept while its frames pass by, whatever its length.

A moment is one or two frames that a model reads together. Its worth is what it shows that the moments before it did not
(change against the last one, novelty against all of them), times the stretch of the video that it stands for. When too
many are kept, the one of least worth leaves. So a still scene is one moment, the last change is always seen, and where
everything moves the moments are spread over time. Only kept frames are in memory, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count

MEAN_BLOCK = 8  # pixels: side of the squares whose means are compared; sensor noise averages out there
MOMENT_TILE = 32  # pixels: side of the squares that change or stay
CHANGED_MEAN = 9.0  # of 255: a larger difference of two means is a change
MOST_MOMENTS = 64
MOST_BYTES = 1 << 28  # of kept frames
FEWEST_MOMENTS = 4  # moments that are kept however large they are


@dataclass(frozen=True, eq=False)
class Moment:
    """frames: (T, 3, H, W) bytes; time: of the first, in seconds; means: (T, 3, h, w), of blocks of 8 × 8 pixels"""

    frames: Tensor
    time: float
    means: Tensor

    @staticmethod
    def of(frames: list[Tensor], time: float, together: int) -> Moment:
        """The last frame is repeated if there are too few."""
        whole = torch.stack([*frames, *[frames[-1]] * (together - len(frames))])
        return Moment(whole, time, moment_means(whole))


def moment_means(frames: Tensor) -> Tensor:
    """(T, 3, H, W) bytes → (T, 3, h, w) means, 0 to 255."""
    means: Tensor = functional.avg_pool2d(frames.float(), MEAN_BLOCK, ceil_mode=True)
    return means


def changed_tiles(means: Tensor, shown: Tensor) -> Tensor:
    """(rows, columns): the tiles in which a moment (T, 3, h, w) differs from what was shown (3, h, w)."""
    different = (means - shown).abs().amax((0, 1))[None, None]
    return functional.max_pool2d(different, MOMENT_TILE // MEAN_BLOCK, ceil_mode=True)[0, 0] > CHANGED_MEAN


class KeptMoments:
    """Moments of frames that are given one by one.

    together: frames per moment, as the model reads them
    most:     moments that are kept; fewer if their frames are large
    """

    def __init__(self, *, together: int = 2, most: int = MOST_MOMENTS) -> None:
        self.together = check_count("clip", "together", together, 1)
        self.most = check_count("clip", "most", most, 1)
        self.kept: list[Moment] = []
        self.seconds = 0.0  # time of the last frame
        self._open: list[Tensor] = []
        self._begun = 0.0

    def add(self, frame: Tensor, time: float) -> None:
        """frame: (3, H, W) bytes; time: in seconds"""
        if not self._open:
            self._begun = time
        self._open.append(frame)
        self.seconds = time
        if len(self._open) == self.together:
            self._close()

    def moments(self) -> list[Moment]:
        """Those that are worth showing, in order; at least one if any frame was given."""
        if self._open:
            self._close()
        return list(self.kept)

    def _close(self) -> None:
        new = Moment.of(self._open, self._begun, self.together)
        self._open = []
        if self.kept and not changed_tiles(new.means, self.kept[-1].means[-1]).any():
            return
        self.kept.append(new)
        limit = max(FEWEST_MOMENTS, MOST_BYTES // new.frames.numel())
        self.kept = thinned(self.kept, min(self.most, limit))


def thinned(moments: list[Moment], most: int) -> list[Moment]:
    """At most so many: the moment of least worth leaves, again and again. The first and the last stay."""
    kept = list(moments)
    while len(kept) > max(1, most):
        if len(kept) == 2:
            return kept[-1:]
        worth = [_worth(kept, index) for index in range(1, len(kept) - 1)]
        kept.pop(1 + min(range(len(worth)), key=worth.__getitem__))
    return kept


def _worth(kept: list[Moment], index: int) -> float:
    here = kept[index].means
    shares = [float(changed_tiles(here, one.means[-1]).float().mean()) for one in kept[:index]]
    return (shares[-1] + min(shares)) * (kept[index + 1].time - kept[index - 1].time)


def keep_moments(frames: Iterable[tuple[Tensor, float]], *, together: int = 2) -> KeptMoments:
    """Read a video to its end: (3, H, W) bytes and seconds each."""
    found = KeptMoments(together=together)
    for image, time in frames:
        found.add(image, time)
    return found
