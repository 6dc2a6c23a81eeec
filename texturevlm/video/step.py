"""The result of one frame: a `Step`, with a `Reuse` that says what was kept and what was computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Patches, Texture
from texturevlm.vlm import Tokens


@dataclass(frozen=True, eq=False)
class Reuse:
    """What one frame cost. Counts are read when they are asked for, so that nothing waits for them.

    tiles, changed: the number of tiles, and of those that changed
    keyframe:  why everything was computed again: first, cut, interval, refill (the full budget after a cut, once the
               rate pays for it), pointed, failure; "" if it was not
    chosen:    whether tokens were chosen again
    refreshed: (K,), which patches were sampled; on the host where a GPU's record says so, see `sampled`
    stale:     (K,), which patches still show an older frame, because the rate did not pay for them
    used:      (K,), which slots hold a token
    """

    tiles: int
    changed: int
    keyframe: str
    chosen: bool
    refreshed: Tensor
    stale: Tensor
    used: Tensor

    @cached_property
    def sampled(self) -> Tensor:
        """(K,), which patches were sampled (and encoded), on the device of the patches."""
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
    tokens:      with a model
    reuse:       what was kept and what was computed
    """

    index: int
    time: float
    texture: Texture
    channels: Texture | None
    relevance: Relevance
    patches: Patches
    tokens: Tokens | None
    reuse: Reuse

    @property
    def allocation(self) -> Allocation:
        return self.patches.allocation

    def held(self) -> Step:
        """A copy whose picture the next frame does not overwrite: texture and allocation, to be drawn later."""
        texture = replace(self.texture, levels=tuple(level.clone() for level in self.texture.levels), resident=None)
        return replace(self, texture=texture, channels=None, tokens=None)
