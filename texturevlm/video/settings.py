"""The settings of a stream, checked before any work begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.capture import no_capture_because
from texturevlm.channels import DenseEncoder, Projection, resolve
from texturevlm.check import check_choice, check_count, check_size
from texturevlm.pipeline import Allocator
from texturevlm.relevance import SCORERS, Balance, Relevance, Scorer
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import BLOCK
from texturevlm.video.flow import FLOW_METHODS
from texturevlm.video.reuse import KEEP, Encode


@dataclass(frozen=True, eq=False)
class StreamSettings:
    """The settings of a `VideoStream`.

    size:      (height, width) of every frame
    budget:    tokens per frame
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    query:     a question; asked at every keyframe, its answer carried in between
    relevance: a scorer or its name, as for `choose_tokens`; or a function of a Texture that returns a Relevance on the
               grid of `find_relevance`
    patch:     side of a token in samples
    channels:  a preset or names of channels to keep beside the colours
    tile:      side of a tile in pixels
    keyframe:  frames between keyframes; carried relevance drifts within a second where much moves
    hold:      the share of their value that tokens may lose before they are chosen again
    flow:      lucas_kanade, dis (OpenCV) or none
    rate:      tokens per second that are sampled; by default every frame may spend its budget
    encode:    a model: `adapt(model).encode`; keep and context as for `texturevlm.video.reuse.HeldTokens`
    fps:       frames per second, for frames without a time
    options:   those of the allocator
    """

    size: tuple[int, int]
    budget: int = 273
    allocator: str | Allocator = "auto"
    query: str = ""
    relevance: str | Scorer | Callable[[Texture], Relevance] = "auto"
    balance: Balance = field(default_factory=Balance)
    patch: int = 32
    channels: str | Sequence[str] = ()
    tile: int = 32
    keyframe: int = 30
    hold: float = 0.05
    flow: str = "lucas_kanade"
    rate: float | None = None
    encode: Encode | None = None
    keep: str = "exact"
    context: float = 1.0
    fps: float = 25.0
    device: torch.device | str = "cpu"
    encoder: DenseEncoder | None = None
    projection: Projection | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, size: tuple[int, int], budget: int, allocator: str | Allocator, given: dict[str, Any]
    ) -> StreamSettings:
        """Keyword arguments that are not fields become options of the allocator."""
        names = {one.name for one in fields(cls)} - {"options"}
        own = {name: value for name, value in given.items() if name in names}
        options = {name: value for name, value in given.items() if name not in names}
        return cls(check_size("VideoStream", size), budget, allocator, **own, options=options)

    def __post_init__(self) -> None:
        for name, least in (("budget", 1), ("patch", 1), ("tile", 4), ("keyframe", 1)):
            check_count("VideoStream", name, getattr(self, name), least)
        if self.tile % BLOCK:
            raise ValueError(f"VideoStream: tile must be a multiple of {BLOCK}, got {self.tile}")
        if isinstance(self.allocator, str):
            check_choice("VideoStream", "allocator", self.allocator, tuple(ALLOCATORS))
            known = ALLOCATORS[self.allocator].options
            if unknown := [name for name in self.options if name not in known]:
                raise TypeError(
                    f"VideoStream: {unknown[0]!r} is neither a setting nor an option of {self.allocator} "
                    f"({', '.join(known) or 'it has none'})"
                )
        if isinstance(self.relevance, str):
            check_choice("VideoStream", "relevance", self.relevance, ("auto", *SCORERS))
        check_choice("VideoStream", "flow", self.flow, FLOW_METHODS)
        check_choice("VideoStream", "keep", self.keep, KEEP)
        if not 0 <= self.hold < 1:
            raise ValueError(f"VideoStream: hold must be at least 0 and below 1, got {self.hold!r}")
        if not self.fps > 0:
            raise ValueError(f"VideoStream: fps must be above 0, got {self.fps!r}")
        if not self.context >= 0:
            raise ValueError(f"VideoStream: context must be at least 0, got {self.context!r}")
        if self.rate is not None and self.encode is not None and self.keep == "exact":
            raise ValueError("VideoStream: rate with a model needs keep='approximate': 'exact' encodes all tokens")

    @property
    def models(self) -> dict[str, Any]:
        """Models of the embedding channels and of the embedding scorer."""
        return {"encoder": self.encoder, "projection": self.projection}

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(resolve(self.channels)) if len(self.channels) else ()

    @property
    def capturable(self) -> bool:
        """Whether the allocator only launches kernels, so that a CUDA graph can capture it."""
        if not isinstance(self.allocator, str):
            return False
        return no_capture_because(self.allocator, self.size, self.patch, self.budget, dict(self.options)) is None

    def allocate(self, texture: Texture, relevance: Relevance, tokens: int) -> Allocation:
        """Run the allocator."""
        allocator = ALLOCATORS[self.allocator] if isinstance(self.allocator, str) else self.allocator
        return allocator(texture, relevance, budget=tokens, patch=self.patch, **self.options)
