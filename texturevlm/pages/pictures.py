"""The pages of a document as pictures. What no question changes is kept, so that the next one costs only the
question."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.pages.document import Pages
from texturevlm.pages.sheet import thumbnail
from texturevlm.placement import Finer, Picture, TokenConfig, prepare
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.orientation import find_turn_and_read
from texturevlm.scout import load_scout
from texturevlm.scout.spotter import PIXELS, Spots
from texturevlm.types import Texture

MOST_SIGHTS = 200  # pages of which is kept what the scout read, about 2 MB each; the others are read again
MOST_READ = 50  # pages of which is kept what is read of them when they are opened finely, about 3 MB each
MOST_FINE = 5  # pages that were opened finely last, about 70 MB each

Sight = tuple[Spots, Tensor]  # what the scout read of a page, and the page in the samples of one token
Key = tuple[Any, ...]  # page, turn, patch, whether it may be enlarged, device


class PagePictures:
    """The pages of a document; `choose_pages` takes them in its place. A question may be asked while pages are read."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._angles: dict[int, float] = {}  # that were found, by page
        self._sights: dict[Key, Sight] = {}
        self._fine: OrderedDict[Key, Picture] = OrderedDict()
        self._read: dict[Key, tuple[ImageMaps, dict[int, Any]]] = {}

    def __len__(self) -> int:
        return len(self.pages)

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """As that of the document."""
        return self.pages.texture(index, pixels, device)

    def sight(self, index: int, how: TokenConfig, device: torch.device) -> Sight:
        """A coarse look at a page, taken once."""
        key = index, how.turn, how.patch, device
        found = self._sights.get(key)
        if found is None:
            texture = self.texture(index, PIXELS, device).mipmapped()
            spots, angle = None, how.turn
            if isinstance(angle, str):
                angle, spots = find_turn_and_read(texture)
                self._angles[index] = angle
            texture = prepare(texture, replace(how, turn=angle, finer=Finer())).texture
            spots = load_scout(device=device).read(texture) if spots is None else spots
            found = spots, thumbnail(texture, how.patch)
            if len(self._sights) < MOST_SIGHTS:
                self._sights[key] = found
        return found

    def picture(self, index: int, pixels: int, how: TokenConfig, device: torch.device) -> Picture:
        """A page in at most about so many pixels, with what scorers read of it."""
        key = index, how.turn, how.patch, how.finer.most > 1, device
        found = self._fine.pop(key, None)
        if found is None:
            found = prepare(self.texture(index, pixels, device), how, angle=self._angles.get(index))
            if key in self._read:
                found.memo.maps, found.memo.readings = self._read[key]
            elif len(self._read) < MOST_READ:
                self._read[key] = found.memo.maps, found.memo.readings
        self._fine[key] = found
        while len(self._fine) > MOST_FINE:
            self._fine.popitem(last=False)
        return found

    def held(self) -> list[Any]:
        """All tensors that are kept, nested: pictures, and what scorers read."""
        found: list[Any] = [*self._sights.values(), *(picture.held for picture in list(self._fine.values()))]
        for maps, readings in list(self._read.values()):
            found += [tuple(maps), *(reading for _, reading in list(readings.values()))]
        return found
