"""Pages of a document turned upright: a scan may hold pages that lie on their side."""

from __future__ import annotations

import torch

from texturevlm.pages.document import Pages
from texturevlm.relevance.orientation import find_turn_and_read
from texturevlm.scout.spotter import Spots
from texturevlm.turned import turned_upright, upright_frame
from texturevlm.types import Texture


class UprightPages:
    """The pages of another document, upright. Angles are kept, and what the scout read of the page opened last.

    turn: the angle of the text of all pages in degrees, or auto: that of each page is found when it is first opened
    """

    def __init__(self, pages: Pages, turn: float | str) -> None:
        self.pages, self.turn = pages, turn
        self._angles: dict[int, float] = {}
        self._read: tuple[int, Spots | None] = (-1, None)

    def __len__(self) -> int:
        return len(self.pages)

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """As that of the document, turned upright."""
        given = self.pages.texture(index, pixels, device)
        if not isinstance(self.turn, str):
            self._angles[index] = self.turn
        elif index not in self._angles:
            self._angles[index], spots = find_turn_and_read(given.mipmapped())
            self._read = index, spots
        return turned_upright(given, upright_frame(given, self._angles[index]))

    def read(self, index: int) -> Spots | None:
        """What the scout read of a page when its angle was found, if it was the last one."""
        return self._read[1] if self._read[0] == index else None
