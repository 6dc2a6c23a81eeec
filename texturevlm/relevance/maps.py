"""Maps over the cells of an image, which tokens are allocated by: how relevant a cell is, and how fine its content.

Balance makes a Relevance: it weighs what a question asks for against what the image shows by itself. Balances have
names: `even`, the default, and `learned`, one for each scorer that could be trained. `texturevlm train
examples/train/balance.toml` learns them and `texturevlm ship-balance` writes the file in the package. Learned are
explore and focus, from where the answers of train pages stand. particularise stays 1: it says how fine the content is,
and where an answer stands does not tell that.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from texturevlm.check import check_choice, check_floating, check_shapes, check_size
from texturevlm.ops import level_extents
from texturevlm.relevance.named import declares, reads_question

MOST_CELLS_ALONG = 288  # along the longer side


class ImageMaps(NamedTuple):
    """Maps of an image that do not depend on a question, on one grid of cells.

    salience: (B, h, w), how likely a question is about each cell; sums to 1 per image
    legible_scale, ink, photograph: as in Relevance
    """

    salience: Tensor
    legible_scale: Tensor
    ink: Tensor
    photograph: Tensor | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.ink.shape[1], self.ink.shape[2]


@dataclass(frozen=True, eq=False)
class Relevance:
    """Maps over one grid of cells, which is a mip level of the image.

    mass:          (B, h, w), the probability that what matters is in this cell; at least 0, sums to 1 per image
    legible_scale: (B, h, w), the sample width in pixels at which half of the content is legible
    ink:           (B, h, w), whether there is any content; elsewhere the image is blank
    size:          (height, width) of the image
    scorer:        the name of the scorer that `mass` came from; "none" if it is salience alone
    photograph:    (B,), whether an image is a photograph rather than a page; None: not known
    """

    mass: Tensor
    legible_scale: Tensor
    ink: Tensor
    size: tuple[int, int]
    scorer: str = "none"
    photograph: Tensor | None = None

    def __post_init__(self) -> None:
        patterns = {"mass": "B h w", "legible_scale": "B h w", "ink": "B h w", "photograph": "B"}
        given = {name: getattr(self, name) for name in patterns if name != "photograph" or self.photograph is not None}
        check_shapes("Relevance", **{name: (tensor, patterns[name]) for name, tensor in given.items()})
        check_floating("Relevance", mass=self.mass, legible_scale=self.legible_scale)
        for name in ("ink", "photograph"):
            if name in given and given[name].dtype != torch.bool:
                raise TypeError(f"Relevance: {name} must be torch.bool, got {given[name].dtype}")
        object.__setattr__(self, "size", check_size("Relevance", self.size))
        if self.photograph is not None:
            object.__setattr__(self, "photograph", self.photograph.contiguous())  # kernels read it by its address

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.mass.shape[1], self.mass.shape[2]

    @property
    def asked(self) -> bool:
        """Whether something was asked: whether `mass` is more than what the image itself suggests."""
        return reads_question(self.scorer)

    @property
    def pointed(self) -> bool:
        """Whether `mass` points at places, also on a photograph, instead of grading all of it."""
        return not declares(self.scorer, "grades")


@dataclass(frozen=True)
class Balance:
    """How far to trust the question and how far the image: numbers, or tensors without dimensions that can be trained.

    explore:       the share of the probability that goes to salience although the question points elsewhere
    focus:         above 1 the likeliest cells gain on the others, below 1 they lose
    particularise: above 1 content counts as finer than it looks, so that fewer cells are sampled more finely
    """

    explore: float | Tensor = 0.1
    focus: float | Tensor = 1.0
    particularise: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.explore, Tensor) and not 0 <= self.explore <= 1:  # a tensor's value would wait for a GPU
            raise ValueError(f"Balance: explore must be between 0 and 1, got {self.explore!r}")
        for name, value in (("focus", self.focus), ("particularise", self.particularise)):
            if not isinstance(value, Tensor) and not 0 < value < math.inf:
                raise ValueError(f"Balance: {name} must be above 0, got {value!r}")

    def weigh(self, query: Tensor | None, maps: ImageMaps, size: tuple[int, int], scorer: str = "none") -> Relevance:
        """One Relevance from the question's query and the image's maps.

        query:  (B, h, w), at least 0; its sum, at most 1, is the scorer's confidence; None without a question
        size, scorer: as in Relevance
        """
        if query is None:
            unchanged = isinstance(self.focus, float) and self.focus == 1
            mass = maps.salience if unchanged else normalised(maps.salience**self.focus)
        else:
            confidence = query.sum((1, 2), keepdim=True).clamp(max=1) * (1 - self.explore)
            mass = normalised(query**self.focus) * confidence + maps.salience * (1 - confidence)
        unchanged = isinstance(self.particularise, float) and self.particularise == 1
        legible_scale = maps.legible_scale if unchanged else maps.legible_scale / self.particularise
        return Relevance(mass, legible_scale, maps.ink, size, scorer, maps.photograph)


def normalised(worth: Tensor) -> Tensor:
    """Scale (B, h, w) to sum to 1 per image; an image of zeros becomes uniform."""
    total = worth.sum((1, 2), keepdim=True)
    even = 1 / worth[0].numel()
    return (worth / total.clamp(min=1e-30)).where(total > 0, even)


def cell_level(size: tuple[int, int], patch: int) -> int:
    """The mip level whose texels are the cells: few enough to search, and never larger than half a token."""
    extents = level_extents(*size)
    few = next(level for level, extent in enumerate(extents) if max(extent) <= MOST_CELLS_ALONG)
    return min(few, max(0, patch.bit_length() - 2))


BALANCES = ("even", "learned")
_SHIPPED = "balances.json"


def find_balance(function: str, balance: str | Balance, scorer: str) -> Balance:
    """The balance that a name stands for, for a scorer; a Balance is returned as it is.

    A scorer that no balance was learned for has the even one.
    """
    if isinstance(balance, Balance):
        return balance
    if not isinstance(balance, str):
        wanted = f"a Balance or one of {', '.join(BALANCES)}"
        raise TypeError(f"{function}: balance must be {wanted}, got {type(balance).__name__}")
    check_choice(function, "balance", balance, BALANCES)
    return load_balances().get(scorer, Balance()) if balance == "learned" else Balance()


@lru_cache(maxsize=4)
def load_balances(path: str | None = None) -> dict[str, Balance]:
    """scorer → its balance: those of the package, or of another file of `texturevlm ship-balance`."""
    source = Path(path) if path is not None else files("texturevlm.relevance").joinpath(_SHIPPED)
    try:
        table = json.loads(source.read_text(encoding="utf-8"))
        return {scorer: Balance(**values) for scorer, values in table.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"balance: {source} must be as ship-balance wrote it: {error}") from error


STEEPNESS = 5.5
UNIT = 1 << 30  # the value of a whole image, of which a cell's is a whole number
Map = TypeVar("Map", Tensor, np.ndarray)


def legibility(legible_scale: Map, scale: Any) -> Map:
    """The share of content that is legible, from 1 to 0, when a sample is `scale` pixels wide.

    legible_scale: the sample width in pixels at which half of the content is legible, of any shape
    scale:         a number, or a shape that broadcasts with it
    """
    share: Map = 1 / (1 + (scale / legible_scale) ** STEEPNESS)
    return share
