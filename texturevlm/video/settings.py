"""The settings of a stream, checked before any work begins; and what they name: the scorer and the allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import DenseEncoder, Projection, resolve
from texturevlm.check import check_choice, check_count, check_size
from texturevlm.placement import Allocator
from texturevlm.placement.captured import no_capture_because
from texturevlm.relevance import SCORERS, Balance, Relevance, Scorer, check_relevance, find_relevance
from texturevlm.relevance.scorers import AttentionScorer, EmbeddingScorer
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import BLOCK
from texturevlm.video.flow import FLOW_METHODS
from texturevlm.video.reuse import KEEP, Encode


@dataclass(frozen=True, eq=False)
class StreamSettings:
    """The settings of a `TokenStream`.

    size:      (height, width) of every frame
    budget:    tokens per frame
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    query:     a question; asked at every keyframe, its answer carried in between
    relevance: a scorer or its name, as for `choose_tokens`, but `auto` is none without a question; or a function of a
               Texture that returns a Relevance on the grid of `find_relevance`
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
    def parse(cls, size: tuple[int, int], budget: int, allocator: str | Allocator, given: dict[str, Any]) -> Self:
        """Keyword arguments that are not fields become options of the allocator."""
        names = {one.name for one in fields(cls)} - {"options"}
        own = {name: given[name] for name in given if name in names}
        options = {name: given[name] for name in given if name not in names}
        return cls(check_size("VideoStream", size), budget, allocator, **own, options=options)

    def __post_init__(self) -> None:
        for name, least in (("budget", 1), ("patch", 1), ("tile", 4), ("keyframe", 1)):
            check_count("VideoStream", name, getattr(self, name), least)
        for name, good, wanted in (
            ("tile", self.tile % BLOCK == 0, f"a multiple of {BLOCK}"),
            ("hold", 0 <= self.hold < 1, "at least 0 and below 1"),
            ("fps", self.fps > 0, "above 0"),
            ("context", self.context >= 0, "at least 0"),
        ):
            if not good:
                raise ValueError(f"VideoStream: {name} must be {wanted}, got {getattr(self, name)!r}")
        for name, known in (("flow", FLOW_METHODS), ("keep", KEEP)):
            check_choice("VideoStream", name, getattr(self, name), known)
        if not callable(self.relevance):
            check_relevance("VideoStream", self.relevance, SCORERS.built_in)
        own = getattr(ALLOCATORS.find("VideoStream", self.allocator), "options", self.options)
        unknown = [name for name in self.options if name not in own]
        if unknown and isinstance(self.allocator, str):
            raise TypeError(
                f"VideoStream: {unknown[0]!r} is neither a setting nor an option of {self.allocator} "
                f"({', '.join(own) or 'it has none'})"
            )
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
    def asks(self) -> bool:
        """Whether relevance depends on more than the image."""
        return self.relevance != "none" and not (self.relevance == "auto" and not self.query.strip())

    @property
    def capturable(self) -> bool:
        """Whether the allocator only launches kernels, so that a CUDA graph can capture it."""
        if not isinstance(self.allocator, str):
            return False
        return no_capture_because(self.allocator, self.size, self.patch, self.budget, dict(self.options)) is None

    def score(self, texture: Texture, box_map: Tensor | None, grid: tuple[int, int]) -> Relevance:
        """Relevance with the question, or with a map of the box that the user pointed at; must lie on `grid`."""
        if callable(self.relevance):
            known = self.relevance(texture)
        else:
            found = self.relevance if self.asks else "none"  # what is usually asked of pages is nothing for scenes
            scorer: str | Scorer = found if box_map is None else AttentionScorer(box_map)
            if scorer == "embedding" or (scorer == "auto" and self.encoder and self.query.strip()):
                scorer = EmbeddingScorer(**self.models)
            known = find_relevance(texture, self.query, patch=self.patch, relevance=scorer, balance=self.balance)
        if known.grid != grid:
            raise ValueError(f"VideoStream: relevance must be on a grid of {grid}, got {known.grid}")
        return known

    def allocate(self, texture: Texture, relevance: Relevance, tokens: int) -> Allocation:
        """Run the allocator."""
        allocator = ALLOCATORS.find("VideoStream", self.allocator)
        return allocator(texture, relevance, budget=tokens, patch=self.patch, **self.options)
