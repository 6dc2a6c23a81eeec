"""The options of a stream: one frozen value, checked once; and what it names, the scorer and the allocator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import EMBEDDING_LAYERS, DenseEncoder, Projection, resolve
from texturevlm.check import check_choice, check_count, check_share
from texturevlm.placement import Allocator, TokenConfig
from texturevlm.placement.captured import no_capture_because
from texturevlm.relevance import (
    SCORERS,
    AttentionScorer,
    Balance,
    ChannelScorer,
    EmbeddingScorer,
    Prepared,
    Relevance,
    Scorer,
    check_relevance,
    find_scorer,
)
from texturevlm.types import Allocation, Texture
from texturevlm.video.carry import FLOWS, FindVectors
from texturevlm.video.change import BLOCK

USUAL = TokenConfig(balance=Balance())


@dataclass(frozen=True, eq=False)
class StreamConfig:
    """The options of `VideoStream` and of `texturevlm video`.

    tokens:    how those of a frame are placed, upright; its fields are given by their own names. As relevance, `auto`
               is none without a question, and a function of a Texture may return a Relevance on the grid of
               `find_relevance`. A scorer that reads channels (`channels`, `embedding`) gets those of the stream. A
               VideoStream has `finer` and `patch` of its model
    query:     a question; asked at every keyframe, its answer carried in between
    channels:  a preset or names of channels to keep beside the colours
    encoder, projection: models of the embedding channels and of the embedding scorer
    tile:      side of a tile in pixels
    keyframe:  frames between keyframes; carried relevance drifts within a second where much moves
    hold:      the share of their value that tokens may lose before they are chosen again
    flow:      lucas_kanade or none; or a function like those of `texturevlm.video.carry.FLOWS`
    rate:      tokens per second that are sampled; by default every frame may spend its budget
    fps:       frames per second, for frames without a time
    limit:     tokens of the video that a model keeps: two moments at least
    refresh:   tokens at the beginning of a moment that are computed anew with what changed; "full": all that is kept
    interval:  seconds after which what changes begins a new moment; before, it replaces what the model saw at its
               place; math.inf: the model keeps only what is there now
    feedback:  share of the relevance that goes where the model's attention went when it was asked last; 0: none
    """

    tokens: TokenConfig = USUAL
    query: str = ""
    channels: str | Sequence[str] = ()
    encoder: DenseEncoder | None = None
    projection: Projection | None = None
    tile: int = 32
    keyframe: int = 30
    hold: float = 0.05
    flow: str | FindVectors = "lucas_kanade"
    rate: float | None = None
    fps: float = 25.0
    device: torch.device | str = "cpu"
    limit: int = 4096
    refresh: int | str = 32
    interval: float = 0.5
    feedback: float = 0.0

    @classmethod
    def of(cls, budget: int, allocator: str | Allocator, given: Mapping[str, Any]) -> Self:
        """The keyword arguments of a stream; those that are not fields are options of the allocator."""
        own, how, options = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for name, value in given.items():
            (own if name in _FIELDS else how if name in _TOKEN_FIELDS else options)[name] = value
        return cls(replace(USUAL, budget=budget, allocator=allocator, options=options, **how), **own)

    def __post_init__(self) -> None:
        how = self.tokens
        for holder, name, least in ((how, "budget", 1), (how, "patch", 1), (self, "tile", 4), (self, "keyframe", 1)):
            check_count("VideoStream", name, getattr(holder, name), least)
        if self.refresh != "full":
            check_count("VideoStream", "refresh", self.refresh, 0)  # type: ignore[arg-type]
        if self.feedback != 0:
            check_share("VideoStream", "feedback", self.feedback)
        for name, good, wanted in (
            ("tile", self.tile % BLOCK == 0, f"a multiple of {BLOCK}"),
            ("hold", 0 <= self.hold < 1, "at least 0 and below 1"),
            ("fps", self.fps > 0, "above 0"),
            ("interval", 0 < self.interval <= math.inf, "above 0"),
        ):
            if not good:
                raise ValueError(f"VideoStream: {name} must be {wanted}, got {getattr(self, name)!r}")
        if isinstance(self.flow, str):
            check_choice("VideoStream", "flow", self.flow, FLOWS)
        if isinstance(how.relevance, str):
            check_relevance("VideoStream", how.relevance, SCORERS.built_in)
        own = getattr(ALLOCATORS.find("VideoStream", how.allocator), "options", how.options)
        if unknown := [name for name in how.options if name not in own]:
            raise TypeError(
                f"VideoStream: {unknown[0]!r} is neither a setting nor an option of {how.allocator} "
                f"({', '.join(own) or 'it has none'})"
            )

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
        return self.tokens.relevance != "none" and not (self.tokens.relevance == "auto" and not self.query.strip())

    def capturable(self, size: tuple[int, int]) -> bool:
        """Whether the allocator only launches kernels for frames of a size, so that a CUDA graph can capture it."""
        how = self.tokens
        return no_capture_because(how.allocator, size, how.patch, how.budget, how.options) is None

    def score(self, texture: Texture, channels: Texture | None, box_map: Tensor | None) -> Relevance:
        """Relevance with the question, or with a map of the box that the user pointed at.

        channels: those that the stream keeps of this frame
        """
        if callable(self.tokens.relevance):
            found: Relevance = self.tokens.relevance(texture)
            return found
        known = Prepared(texture, patch=self.tokens.patch)
        scorer = find_scorer("VideoStream", self._scorer(), self.query) if box_map is None else AttentionScorer(box_map)
        if channels is not None and hasattr(scorer, "prepare_with"):
            known.keep(scorer, scorer.prepare_with(texture, channels))
        return known.find(self.query, scorer=scorer, balance=self.tokens.weighing(self.tokens.budget))

    def _scorer(self) -> str | Scorer:
        """The scorer or its name, with the models that were given."""
        if not self.asks:
            return "none"  # what is usually asked of pages is nothing for scenes
        relevance = self.tokens.relevance
        if relevance == "embedding" or (relevance == "auto" and self.encoder):
            return EmbeddingScorer(**self.models)
        if relevance == "channels" and set(EMBEDDING_LAYERS) <= set(self.channel_names):
            return ChannelScorer(**self.models)
        return relevance

    def allocate(self, texture: Texture, relevance: Relevance, tokens: int) -> Allocation:
        """So many tokens by the allocator."""
        how = self.tokens
        return how.chooser(texture, relevance, budget=tokens, patch=how.patch, **how.options)


_FIELDS = {one.name for one in fields(StreamConfig)} - {"tokens"}
_TOKEN_FIELDS = {"relevance", "balance", "finer", "patch"}
