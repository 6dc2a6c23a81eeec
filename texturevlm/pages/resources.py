"""One budget over everything that a question may be about: images, documents, frames of clips.

All of them become units of one kind: an image, a page, a frame. One rule (`allocate/share.py`) decides which
units are worth a closer look, and hands out the tokens, whatever they belong to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from texturevlm.defaults import FINE_PAGES
from texturevlm.pages.choose import PageTokens, choose_pages
from texturevlm.pages.document import ImagePages, Pages, is_document, open_pages
from texturevlm.pdfium import MOST_PAGES
from texturevlm.placement import TokenConfig
from texturevlm.types import Texture


class BoundPages:
    """The units of several sources, one after the other."""

    def __init__(self, parts: Sequence[Pages]) -> None:
        self.parts = list(parts)
        self.ends = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def place(self, index: int) -> tuple[int, int]:
        """The source of unit `index`, both from 0, and its number in it, from 1."""
        source = bisect_right(self.ends, index)
        return source, 1 + index - (self.ends[source - 1] if source else 0)

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        source, number = self.place(index)
        return self.parts[source].texture(number - 1, pixels, device)


@dataclass(frozen=True, eq=False)
class UnitTokens:
    """The tokens of one unit, or of the sheet of units that are shown small.

    units:  (source, number) of each, the source from 0, the page or frame in it from 1; one, or all on the sheet
    tokens: what `choose_pages` gives for it; its numbers count through all sources
    """

    units: tuple[tuple[int, int], ...]
    tokens: PageTokens


class SharedBudget:
    """Spends one budget on images, documents and clips together.

    budget:     tokens in all
    fine_pages: units that are opened and get tokens of their own, at most; 1 to 20
    how, options: as in `choose_pages`
    """

    def __init__(
        self,
        budget: int | None = None,
        fine_pages: int = FINE_PAGES,
        *,
        how: TokenConfig | None = None,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        self.how = replace(TokenConfig() if how is None else how, **options).given(budget=budget)
        self.fine_pages, self.device = fine_pages, device

    def spend(self, sources: Sequence[Any], question: str = "") -> list[UnitTokens]:
        """The units that get tokens, in the order of the sources; last, if the budget allows, a sheet of the others.

        sources: each an image (what `Texture.open` takes), a PDF (a path, or bytes), or a list of images: the pages of
                 a scan, or the frames of a clip
        """
        name = "SharedBudget"
        if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence) or not sources:
            raise TypeError(f"{name}: sources must be a list of at least one source, got {sources!r:.60}")
        parts = [
            open_pages(one, function=name) if isinstance(one, (list, tuple)) or is_document(one) else ImagePages([one])
            for one in sources
        ]
        bound = BoundPages(parts)
        if len(bound) > MOST_PAGES:
            raise ValueError(f"{name}: sources must have at most {MOST_PAGES} units together, got {len(bound)}")
        for part in parts:
            if isinstance(part, ImagePages):
                part.check_files()
        found = choose_pages(bound, question, how=self.how, fine_pages=self.fine_pages, device=self.device)
        return [UnitTokens(tuple(bound.place(number - 1) for number in page.numbers), page) for page in found]


HierarchicalResourceAllocator = SharedBudget  # its first name
