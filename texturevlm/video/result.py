"""What a stream gives for one frame."""

from __future__ import annotations

from dataclasses import dataclass

from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Patches, Texture
from texturevlm.video.reuse import Reuse
from texturevlm.vlm import Tokens


@dataclass(frozen=True, eq=False)
class Step:
    """What one frame gave. All of it but the counts is the stream's own, and is overwritten by the next frame.

    index, time: of the frame, counted from 0; seconds
    texture:     red, green and blue of what is held
    channels:    the other layers, if any are kept
    patches:     (1, K, 3, P, P) with the allocation
    tokens:      with a model attached
    reuse:       what was kept and what was paid for
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
