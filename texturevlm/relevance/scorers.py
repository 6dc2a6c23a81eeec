"""Scorers: where in an image the answer to a question is expected. The protocol, the scorers, and `auto`.

To add one, write a class like `Scorer` that can be made without arguments. It is used as an object, or by its name: a
line in SCORERS (`named.py`), or an entry point "texturevlm.scorers" of another package.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import EMBEDDING_LAYERS, DenseEncoder, Projection, embed
from texturevlm.frame import Frame
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.named import EMBEDDING_PREFIX, SCORERS, check_relevance, embedding_parts
from texturevlm.relevance.words import question_text
from texturevlm.scout import Question, Scout, Spots, encode, load_scout
from texturevlm.text import terms
from texturevlm.types import Texture

SHARPNESS = 10.0  # of the softmax over cosines


class Scorer(Protocol):
    """Makes relevance from a question.

    name:        what Relevance.scorer says
    description: for pictures: "relevance, by ..."
    capturable:  whether `prepare` and `score` run on a GPU alone, with an encoded question if they read one, so that a
                 CUDA graph can capture them
    upright:     for a scorer that holds maps of the images: a method that takes the number of an image and its
                 Frame, and returns the scorer of its upright picture
    prepare_with: for a scorer that reads channels: `prepare` with a Texture of some that are known already
    """

    name: str
    description: str
    capturable: bool

    def prepare(self, texture: Texture) -> Any:
        """Compute what does not depend on the question, once per texture; `score` gets the result as `prepared`."""

    def score(self, prepared: Any, question: str | Question, maps: ImageMaps) -> tuple[Tensor | None, ImageMaps]:
        """Find where the answer is expected.

        returns the query (B, h, w) on the grid of `maps`: at least 0, its sum (at most 1) is the confidence; None if
                nothing was asked. And the maps, refined if the scorer knows more than they say
        """


class SalienceScorer:
    """No question: relevance is salience alone."""

    name, description, capturable = "none", "salience alone", True
    reads_question, grades = False, True

    def prepare(self, texture: Texture) -> None:
        """Salience needs nothing but the maps."""

    def score(self, prepared: None, question: str | Question, maps: ImageMaps) -> tuple[None, ImageMaps]:
        """No query, whatever the question."""
        return None, maps


class AttentionScorer:
    """A map that the caller has, such as a model's cross-attention, is the relevance; the question is not read.

    attention: (B, h', w'), at least 0, of any extent
    """

    name, description, capturable, by_hand = "attention", "the model's attention", False, True

    def __init__(self, attention: Tensor | None = None) -> None:
        if attention is None:
            raise ValueError("choose_tokens: relevance 'attention' needs a map: relevance=tv.SCORERS['attention'](map)")
        self.attention = attention

    def upright(self, number: int, frame: Frame) -> AttentionScorer:
        """The scorer of one image's upright picture."""
        number = number if len(self.attention) > 1 else 0  # one map for all
        return AttentionScorer(frame.maps(self.attention[number : number + 1]))

    def prepare(self, texture: Texture) -> None:
        """Check that there is one map per image."""
        shape = tuple(self.attention.shape)
        if len(shape) != 3 or shape[0] != texture.batch:
            raise ValueError(f"AttentionScorer: attention must be ({texture.batch}, h, w), got {shape}")

    def score(self, prepared: None, question: str | Question, maps: ImageMaps) -> tuple[Tensor, ImageMaps]:
        """The map on the grid of cells, summing to 1 (to 0 where it is zero)."""
        wide = self.attention.to(maps.ink.device).float()[:, None]
        resized = functional.interpolate(wide, maps.grid, mode="bilinear", antialias=True)[:, 0].clamp(min=0)
        return resized / resized.sum((1, 2), keepdim=True).clamp(min=1e-30), maps


class EmbeddingScorer:
    """Cosines of image features (CLIP or SigLIP) with the question's embedding.

    encoder: a DenseEncoder; projection: what `texturevlm fit-pca` saved for it
    """

    name, description, capturable, by_hand = "embedding", "embeddings", False, True

    def __init__(self, encoder: DenseEncoder | None = None, projection: Projection | None = None) -> None:
        if encoder is None or projection is None:
            raise ValueError(
                "choose_tokens: relevance 'embedding' needs models: write embedding:MODEL,PCA, or give "
                "relevance=tv.SCORERS['embedding'](encoder, projection), a DenseEncoder and a Projection"
            )
        self.encoder, self.projection = encoder, projection

    def prepare(self, texture: Texture) -> tuple[Tensor, str]:
        """Features (B, 16, h', w') and how to resize them: the texture's embedding channels, else the encoder's."""
        if set(EMBEDDING_LAYERS) <= set(texture.names):
            layers = [texture.names.index(name) for name in EMBEDDING_LAYERS]
            return texture.levels[0][:, layers].float(), "area"
        return embed(texture.levels[0][:, :3], self.encoder, self.projection), "bilinear"

    def prepare_with(self, texture: Texture, channels: Texture) -> tuple[Tensor, str]:
        """Embedding channels that are known already, as a stream carries them, else the encoder's features."""
        return self.prepare(channels if set(EMBEDDING_LAYERS) <= set(channels.names) else texture)

    def score(
        self, prepared: tuple[Tensor, str], question: str | Question, maps: ImageMaps
    ) -> tuple[Tensor | None, ImageMaps]:
        """A softmax over the cells' cosines, summing to 1."""
        text = question_text(self.name, question)
        if not text.strip():
            return None, maps
        features, mode = prepared
        resized = functional.interpolate(features.to(maps.ink.device), maps.grid, mode=mode)
        cosine = self.projection.similarity(resized, self.encoder.text(text).to(resized.device))
        return (SHARPNESS * cosine).flatten(1).softmax(1).view_as(cosine), maps


class ScoutScorer:
    """The scout's probability that the answer is at a spot, spread over the cells that are not blank."""

    name, description, capturable, calibrated = "scout", "the scout", True, True

    def __init__(self, scout: Scout | None = None) -> None:
        """scout: another one than the package's, on the device of the images."""
        self.own = scout

    def scout(self, device: torch.device) -> Scout:
        return self.own or load_scout(device=device)

    def prepare(self, texture: Texture) -> Spots:
        """The scout's reading of the images."""
        return self.scout(texture.device).read(texture, for_where=True)

    def score(self, prepared: Spots, question: str | Question, maps: ImageMaps) -> tuple[Tensor | None, ImageMaps]:
        """question: an encoded one (`scout.encode`) always counts as asked: reading it would wait for the GPU."""
        if isinstance(question, str) and not terms(question):
            return None, maps
        chance = self.scout(prepared.text.device).where(prepared, question)
        return on_cells(chance, maps.ink), maps


class PriorScorer(ScoutScorer):
    """What is usually asked about a page, by the scout; the question is not read. Photographs keep their salience."""

    name, description, calibrated = "prior", "what is usually asked", False
    reads_question, grades, pages_only = False, True, True

    def score(self, prepared: Spots, question: str | Question, maps: ImageMaps) -> tuple[Tensor, ImageMaps]:
        """The scout's answer to an empty question, which it was trained with."""
        device = prepared.text.device
        query = on_cells(self.scout(device).where(prepared, nothing_asked(device)), maps.ink)
        return (query if maps.photograph is None else query * ~maps.photograph[:, None, None]), maps


def find_scorer(function: str, relevance: str | Scorer, question: str | Question = "") -> Scorer:
    """The scorer that `relevance` stands for.

    function:  for error messages
    relevance: a name of SCORERS, embedding:MODEL,PCA (named.py), a scorer, or `auto`: the scout with a question, prior
               without one
    """
    if not isinstance(question, (str, Question)):
        raise TypeError(f"{function}: question must be text, got {type(question).__name__}")
    check_relevance(function, relevance, SCORERS.built_in)
    if not isinstance(relevance, str):
        return relevance
    if relevance.startswith(EMBEDDING_PREFIX):
        model, pca = embedding_parts(function, relevance)
        return _embedding(model, str(pca))
    if relevance == "auto":
        relevance = "scout" if isinstance(question, Question) or terms(question) else "prior"
    made: Scorer = check_relevance(function, _made(relevance), argument=f"relevance {relevance!r}")
    return made


@lru_cache(maxsize=2)  # models are large
def _embedding(model: str, pca: str) -> EmbeddingScorer:
    projection = Projection.load(pca)  # first: it is small
    return EmbeddingScorer(DenseEncoder.load(model), projection)


@lru_cache(maxsize=None)
def _made(name: str) -> Scorer:
    """Scorers keep no state, so one of each is enough. A plug-in may name a class, or a scorer."""
    named: Any = SCORERS[name]
    made: Scorer = named() if callable(named) else named
    return made


@lru_cache(maxsize=None)  # never dropped: graphs read it at every replay
def nothing_asked(device: torch.device) -> Question:
    """The empty question, on a device: a graph cannot copy it there."""
    return Question(*(part.to(device) for part in encode([""])))


def on_cells(chance: Tensor, ink: Tensor) -> Tensor:
    """The chances of spots (B, rows, columns) on the grid of `ink` (B, h, w); their sum stays."""
    rows, columns = chance.shape[1:]
    grid = ink.shape[1:]
    wide = chance[:, None]
    if grid[0] < rows or grid[1] < columns:  # a long page: several spots per cell, none is lost
        wide = functional.interpolate(wide, (min(rows, grid[0]), min(columns, grid[1])), mode="area")
    # A spot's chance is shared by its cells; a blank cell takes nothing.
    wide = functional.interpolate(wide, grid, mode="nearest-exact")[:, 0] * ink
    return wide * (chance.sum((1, 2)) / wide.sum((1, 2)).clamp(min=1e-30))[:, None, None]
