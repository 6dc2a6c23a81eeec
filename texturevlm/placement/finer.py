"""How finely a model must see print, by the number of its visual tokens.

Choosers show print as finely as OCR needs it. A model may need more. With few tokens it then pays to show fewer places
more finely; with many, to show more places. So a checkpoint names a number per budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FINEST = 4  # times as finely as OCR


@dataclass(frozen=True)
class Finer:
    """How many times as finely as OCR.

    steps: (tokens, times) by rising tokens. Between two of them times and tokens are interpolated as logarithms; beyond
           the first and the last the nearest one holds
    """

    steps: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def at(self, budget: float) -> float:
        """How many times for so many tokens."""
        tokens, times = np.log(np.array(self.steps)).T
        return round(float(np.exp(np.interp(np.log(budget), tokens, times))), 3)

    @property
    def most(self) -> float:
        """At any budget."""
        return max(times for _, times in self.steps)


def read_finer(value: Any) -> Finer:
    """From config.json: a number, or a table of numbers by budgets."""
    table = value if isinstance(value, Mapping) else {"1": value}
    budgets = all(str(tokens).isascii() and str(tokens).isdigit() and int(tokens) > 0 for tokens in table)
    if not (
        table and budgets and all(type(times) in (int, float) and 1 <= times <= FINEST for times in table.values())
    ):
        wanted = f"a number from 1 to {FINEST}, or a table of them by numbers of tokens"
        raise ValueError(f"adapt: finer in texturevlm of config.json must be {wanted}, got {value!r:.60}")
    return Finer(tuple(sorted((int(tokens), float(times)) for tokens, times in table.items())))
