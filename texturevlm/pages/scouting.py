"""Which pages a question is about: the scout reads each page small, and the question's words are searched on it.

Where on a page the answer is, the scout's ranker knows; which of many pages it is on, the words tell better (measured:
results/documents.md). A rare word that stands on few pages says most. Pages are read one by one, and only a few numbers
and a small picture of each are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.pages.pictures import PagePictures
from texturevlm.placement import TokenConfig
from texturevlm.scout import Question, Scout, Spots, encode, load_scout

PAGE_SHARPNESS = 20.0  # of the softmax over pages: the likeliest on 71 `train` questions to pages new to the scout


class PageSight(NamedTuple):
    """What is known of a page after a coarse look.

    worth:     how likely the question is about this page; all pages together sum to 1
    thumbnail: (3, side, side) uint8
    """

    worth: float
    thumbnail: Tensor


def scouted(
    pages: PagePictures, questions: Sequence[str], *, how: TokenConfig, device: torch.device
) -> list[list[PageSight]]:
    """A coarse look at every page, once for all questions: per question, the sight of each page.

    questions: for an empty one, worth is how much there usually is to ask about a page
    how:       says how pages are turned upright; its patch is the side of a thumbnail
    """
    scout = load_scout(device=device)
    asked = [encode([question]) for question in questions]
    small: list[Tensor] = []
    found: list[list[Tensor]] = [[] for _ in questions]
    for index in range(len(pages)):
        spots, picture = pages.sight(index, how, device)
        small.append(picture)
        for table, words in zip(found, asked):
            table.append(evidence_on(scout, spots, words))
    worths = [page_worth(torch.stack(table), words) for table, words in zip(found, asked)]
    return [[PageSight(float(one), picture) for one, picture in zip(worth, small)] for worth in worths]


def evidence_on(scout: Scout, spots: Spots, question: Question) -> Tensor:
    """What a page that the scout has read says to a question, for `page_worth`."""
    asked = bool(_weights(question).any())
    return (scout.found(spots, question)[0] if asked else scout.where(spots, question).sum()).cpu()


def page_worth(found: Tensor, question: Question) -> Tensor:
    """(pages,), sums to 1.

    found: (pages, WORDS), from `Scout.found`; (pages,), any amounts, if the question has no words
    """
    if found.dim() == 1:
        return found / found.sum().clamp(min=1e-30)
    above = (found - found.mean(0)).clamp(min=0)  # a word that all pages have says nothing
    evidence = (above * _weights(question)[0]).sum(1)
    return (PAGE_SHARPNESS * evidence).softmax(0)


def _weights(question: Question) -> Tensor:
    """(B, WORDS): how much each word says about a page: not stop words, not synonyms, common words less."""
    exists, commonness, emphasis, _, _, stop, synonym = question.traits.unbind(-1)
    return exists * (1 - stop) * (1 - synonym) * (1 - commonness).clamp(min=0) * (1 + emphasis)
