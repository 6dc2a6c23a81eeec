"""Choose the pages of a document and their tokens for a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.search import OVERVIEW
from texturevlm.allocate.share import Item, spend
from texturevlm.check import check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, FINE_PAGES, MOST_FINE_PAGES, PATCH, RELEVANCE
from texturevlm.pages.document import ImagePages, Pages, open_pages
from texturevlm.pages.kept import KeptPages
from texturevlm.pages.scouting import PageSight, scouted
from texturevlm.pages.sheet import sheet_of, sheet_tokens
from texturevlm.pages.upright import UprightPages
from texturevlm.pipeline import Allocator
from texturevlm.relevance import Relevance, Scorer, find_relevance, find_scorer, reads_question
from texturevlm.relevance.text_regions import find_regions
from texturevlm.turned import check_turn, following
from texturevlm.types import Allocation, Texture

FINE_PIXELS = 1 << 22  # of a fine rendering at most: a letter page at 200 dots per inch


@dataclass(frozen=True, eq=False)
class PageTokens:
    """The tokens of one page, or of the sheet of pages that are shown small.

    numbers: of the pages, from 1; one, or all that the sheet shows
    worth:   how likely the question is about this page, in the scout's eyes, relative to the others; 0 for the sheet
    """

    numbers: tuple[int, ...]
    texture: Texture
    relevance: Relevance
    allocation: Allocation
    worth: float

    @property
    def tokens(self) -> int:
        """How many."""
        return int(self.allocation.valid.sum())


def choose_pages(
    document: Any,
    question: str = "",
    *,
    budget: int = BUDGET,
    patch: int = PATCH,
    allocator: str | Allocator = ALLOCATOR,
    relevance: str | Scorer = RELEVANCE,
    turn: float | str = 0.0,
    fine_pages: int = FINE_PAGES,
    device: torch.device | str = "cpu",
) -> list[PageTokens]:
    """Decide which pages of a document get tokens for a question, and where these lie: one budget over all pages.

    document:  a PDF (a path, or bytes; extra `pdf`), or a list of images
    question:  any text; "" for none: pages by what is usually asked
    fine_pages: that are rendered finely and get tokens of their own, at most; 1 to 20
    relevance: as in `choose_tokens`; where in a page the answer is. Which page it is, is the scout's word; a relevance
               that reads no question (prior, none) chooses pages without it, too
    turn:      as in `choose_tokens`; textures and tokens are those of the upright pages
    returns    the pages with tokens, in order; last, if a tenth of the budget holds one token for each of the other
               pages, a sheet that shows those
    """
    check_count("choose_pages", "budget", budget, 1)
    check_count("choose_pages", "fine_pages", fine_pages, 1, MOST_FINE_PAGES)
    ALLOCATORS.find("choose_pages", allocator)
    scorer = find_scorer("choose_pages", relevance, question)
    turn = check_turn("choose_pages", turn)
    pages, place = open_pages(document), torch.device(device)
    if isinstance(pages, ImagePages):
        pages.check_files()
    if turn != 0:
        pages = pages.upright(turn) if isinstance(pages, KeptPages) else UprightPages(pages, turn)
    asked = question if reads_question(scorer) else ""
    (sights,) = scouted(pages, [asked], patch=patch, device=place)
    how: Any = {"budget": budget, "patch": patch, "allocator": allocator, "fine_pages": fine_pages, "device": place}
    found = page_tokens(pages, sights, question, scorer, **how)
    return [_following(one, pages) for one in found] if isinstance(turn, str) else found


def _following(page: PageTokens, pages: Pages) -> PageTokens:
    """A page's tokens turned with its stamps; the sheet stays as it is."""
    if len(page.numbers) > 1:
        return page
    if isinstance(pages, KeptPages):
        regions = pages.regions(page.numbers[0] - 1, page.texture)
    else:
        regions = find_regions(page.texture)
    return replace(page, allocation=following(page.allocation, regions))


def page_tokens(
    pages: Pages,
    sights: Sequence[PageSight],
    question: str,
    scorer: Scorer,
    *,
    budget: int,
    patch: int,
    allocator: str | Allocator,
    fine_pages: int,
    device: torch.device,
) -> list[PageTokens]:
    """The second half of `choose_pages`: spend the budget on pages of which the scout has had a sight."""

    @cache
    def opened(index: int) -> tuple[Texture, Relevance]:
        if isinstance(pages, KeptPages):
            page = pages.fine(index, FINE_PIXELS, patch, device)
            return page.texture, page.find(question, scorer=scorer)
        texture = pages.texture(index, FINE_PIXELS, device).mipmapped()
        return texture, find_relevance(texture, question, patch=patch, relevance=scorer)

    sheet, choose = _sheet_budget(len(pages), budget, fine_pages), ALLOCATORS.find("choose_pages", allocator)
    items = [Item(partial(opened, index), sight.worth) for index, sight in enumerate(sights)]
    shares = spend(items, budget=budget - sheet, most=fine_pages, patch=patch, allocator=choose)
    found = []
    for index, share in enumerate(shares):
        if share:
            texture, relevance = opened(index)
            allocation = choose(texture, relevance, budget=share, patch=patch)
            found.append(PageTokens((index + 1,), texture, relevance, allocation, sights[index].worth))
    others = [index for index, share in enumerate(shares) if not share]
    return [*found, shown_small(others, sights, patch, device)] if sheet and others else found


def _sheet_budget(pages: int, budget: int, fine_pages: int) -> int:
    """Tokens of the sheet: one for each page that is not fine, if a tenth of the budget holds them, else 0."""
    others = pages - min(pages, fine_pages)
    wanted = sheet_tokens(pages) if others else 0  # fewer pages than `fine_pages` may win
    return wanted if wanted <= OVERVIEW * budget else 0


def shown_small(others: Sequence[int], sights: Sequence[PageSight], patch: int, device: torch.device) -> PageTokens:
    """The sheet of these pages, one token each."""
    texture = sheet_of([sights[index].thumbnail for index in others], device)
    relevance = find_relevance(texture, patch=patch, relevance="none")
    allocation = ALLOCATORS["resize"](texture, relevance, budget=sheet_tokens(len(others)), patch=patch)
    return PageTokens(tuple(index + 1 for index in others), texture, relevance, allocation, 0.0)
