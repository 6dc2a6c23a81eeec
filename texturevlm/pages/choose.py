"""Choose the pages of a document and their tokens for a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from texturevlm.allocate.search import OVERVIEW
from texturevlm.allocate.share import Item, spend
from texturevlm.check import check_count
from texturevlm.defaults import FINE_PAGES, MOST_FINE_PAGES
from texturevlm.pages.document import ImagePages, open_pages
from texturevlm.pages.pictures import PagePictures
from texturevlm.pages.scouting import PageSight, scouted
from texturevlm.pages.sheet import sheet_of, sheet_tokens
from texturevlm.placement import Picture, Placement, TokenConfig, place, prepare
from texturevlm.relevance import Relevance, find_scorer, reads_question
from texturevlm.types import Allocation, Texture

FINE_PIXELS = 1 << 22  # of a fine rendering at most: a letter page at 200 dots per inch


@dataclass(frozen=True, eq=False)
class PageTokens:
    """The tokens of one page, or of the sheet of pages that are shown small.

    numbers: of the pages, from 1; one, or all that the sheet shows
    worth:   how likely the question is about this page, in the scout's eyes, relative to the others; 0 for the sheet
    """

    numbers: tuple[int, ...]
    placement: Placement
    worth: float

    @property
    def texture(self) -> Texture:
        return self.placement.picture.texture

    @property
    def relevance(self) -> Relevance:
        return self.placement.relevance

    @property
    def allocation(self) -> Allocation:
        return self.placement.allocation

    @property
    def tokens(self) -> int:
        """How many."""
        return self.placement.tokens


def choose_pages(
    document: Any,
    question: str = "",
    *,
    how: TokenConfig | None = None,
    fine_pages: int = FINE_PAGES,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[PageTokens]:
    """Choose the tokens of a document: the pages that a question is about, each at the detail that it deserves.

    document:   a PDF (a path, or bytes), or a list of images: scanned pages, or the frames of a clip
    question:   any text; "" for none: pages by what is usually asked
    how:        a TokenConfig, which options override; its relevance says where in a page the answer is. Which page it
                is, is the scout's word; a relevance that reads no question (prior, none) chooses pages without it, too.
                Textures and tokens are those of the upright pages
    fine_pages: that are rendered finely and get tokens of their own, at most; 1 to 20
    returns     the pages with tokens, in order; last, if a tenth of the budget holds one token for each of the other
                pages, a sheet that shows those
    """
    how = replace(TokenConfig() if how is None else how, **options).check("choose_pages")
    check_count("choose_pages", "fine_pages", fine_pages, 1, MOST_FINE_PAGES)
    scorer = find_scorer("choose_pages", how.relevance, question)
    opened, there = open_pages(document), torch.device(device)
    if isinstance(opened, ImagePages):
        opened.check_files()
    pages = opened if isinstance(opened, PagePictures) else PagePictures(opened)
    (sights,) = scouted(pages, [question if reads_question(scorer) else ""], how=how, device=there)
    return page_tokens(pages, sights, question, replace(how, relevance=scorer), fine_pages=fine_pages, device=there)


def page_tokens(
    pages: PagePictures,
    sights: Sequence[PageSight],
    question: str,
    how: TokenConfig,
    *,
    fine_pages: int,
    device: torch.device,
) -> list[PageTokens]:
    """The second half of `choose_pages`: spend the budget on pages of which the scout has had a sight."""
    # A token for each page that is not fine, if a tenth of the budget holds them; fewer than `fine_pages` may win.
    wanted = sheet_tokens(len(pages)) if len(pages) > fine_pages else 0
    sheet = wanted if wanted <= OVERVIEW * how.budget else 0
    rest = how.budget - sheet
    opened: dict[int, tuple[Picture, Relevance]] = {}
    balance = how.weighing(rest / min(len(pages), fine_pages))

    def open_page(index: int) -> tuple[Texture, Relevance]:
        picture = pages.picture(index, FINE_PIXELS, how, device)
        relevance = picture.memo.find(question, scorer=how.relevance, balance=balance)
        opened[index] = picture, relevance
        return picture.texture, relevance

    items = [Item(partial(open_page, index), sight.worth) for index, sight in enumerate(sights)]
    given: Any = {"patch": how.patch, **how.options}
    shares = spend(items, budget=rest, most=fine_pages, allocator=how.chooser, **given)
    found = []
    for index, share in enumerate(shares):
        if share:
            picture, relevance = opened[index]
            placed = how.chooser(picture.texture, relevance, budget=share, **given)
            found.append(PageTokens((index + 1,), Placement(picture, placed, relevance), sights[index].worth))
    others = [index for index, share in enumerate(shares) if not share]
    return [*found, shown_small(others, sights, how.patch, device)] if sheet and others else found


def shown_small(others: Sequence[int], sights: Sequence[PageSight], patch: int, device: torch.device) -> PageTokens:
    """The sheet of these pages, one token each."""
    picture = prepare(sheet_of([sights[index].thumbnail for index in others], device), TokenConfig(patch=patch))
    how = TokenConfig(sheet_tokens(len(others)), "resize", "none", patch=patch)
    return PageTokens(tuple(index + 1 for index in others), place(picture, "", how), 0.0)
