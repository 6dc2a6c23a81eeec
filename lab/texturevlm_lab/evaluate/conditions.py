"""What a model is shown when it is asked: its own input, the tokens that we choose, and the controls.

A condition is one row of a table of answers. All conditions of a run ask the same questions of the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from texturevlm.check import check_choice, check_count
from texturevlm.relevance import reads_question

FULL, OWN, CHOSEN, ORACLE = "full", "own", "chosen", "oracle"
QUESTION, PAGE, BLANK, TEXT = "question", "page", "blank", "text"
INPUT_KINDS = {
    FULL: "full resolution, by the model's own processor",
    OWN: "resized by the model's own processor (max_pixels)",
    CHOSEN: "chosen",
    ORACLE: "chosen by the true boxes (oracle)",
    QUESTION: "chosen by another page's question",
    PAGE: "another page, resized by the model's own processor",
    BLANK: "a blank page",
    TEXT: "no image",
}
UNGUIDED = ("resize", "grid")  # allocators without an oracle and a wrong question


@dataclass(frozen=True, order=True)
class Condition:
    """One kind of input; allocator, relevance and budget where the kind has them.

    reduce: a name of `reduce.METHODS`: more tokens are chosen, and the model reduces them to the budget
    """

    kind: str
    allocator: str = ""
    relevance: str = ""
    budget: int = 0
    reduce: str = ""

    def __post_init__(self) -> None:
        check_choice("Condition", "kind", self.kind, INPUT_KINDS)
        check_count("Condition", "budget", self.budget, 0)

    @property
    def method(self) -> str:
        """In words, without the budget."""
        how = ", ".join(part for part in (self.allocator, self.relevance, self.reduce) if part)
        words = INPUT_KINDS[self.kind]
        return words if not how else how if self.kind == CHOSEN else f"{how}: {words}"

    def __str__(self) -> str:
        return f"{self.method} at {self.budget}" if self.budget else self.method

    def to_json(self) -> list[str | int]:
        *before, reduce = astuple(self)
        return [*before, reduce] if reduce else before


def conditions(
    allocators: Sequence[str],
    relevances: Sequence[str],
    budgets: Sequence[int],
    kinds: Sequence[str] = tuple(INPUT_KINDS),
    *,
    own: bool = True,
    reductions: Sequence[str] = (),
) -> list[Condition]:
    """All conditions of a run, the model's own first.

    own: whether the model's own processor can resize to a budget
    reductions: names of `reduce.METHODS`, each beside every choice of tokens
    """
    most = max(budgets)
    found = [Condition(FULL), Condition(TEXT), Condition(BLANK, budget=most), Condition(PAGE, budget=most)]
    for budget in sorted(budgets):
        if own:
            found.append(Condition(OWN, budget=budget))
        for allocator in allocators:
            asked = ["none"] if allocator == "resize" else relevances
            for relevance in asked:
                found += [Condition(CHOSEN, allocator, relevance, budget, one) for one in ("", *reductions)]
            if allocator not in UNGUIDED:
                found.append(Condition(ORACLE, allocator, "", budget))
                asking = [relevance for relevance in relevances if reads_question(relevance)]
                found += [Condition(QUESTION, allocator, relevance, budget) for relevance in asking]
    return [one for one in dict.fromkeys(found) if one.kind in kinds]
