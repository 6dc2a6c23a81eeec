"""Pages of which is kept what does not depend on a question, so that the next question costs only the question."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from texturevlm.pages.document import Pages
from texturevlm.pages.sheet import thumbnail
from texturevlm.pages.upright import UprightPages
from texturevlm.relevance import Prepared
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.text_regions import find_regions
from texturevlm.scout import load_scout
from texturevlm.scout.spotter import PIXELS, Spots
from texturevlm.turned import TextRegion
from texturevlm.types import Texture

MOST_SIGHTS = 200  # pages of which is kept what the scout read, about 2 MB each; the others are read again
MOST_READ = 50  # pages of which is kept what is read of them when they are opened finely, about 3 MB each
MOST_FINE = 5  # pages that were opened finely last, about 70 MB each

Sight = tuple[Spots, Tensor]  # what the scout read of a page, and the page in the samples of one token


def sight_of(pages: Pages, index: int, patch: int, device: torch.device) -> Sight:
    """A coarse look at a page, whatever is asked. patch: the side of the small picture"""
    if isinstance(pages, KeptPages):
        return pages.sight(index, patch, device)
    texture = pages.texture(index, PIXELS, device).mipmapped()
    known = pages.read(index) if isinstance(pages, UprightPages) else None
    spots = load_scout(device=device).read(texture) if known is None else known
    return spots, thumbnail(texture, patch)


class KeptPages:
    """The pages of a document; `choose_pages` takes them in its place. A question may be asked while pages are read."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._sights: dict[tuple[int, int, torch.device], Sight] = {}
        self._fine: OrderedDict[tuple[int, int, int, torch.device], Prepared] = OrderedDict()
        self._read: dict[tuple[int, int, int, torch.device], tuple[ImageMaps, dict[int, Any]]] = {}
        self._regions: dict[int, list[TextRegion]] = {}
        self._turned: tuple[float | str, KeptPages] | None = None

    def __len__(self) -> int:
        return len(self.pages)

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """As that of the document."""
        return self.pages.texture(index, pixels, device)

    def upright(self, turn: float | str) -> KeptPages:
        """The pages turned upright, those of the last angle; turn: as for `UprightPages`"""
        if turn == 0:
            return self
        if self._turned is None or self._turned[0] != turn:
            self._turned = turn, KeptPages(UprightPages(self.pages, turn))
        return self._turned[1]

    def sight(self, index: int, patch: int, device: torch.device) -> Sight:
        """A coarse look at a page, taken once."""
        key = index, patch, device
        found = self._sights.get(key)
        if found is None:
            found = sight_of(self.pages, index, patch, device)
            if len(self._sights) < MOST_SIGHTS:
                self._sights[key] = found
        return found

    def fine(self, index: int, pixels: int, patch: int, device: torch.device) -> Prepared:
        """A page in at most about so many pixels, with what scorers read of it."""
        key = index, pixels, patch, device
        found = self._fine.pop(key, None)
        if found is None:
            found = Prepared(self.texture(index, pixels, device).mipmapped(), patch=patch)
            if key in self._read:
                found.maps, found.readings = self._read[key]
            elif len(self._read) < MOST_READ:
                self._read[key] = found.maps, found.readings
        self._fine[key] = found
        while len(self._fine) > MOST_FINE:
            self._fine.popitem(last=False)
        return found

    def regions(self, index: int, texture: Texture) -> list[TextRegion]:
        """Where text of the page lies otherwise than upright, found once. texture: of the page, opened finely"""
        if index not in self._regions:
            self._regions[index] = find_regions(texture)
        return self._regions[index]

    def held(self) -> list[Any]:
        """All that is kept: textures, tensors, what scorers read."""
        found: list[Any] = [*self._sights.values(), *(one.texture for one in list(self._fine.values()))]
        for maps, readings in list(self._read.values()):
            found += [tuple(maps), *(reading for _, reading in list(readings.values()))]
        return found if self._turned is None else [*found, *self._turned[1].held()]
