"""`place`: pictures, a question and a config → placements, which say where every token lies, and why.

What points back (a second look, the model's attention, gaze, a user's box, an oracle) is evidence: a map that is added
to the relevance, minus what an earlier placement shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.share import LEAST, Item
from texturevlm.allocate.share import spend as share_out
from texturevlm.allocate.value import delivered_scale
from texturevlm.check import check_count
from texturevlm.frame import Frame, following
from texturevlm.placement.config import TokenConfig
from texturevlm.placement.picture import Picture, prepare
from texturevlm.relevance import (
    AttentionScorer,
    Balance,
    Relevance,
    Scorer,
    declares,
    find_scorer,
    legibility,
    normalised,
)
from texturevlm.scout import Question
from texturevlm.types import COLUMNS, Allocation, Texture

MIN_CHANCE = 0.1  # that a question to several images is about a certain one
# Places the tokens of one picture by replaying a graph; None if it has none for this.
Captured = Callable[[Picture, str, TokenConfig], tuple[Allocation, Relevance] | None]
BY_EVIDENCE = "attention"  # the relevance that asks no scorer: the evidence is all there is


@dataclass(frozen=True, eq=False)
class Placement:
    """The tokens of one picture.

    upright:   footprints along the axes of the picture's texture, as the allocator gave them
    relevance: of the texture, that they were placed by
    weight:    (1, K), of each token; None: 1
    pixels:    (1, K, 3, P, P), what the tokens show in the place of the texture's own samples; None: these
    """

    picture: Picture
    upright: Allocation
    relevance: Relevance
    weight: Tensor | None = None
    pixels: Tensor | None = None

    def __repr__(self) -> str:
        height, width = self.picture.frame.given
        return f"Placement({self.tokens} tokens of {height}×{width}, by {self.relevance.scorer})"

    @cached_property
    def allocation(self) -> Allocation:
        """The footprints in the texture as a model reads them: those in regions are turned with their text."""
        return following(self.upright, self.picture.regions)

    @property
    def given(self) -> Allocation:
        """The footprints in the image as it was given."""
        return self.picture.frame.footprints(self.allocation)

    def after(self, first: Placement) -> Placement:
        """The tokens of an earlier placement of this picture and these; the number of slots is the sum of both."""
        return replace(self, upright=joined(first.upright, self.upright))

    @property
    def tokens(self) -> int:
        """How many footprints are used. Reads values, so it waits for a GPU."""
        return int(self.upright.valid.sum())


def place(
    picture: Any,
    question: str = "",
    how: TokenConfig | None = None,
    *,
    evidence: Tensor | None = None,
    after: Placement | None = None,
) -> Placement:
    """Place the tokens of one picture.

    picture: what `prepare` made, or any image
    evidence, after: as in `place_together`, of this picture
    """
    how = TokenConfig.of("place", how).check("place")
    seen = None if evidence is None else [evidence]
    known = None if after is None else [after]
    found = place_together([prepare(picture, how)], question, how, evidence=seen, after=known)
    if not found:
        raise ValueError(
            f"place: budget must leave tokens behind the {after and after.tokens} of after, got {how.budget}"
        )
    return found[0]


def place_together(
    pictures: Sequence[Picture],
    question: str | Question = "",
    how: TokenConfig | None = None,
    *,
    evidence: Sequence[Tensor] | None = None,
    after: Sequence[Placement] | None = None,
    captured: Captured | None = None,
    first: int = 0,
) -> list[Placement]:
    """Place the tokens of several pictures that share the budget, by the expected value of tokens in each.

    evidence: a map (1, h, w) per picture, at least 0, of where else to look, and how much of it lies in each
    after:    placements that the model has read: their tokens count for the budget, and what they show legibly needs no
              more. What comes back are further tokens alone; none if nothing is left to see, or no budget
    captured: what may place the tokens of one picture by a graph
    first:    the number of the first picture among those that a scorer holds maps of
    """
    how = TokenConfig.of("place_together", how)
    rest = how.budget - sum(placement.tokens for placement in after or ())
    if after is not None and rest < len(pictures):
        return []
    check_budget(rest, len(pictures))
    if captured and len(pictures) == 1 and evidence is None and after is None and isinstance(question, str):
        found = captured(pictures[0], question, how)
        if found is not None:
            return [Placement(pictures[0], *found)]
    maps, chances = [], []
    for index, picture in enumerate(pictures):
        seen, known = evidence[index] if evidence else None, after[index] if after else None
        by = _scorer(how.relevance, first + index, picture.frame)
        own, chance = _relevance(
            picture, question, replace(how, relevance=by), rest / len(pictures), seen, known, alone=len(pictures) == 1
        )
        maps.append(own)
        chances.append(chance)
    if after is not None and sum(chances) <= 0:
        return []
    return spend(pictures, maps, chances, replace(how, budget=rest))


def _relevance(
    picture: Picture,
    question: str | Question,
    how: TokenConfig,
    tokens: float,
    evidence: Tensor | None,
    after: Placement | None,
    *,
    alone: bool,
) -> tuple[Relevance, float]:
    """The relevance of a picture that gets about so many tokens, and the chance that it is what is asked about.

    alone: whether there is no other picture: the chance is 1, because to ask for it would wait for a GPU
    """
    balance = how.weighing(tokens)
    if how.relevance == BY_EVIDENCE:
        assert evidence is not None
        found = _pointed_at(picture, question, evidence, balance)
    else:
        found = picture.memo.find(question, scorer=how.relevance, balance=balance)
        if evidence is not None:
            pointed = _pointed_at(picture, question, evidence, balance)
            found = replace(found, mass=found.mass + pointed.mass, scorer=pointed.scorer)
    if after is not None:
        scale = delivered_scale(after.upright, found.grid).to(found.mass)
        found = replace(found, mass=found.mass * (1 - legibility(after.relevance.legible_scale, scale)))
    chance = 1.0
    if evidence is not None and not alone:
        chance = max(MIN_CHANCE, float(evidence.sum()))
    elif not alone:
        chance = question_chance(picture, question, found)
    if after is not None:
        chance *= float(found.mass.sum())
    return found if evidence is None and after is None else replace(found, mass=normalised(found.mass)), chance


def _pointed_at(picture: Picture, question: str | Question, evidence: Tensor, balance: str | Balance) -> Relevance:
    """The relevance of what evidence points at; the memo does not keep the map, which belongs to one question."""
    scorer = AttentionScorer(evidence)
    found = picture.memo.find(question, scorer=scorer, balance=balance)
    picture.memo.readings.pop(id(scorer), None)
    return found


def _scorer(scorer: str | Scorer, number: int, frame: Frame) -> str | Scorer:
    """The scorer of a picture: maps of the images that a scorer holds are turned with them."""
    upright: Callable[[int, Frame], Scorer] | None = getattr(scorer, "upright", None)
    return scorer if upright is None else upright(number, frame)


def question_chance(picture: Picture, question: str | Question, relevance: Relevance) -> float:
    """The chance (MIN_CHANCE to 1) that a question to several pictures is about this one; 1 if the scorer cannot
    tell."""
    # The scorer that has read the picture already, if there is one.
    own = [scorer for scorer, _ in picture.memo.readings.values() if scorer.name == relevance.scorer]
    scorer = own[-1] if own else find_scorer("place", relevance.scorer)
    if not declares(scorer, "calibrated"):
        return 1.0
    query, _ = picture.memo.query(question, scorer)
    return 1.0 if query is None else max(MIN_CHANCE, float(query.sum()))


def spend(
    pictures: Sequence[Picture], maps: Sequence[Relevance], chances: Sequence[float], how: TokenConfig
) -> list[Placement]:
    """Spend a budget on all pictures together, by the expected value of tokens in each.

    chances: that the question is about each
    """
    shares, given = [how.budget], dict[str, Any](patch=how.patch, **how.options)
    if len(pictures) > 1:
        floors = [min(picture.most_tokens, LEAST, how.budget // len(maps)) for picture in pictures]
        spare = how.budget - sum(floors)  # what the other pictures leave
        items = [
            Item(partial(_opened, picture, own), chance, floor, min(picture.most_tokens, floor + spare))
            for picture, own, chance, floor in zip(pictures, maps, chances, floors)
        ]
        shares = share_out(items, budget=how.budget, allocator=how.chooser, **given)
    return [
        Placement(picture, how.chooser(picture.texture, own, budget=share, **given), own)
        for picture, own, share in zip(pictures, maps, shares)
    ]


def _opened(picture: Picture, relevance: Relevance) -> tuple[Texture, Relevance]:
    return picture.texture, relevance


def check_budget(budget: int, pictures: int, function: str = "place") -> None:
    """Raise for less than one token per picture."""
    check_count(function, f"budget for {pictures} images" if pictures > 1 else "budget", budget, pictures)


def joined(first: Allocation, other: Allocation) -> Allocation:
    """The used footprints of both; the number of slots is the sum of both."""
    used = int(first.valid[0].sum())
    unused = first.each(itemgetter((slice(None), slice(used, None))))
    return _side_by_side(first.each(itemgetter((slice(None), slice(0, used)))), other, unused)


def in_slots(allocation: Allocation, slots: int) -> Allocation:
    """Give an allocation of one picture another number of slots: unused slots are added or dropped."""
    missing = slots - allocation.budget
    if missing < 0:
        used = int(allocation.valid[0].sum())
        if used > slots:
            raise ValueError(f"place: allocation must use at most {slots} tokens, got {used}")
        return allocation.each(itemgetter((slice(None), slice(0, slots))))
    if missing == 0:
        return allocation
    empty = allocation.each(lambda column: torch.zeros_like(column[:, :1]).expand(-1, missing, *column.shape[2:]))
    return _side_by_side(allocation, empty)


def _side_by_side(*parts: Allocation) -> Allocation:
    table = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in COLUMNS}
    return Allocation(**table, size=parts[0].size, patch=parts[0].patch)
