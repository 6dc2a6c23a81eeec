"""Phrases of place: "at the bottom", "top left", "the bottom line", "in the background" say where to look.

They become a prior map, which any scorer's relevance is multiplied by. Single words are not enough: "how much is left"
is no place.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda import can_capture
from texturevlm.defaults import PATCH, RELEVANCE
from texturevlm.relevance.information import cell_maps
from texturevlm.relevance.maps import Balance, ImageMaps, Relevance, cell_level, find_balance, normalised
from texturevlm.relevance.named import declares, reads_question
from texturevlm.relevance.scorers import Scorer, find_scorer
from texturevlm.scout import Question
from texturevlm.types import Texture, check_texture

OUTSIDE = 0.1  # of the relevance that stays far from the place
SOFT = 0.15  # of the image: the width of the border between inside and outside
LINE = 0.08  # height of a line over that of everything printed, with its surroundings
_THIRD = 0.36  # of the image: "at the top" is a bit more than a third

_PART = r"(?:side|half|part|edge|end|corner|hand|third|column|panel)"
_VERTICAL = {"top": "top", "upper": "top", "bottom": "bottom", "lower": "bottom"}
_IN_THE = r"(?:at|in|on|to|from|near|along|towards?) the (?:very |far )?(?:extreme )?"
_CORNER = re.compile(r"\b(top|upper|bottom|lower)[ -]?(?:hand )?(left|right|middle|cent(?:er|re))\b")
_SIDE = re.compile(
    rf"\b(?:{_IN_THE}(top|bottom|left|right)\b|(top|upper|bottom|lower|left|right)(?:most)?[ -](?:hand[ -])?{_PART}\b)"
)
_MIDDLE = re.compile(rf"\b{_IN_THE}(?:middle|cent(?:er|re))\b(?! east)")
_LINE = re.compile(r"\b(top|first|bottom|last) (?:printed |text )?line\b")
_DEPTH = re.compile(r"\bin the (background|foreground)\b")
Extent = Callable[[Tensor, Tensor], Tensor]
# x and y are 0 to 1; each gives the distance from the place, 0 inside.
_EXTENTS: dict[str, Extent] = {
    "top": lambda x, y: y - _THIRD,
    "bottom": lambda x, y: 1 - _THIRD - y,
    "left": lambda x, y: x - _THIRD,
    "right": lambda x, y: 1 - _THIRD - x,
    "middle": lambda x, y: torch.maximum((x - 0.5).abs(), (y - 0.5).abs()) - _THIRD / 2,
    "centre": lambda x, y: (x - 0.5).abs() - _THIRD / 2,  # "top centre"
    "foreground": lambda x, y: 0.5 - y,
    "background": lambda x, y: 0.5 - torch.maximum((2 * x - 1).abs(), 1 - y),
}


def places_in(question: str) -> tuple[str, ...]:
    """The places that a question names: names of _EXTENTS, or "first line" and "last line"."""
    text = question.lower()
    found: list[str] = []
    for match in _CORNER.finditer(text):
        across = match[2] if match[2] in ("left", "right") else "centre"
        found += [_VERTICAL[match[1]], across]
    for match in _SIDE.finditer(text):
        name = match[1] or match[2]
        found.append(_VERTICAL.get(name, name))
    if _MIDDLE.search(text):
        found.append("middle")
    for match in _LINE.finditer(text):
        found.append("first line" if match[1] in ("top", "first") else "last line")
    found += [match[1] for match in _DEPTH.finditer(text)]
    opposite = {"top", "bottom"} <= set(found) or {"left", "right"} <= set(found)
    return () if opposite else tuple(dict.fromkeys(found))  # "from the top to the bottom" is everywhere


def place_prior(question: str, ink: Tensor) -> Tensor | None:
    """How much each cell counts for where a question says to look; None if it does not say.

    ink:    (B, h, w), where the image is not blank: lines are counted from there
    returns (B, h, w), OUTSIDE to 1
    """
    places = places_in(question)
    if not places:
        return None
    rows, columns = ink.shape[1:]
    y, x = ((torch.arange(extent, device=ink.device) + 0.5) / extent for extent in (rows, columns))
    prior = torch.ones(ink.shape, device=ink.device)
    for name in places:
        if name.endswith("line"):
            outside = _from_line(name, ink, y)
        else:
            outside = _EXTENTS[name](x[None, :], y[:, None]).expand(rows, columns)
        prior = prior * (1 - outside / SOFT).clamp(0, 1)
    return OUTSIDE + (1 - OUTSIDE) * prior


def _from_line(name: str, ink: Tensor, y: Tensor) -> Tensor:
    """(B, h, w): the distance from the first or last printed line."""
    printed = ink.any(2)  # (B, h)
    low = torch.where(printed, y, 1.0).amin(1, keepdim=True)
    high = torch.where(printed, y, 0.0).amax(1, keepdim=True)
    depth = LINE * (high - low).clamp(min=0)
    away = y - (low + depth) if name == "first line" else (high - depth) - y
    return away[..., None].expand(ink.shape)


BALANCE = "even"  # a name of balances.py
MOST_PARTS = 12  # of an image that is read by pages: 4 MB each


class Prepared:
    """Images that questions are asked about.

    texture:  one image, or a batch of one size
    patch:    the side of a token in samples, which the size of the cells depends on
    scorer:   what `find` uses: a scorer or its name
    readings: scorers with what their `prepare` made of the images; by identity, since a scorer need not have a hash
    """

    def __init__(self, texture: Texture, *, patch: int = PATCH, scorer: str | Scorer = RELEVANCE) -> None:
        check_count("prepare", "patch", patch, 1)
        self.texture, self.patch, self.scorer = texture, patch, scorer
        self.readings: dict[int, tuple[Scorer, Any]] = {}
        self._parts: OrderedDict[Any, Prepared] = OrderedDict()

    @cached_property
    def whole(self) -> Prepared:
        """The levels as an image of their own; of an image that is read by pages, the coarse ones."""
        if self.texture.pages is None:
            return self
        levels = Texture(self.texture.levels, self.texture.names, reduce=self.texture.reduce)
        return Prepared(levels, patch=self.patch, scorer=self.scorer)

    def part(self, name: Any, cut: Callable[[], Texture]) -> Prepared:
        """A part of an image that is read by pages, of which the last few are kept; cut: makes its texture."""
        if name in self._parts:
            self._parts.move_to_end(name)
        else:
            self._parts[name] = Prepared(cut(), patch=self.patch, scorer=self.scorer)
            if len(self._parts) > MOST_PARTS:
                self._parts.popitem(last=False)
        return self._parts[name]

    @cached_property
    def maps(self) -> ImageMaps:
        """The maps that do not depend on a question; of an image that is read by pages, those of its coarse levels."""
        paged = self.texture.pages is not None
        return self.whole.maps if paged else image_maps(self.texture, patch=self.patch)

    def reading(self, scorer: Scorer) -> Any:
        """The result of the scorer's `prepare`, computed once."""
        if self.texture.pages is not None:
            return self.whole.reading(scorer)
        if id(scorer) not in self.readings:
            self.keep(scorer, scorer.prepare(self.texture))
        return self.readings[id(scorer)][1]

    def keep(self, scorer: Scorer, reading: Any) -> None:
        """Use this as the result of the scorer's `prepare`."""
        self.readings[id(scorer)] = scorer, reading

    def query(self, question: str | Question, scorer: str | Scorer | None = None) -> tuple[Tensor | None, ImageMaps]:
        """Where the scorer expects the answer, before it is balanced with salience; see `Scorer.score`."""
        chosen = find_scorer("choose_tokens", self.scorer if scorer is None else scorer, question)
        if declares(chosen, "pages_only") and self._only_photographs:
            return torch.zeros_like(self.maps.salience), self.maps  # what the scorer would find, for nothing
        return chosen.score(self.reading(chosen), question, self.maps)

    def find(
        self, question: str | Question = "", *, scorer: str | Scorer | None = None, balance: str | Balance = BALANCE
    ) -> Relevance:
        """The relevance for a question; scorer: instead of the one given when this was made."""
        chosen = find_scorer("choose_tokens", self.scorer if scorer is None else scorer, question)
        balance = find_balance("choose_tokens", balance, chosen.name)
        if self.texture.pages is not None:
            from texturevlm.relevance.refine import refined_relevance  # which imports this file

            return refined_relevance(self, self.texture.pages, question, chosen, balance)
        query, maps = self.query(question, chosen)
        found = balance.weigh(query, maps, self.texture.size, "none" if query is None else chosen.name)
        if not reads_question(chosen) or not isinstance(question, str):
            return found
        place = place_prior(question, maps.ink)
        return found if place is None else replace(found, mass=normalised(found.mass * place))

    @property
    def _only_photographs(self) -> bool:
        """Whether all images are known to be photographs; what is captured does not find out, which would wait."""
        photograph = self.maps.photograph
        return photograph is not None and not can_capture(photograph.device) and bool(photograph.all())

    def moved(self, texture: Texture) -> Prepared:
        """A copy for the same images on another device; OCR's pages are kept, tensors are computed again there."""
        other = Prepared(texture, patch=self.patch, scorer=self.scorer)
        for scorer, reading in self.readings.values():
            parts = reading if isinstance(reading, tuple) else (reading,)
            if not any(isinstance(part, (Tensor, Texture)) for part in parts):
                other.keep(scorer, reading)
        return other


def prepare(texture: Texture, relevance: str | Scorer = RELEVANCE, *, patch: int = PATCH) -> Prepared:
    """Compute once what every question about these images needs; give the result to `choose_tokens` as `relevance`.

    texture:   one image, or a batch of one size
    relevance: a scorer or its name; with `auto` the images are read when the first question comes
    patch:     as given to `choose_tokens`
    """
    check_texture("prepare", texture)
    scorer: str | Scorer = relevance if relevance == "auto" else find_scorer("prepare", relevance)
    prepared = Prepared(texture, patch=patch, scorer=scorer)
    _ = prepared.maps
    if not isinstance(scorer, str):
        prepared.reading(scorer)
    return prepared


def find_relevance(
    texture: Texture,
    question: str | Question = "",
    *,
    patch: int = PATCH,
    relevance: str | Scorer | Prepared = RELEVANCE,
    balance: str | Balance = BALANCE,
) -> Relevance:
    """How much each cell of an image matters for a question; arguments as in `choose_tokens`."""
    check_texture("find_relevance", texture)
    find_balance("choose_tokens", balance, "")
    if not isinstance(relevance, Prepared):
        relevance = Prepared(texture, patch=patch, scorer=relevance)
    made = relevance.texture
    if made.levels[0] is not texture.levels[0] or relevance.patch != patch:
        raise ValueError(
            f"choose_tokens: relevance must be prepared for this texture ({texture.batch} images of {texture.size}) "
            f"and patch {patch}, got one for {made.batch} images of {made.size} and patch {relevance.patch}"
        )
    return relevance.find(question, balance=balance)


def image_maps(texture: Texture, *, patch: int = PATCH) -> ImageMaps:
    """The maps of an image that do not depend on a question, on the grid of cells for tokens of `patch` samples."""
    if texture.levels[0].shape[2:] != texture.size:
        raise ValueError(f"choose_tokens: texture must start at the image's size {texture.size}, got a coarser base")
    texture = texture.mipmapped()
    return cell_maps(texture, min(cell_level(texture.size, patch), len(texture.levels) - 1))
