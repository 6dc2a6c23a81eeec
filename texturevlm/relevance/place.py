"""Phrases of place: "at the bottom", "top left", "the bottom line", "in the background" say where to look.

They become a prior map, which any scorer's relevance is multiplied by. Single words are not enough: "how much is left"
is no place.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

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
