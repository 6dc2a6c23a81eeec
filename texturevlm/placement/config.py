"""How tokens are placed: one value, resolved once at a door, checked once, and passed on as `how`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE, TURN
from texturevlm.frame import check_turn
from texturevlm.placement.finer import Finer
from texturevlm.relevance import BALANCE, Balance, Scorer, check_relevance, find_balance
from texturevlm.types import Allocation

Allocator = Callable[..., Allocation]


@dataclass(frozen=True)
class TokenConfig:
    """How the tokens of pictures are placed.

    budget:    tokens of all pictures together
    allocator: a name of `texturevlm.ALLOCATORS`, or a function like those
    relevance: a name of `texturevlm.SCORERS`, a scorer, or auto: the scout, and without a question prior
    balance:   how far the question is trusted and how far the image: even, learned (as trained for the scorer), or a
               Balance
    turn:      the angle of the text in degrees from +x towards +y (90: a page that was turned clockwise by a quarter),
               or auto: it is found in each image. Footprints are turned with the text, so that patches arrive upright
    finer:     how many times as finely as OCR print must be shown, by budgets; if that is above 1 at any budget, a
               small image is enlarged, because no sample is finer than a pixel
    patch:     side of a token in samples
    options:   the allocator's own
    """

    budget: int = BUDGET
    allocator: str | Allocator = ALLOCATOR
    relevance: str | Scorer = RELEVANCE
    balance: str | Balance = BALANCE
    turn: float | str = TURN
    finer: Finer = field(default_factory=Finer)
    patch: int = PATCH
    options: Mapping[str, Any] = field(default_factory=dict)

    def given(self, **options: Any) -> TokenConfig:
        """With what a caller gave: None stands for what is here already."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})

    def check(self, function: str) -> TokenConfig:
        """Raise for values that no call can work with; the angle is made to lie from -180 to 180."""
        check_count(function, "budget", self.budget, 1)
        check_count(function, "patch", self.patch, 1)
        ALLOCATORS.find(function, self.allocator)
        check_relevance(function, self.relevance)
        find_balance(function, self.balance, "")
        if not isinstance(self.finer, Finer):
            raise TypeError(f"{function}: finer must be a Finer, got {self.finer!r:.80}")
        if not isinstance(self.options, Mapping):
            raise TypeError(
                f"{function}: options must be a mapping of the allocator's options, got {self.options!r:.80}"
            )
        turn = check_turn(function, self.turn)
        return self if turn == self.turn else replace(self, turn=turn)

    @classmethod
    def of(cls, function: str, how: TokenConfig | None) -> TokenConfig:
        """What a caller gave for `how`; None: the defaults."""
        if how is not None and not isinstance(how, TokenConfig):
            raise TypeError(f"{function}: how must be a TokenConfig, got {how!r:.80}")
        return TokenConfig() if how is None else how

    @property
    def chooser(self) -> Allocator:
        """The allocator as a function."""
        return ALLOCATORS.find("place", self.allocator)

    def weighing(self, tokens: float) -> str | Balance:
        """The balance for so many tokens in one picture: with few, `finer` may ask for fewer places more finely."""
        times = self.finer.at(tokens)
        if times == 1:
            return self.balance
        known = Balance() if isinstance(self.balance, str) else self.balance
        return replace(known, particularise=known.particularise * times)


TOKEN_OPTIONS = tuple(one.name for one in fields(TokenConfig))
