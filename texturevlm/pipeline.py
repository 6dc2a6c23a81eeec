"""From an image and a question to an allocation of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import as_batch, share_budget
from texturevlm.check import check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE
from texturevlm.relevance import Balance, Prepared, Relevance, Scorer, declares, find_relevance, find_scorer
from texturevlm.relevance.orientation import find_turn
from texturevlm.relevance.prepared import BALANCE
from texturevlm.relevance.text_regions import find_regions
from texturevlm.scout import Question
from texturevlm.turned import UprightFrame, check_turn, following, turned_back, turned_upright, upright_frame
from texturevlm.types import Allocation, Texture, check_texture

Allocator = Callable[..., Allocation]
MIN_CHANCE = 0.1  # that a question to several images is about a certain one


@overload
def choose_tokens(texture: Texture, question: str | Question = "", **options: Any) -> Allocation: ...
@overload
def choose_tokens(texture: Sequence[Texture], question: str | Question = "", **options: Any) -> list[Allocation]: ...


def choose_tokens(
    texture: Texture | Sequence[Texture],
    question: str | Question = "",
    *,
    budget: int = BUDGET,
    patch: int = PATCH,
    allocator: str | Allocator = ALLOCATOR,
    relevance: str | Scorer | Prepared | Relevance = RELEVANCE,
    balance: str | Balance = BALANCE,
    share: bool = False,
    turn: float | str = 0.0,
    **options: Any,
) -> Allocation | list[Allocation]:
    """Decide where a budget of tokens goes.

    texture:   one image, or a batch of one size; or a list of textures of any sizes. One question for all of them
    question:  any text; "" for none; or what `scout.encode` made of one, for relevance "scout"
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    relevance: a name of `texturevlm.SCORERS`, or auto: scout, and prior without a question; a scorer, such as
               SCORERS["attention"](map); what `prepare` made of the texture, so that several questions share the work;
               or a Relevance, used as it is
    balance:   how far the question is trusted and how far the image: even, learned (as trained for the scorer), or a
               Balance
    share:     whether all images share one budget, spent by the expected value of tokens in each, instead of having
               `budget` tokens each
    turn:      the angle of the text in degrees from +x towards +y (90: a page that was turned clockwise by a quarter),
               or auto: it is found in each image. Footprints are turned with the text, so that patches arrive upright
    options:   the allocator's own
    returns    an Allocation of `budget` slots per image (as many as the largest share, if shared); a list for a list
    """
    check_count("choose_tokens", "budget", budget, 1)
    check_count("choose_tokens", "patch", patch, 1)
    allocator = ALLOCATORS.find("choose_tokens", allocator)
    given: Any = {"budget": budget, "patch": patch, "allocator": allocator}
    turn = check_turn("choose_tokens", turn)
    if share:
        return _share(texture, question, relevance=relevance, balance=balance, turn=turn, **given, **options)
    if not isinstance(texture, Texture):
        return [
            choose_tokens(one, question, relevance=relevance, balance=balance, turn=turn, **given, **options)
            for one in check_textures(texture)
        ]
    if turn != 0:
        check_texture("choose_tokens", texture)
        if isinstance(relevance, (Prepared, Relevance)):
            raise TypeError(f"choose_tokens: relevance must be a scorer or its name with turn, got {relevance!r:.40}")
        found = []
        for number, one in enumerate(texture.split()):
            angle = find_turn(one) if isinstance(turn, str) else turn
            frame = upright_frame(one, angle)
            upright, own = turned_upright(one, frame), _upright_scorer(relevance, number, frame)
            chosen = choose_tokens(upright, question, relevance=own, balance=balance, **given, **options)
            if isinstance(turn, str):
                chosen = following(chosen, find_regions(upright))
            found.append(turned_back(chosen, frame))
        return as_batch(found)
    if not isinstance(relevance, Relevance):
        relevance = find_relevance(texture, question, patch=patch, relevance=relevance, balance=balance)
    return allocator(texture, relevance, budget=budget, patch=patch, **options)


def _share(
    texture: Texture | Sequence[Texture],
    question: str | Question,
    *,
    patch: int,
    relevance: str | Scorer | Prepared | Relevance,
    balance: str | Balance,
    turn: float | str,
    **options: Any,
) -> Allocation | list[Allocation]:
    if isinstance(relevance, (Prepared, Relevance)):
        raise TypeError(f"choose_tokens: relevance must be a scorer or its name if share, got {relevance!r:.40}")
    textures = texture.split() if isinstance(texture, Texture) else check_textures(texture)
    if options["budget"] < len(textures):
        raise ValueError(
            f"choose_tokens: budget must be at least {len(textures)}, one token per image, got {options['budget']}"
        )
    angles = [find_turn(one) if isinstance(turn, str) else turn for one in textures]
    frames = [upright_frame(*pair) for pair in zip(textures, angles)]
    numbers = range(len(frames)) if isinstance(texture, Texture) else [0] * len(frames)  # a list has one map for all
    scorers = [_upright_scorer(relevance, *pair) for pair in zip(numbers, frames)]
    textures = [turned_upright(*pair) for pair in zip(textures, frames)]
    prepared = [Prepared(one, patch=patch, scorer=scorer) for one, scorer in zip(textures, scorers)]
    maps = [one.find(question, balance=balance) for one in prepared]
    weights = [question_chance(one, question, own) for one, own in zip(prepared, maps)]
    upright = share_budget(textures, maps, patch=patch, weights=weights, **options)
    if isinstance(turn, str):
        upright = [following(own, find_regions(one)) for own, one in zip(upright, textures)]
    found = [turned_back(*one) for one in zip(upright, frames)]
    return as_batch(found) if isinstance(texture, Texture) else found


def _upright_scorer(relevance: str | Scorer, number: int, frame: UprightFrame) -> str | Scorer:
    """The scorer of the upright picture of an image: maps of the image that it holds are turned with it."""
    upright: Callable[[int, UprightFrame], Scorer] | None = getattr(relevance, "upright", None)
    return relevance if upright is None else upright(number, frame)


def check_textures(textures: Sequence[Texture]) -> list[Texture]:
    """A list of textures of one image each."""
    if not isinstance(textures, (list, tuple)) or not textures:
        got = "an empty list" if isinstance(textures, (list, tuple)) else type(textures).__name__
        raise TypeError(f"choose_tokens: texture must be a Texture or a list of them, got {got}")
    for one in textures:
        if not isinstance(one, Texture) or one.batch != 1:
            got = f"a batch of {one.batch}" if isinstance(one, Texture) else type(one).__name__
            raise TypeError(f"choose_tokens: texture must be a list of textures of one image, got {got} in it")
    return list(textures)


def question_chance(prepared: Prepared, question: str | Question, relevance: Relevance) -> float:
    """The chance (MIN_CHANCE to 1) that a question to several images is about this one; 1 if the scorer cannot tell."""
    # The scorer that has read the image already, if there is one.
    own = [scorer for scorer, _ in prepared.readings.values() if scorer.name == relevance.scorer]
    scorer = own[-1] if own else find_scorer("choose_tokens", relevance.scorer)
    if not declares(scorer, "calibrated"):
        return 1.0
    query, _ = prepared.query(question, scorer)
    return 1.0 if query is None else max(MIN_CHANCE, float(query.sum()))
