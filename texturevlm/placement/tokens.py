"""`choose_tokens`: textures and a question → allocations, for those who need no picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from texturevlm.allocate.share import as_batch
from texturevlm.placement.captured import choose
from texturevlm.placement.config import TOKEN_OPTIONS, TokenConfig
from texturevlm.placement.picture import prepare
from texturevlm.placement.placement import place_together
from texturevlm.relevance import Prepared, Relevance, Scorer
from texturevlm.scout import Question
from texturevlm.types import Allocation, Texture, check_texture


@overload
def choose_tokens(texture: Texture, question: str | Question = "", **options: Any) -> Allocation: ...
@overload
def choose_tokens(texture: Sequence[Texture], question: str | Question = "", **options: Any) -> list[Allocation]: ...


def choose_tokens(
    texture: Texture | Sequence[Texture],
    question: str | Question = "",
    *,
    how: TokenConfig | None = None,
    relevance: str | Scorer | Prepared | Relevance | None = None,
    share: bool = False,
    **options: Any,
) -> Allocation | list[Allocation]:
    """Decide where a budget of tokens goes.

    texture:   one image, or a batch of one size; or a list of textures of any sizes. One question for all of them
    question:  any text; "" for none; or what `scout.encode` made of one, for relevance "scout"
    how:       a TokenConfig, which options override; None: the defaults
    relevance: a name of `texturevlm.SCORERS`, or auto: the scout, and prior without a question; a scorer, such as
               SCORERS["attention"](map); or a Relevance, used as it is
    share:     whether all images share one budget, spent by the expected value of tokens in each, instead of having
               `budget` tokens each
    options:   fields of TokenConfig: budget, allocator, balance, turn, patch; others are the allocator's own
    returns    an Allocation of `budget` slots per image (as many as the largest share, if shared); a list for a list
    """
    how = TokenConfig.of("choose_tokens", how)
    own = {name: value for name, value in options.items() if name not in TOKEN_OPTIONS}
    given = {name: value for name, value in options.items() if name in TOKEN_OPTIONS}
    scorer = relevance if not isinstance(relevance, (Prepared, Relevance)) else None
    how = replace(how, options={**how.options, **own}, **given).given(relevance=scorer).check("choose_tokens")
    made = relevance if isinstance(relevance, (Prepared, Relevance)) else None
    if share:
        return _shared(texture, question, how, made)
    if not isinstance(texture, Texture):
        return [_each(own, question, how, made) for own in _textures(texture)]
    return _each(texture, question, how, made)


def _each(
    texture: Texture, question: str | Question, how: TokenConfig, made: Prepared | Relevance | None
) -> Allocation:
    """The tokens of images of one size, each with the whole budget."""
    if how.turn != 0 or how.finer.most > 1:  # in an upright picture of each, perhaps enlarged
        check_texture("choose_tokens", texture)
        if made is not None:
            raise TypeError(
                f"choose_tokens: relevance must be a scorer or its name with turn or finer, got {made!r:.40}"
            )
        parts = [prepare(own, how) for own in texture.split()]
        return as_batch(
            [place_together([own], question, how, first=number)[0].given for number, own in enumerate(parts)]
        )
    if isinstance(made, Relevance):
        return how.chooser(texture, made, budget=how.budget, patch=how.patch, **how.options)
    return choose(texture, question, how, made)[1]


def _shared(
    texture: Texture | Sequence[Texture], question: str | Question, how: TokenConfig, made: Prepared | Relevance | None
) -> Allocation | list[Allocation]:
    if made is not None:
        raise TypeError(f"choose_tokens: relevance must be a scorer or its name if share, got {made!r:.40}")
    textures = texture.split() if isinstance(texture, Texture) else _textures(texture)
    if how.budget < len(textures):
        raise ValueError(
            f"choose_tokens: budget must be at least {len(textures)}, one token per image, got {how.budget}"
        )
    placements = place_together([prepare(own, how) for own in textures], question, how)
    found = [placement.given for placement in placements]
    return as_batch(found) if isinstance(texture, Texture) else found


def _textures(textures: Sequence[Texture]) -> list[Texture]:
    """A list of textures of one image each."""
    if not isinstance(textures, (list, tuple)) or not textures:
        got = "an empty list" if isinstance(textures, (list, tuple)) else type(textures).__name__
        raise TypeError(f"choose_tokens: texture must be a Texture or a list of them, got {got}")
    for texture in textures:
        if not isinstance(texture, Texture) or texture.batch != 1:
            got = f"a batch of {texture.batch}" if isinstance(texture, Texture) else type(texture).__name__
            raise TypeError(f"choose_tokens: texture must be a list of textures of one image, got {got} in it")
    return list(textures)
