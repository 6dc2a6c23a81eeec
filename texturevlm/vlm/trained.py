"""How a checkpoint was trained to read chosen tokens: the table `texturevlm` of its config.json.

Published checkpoints have no such table: they were trained on whole grids, and the first choices below suit them. A
checkpoint that was trained on chosen tokens names its own, so that nobody has to know them to ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from texturevlm.check import check_choice, check_count
from texturevlm.defaults import MOST_FINE_PAGES
from texturevlm.placement.finer import Finer, read_finer
from texturevlm.vlm.places import COORDINATES
from texturevlm.vlm.views import LEVELS

TABLE = "texturevlm"  # of config.json
CONFIDENCE = 5  # numbers of a calibration: a constant, and one per feature of an answer


@dataclass(frozen=True)
class Trained:
    """What a checkpoint was trained with.

    levels, coordinates: as for `Adapter.prepare`
    unreadable:          the answer that means that the true one cannot be read; None: it has none
    confidence:          weights that turn the features of an answer into the chance that it is right
                         (`texturevlm train`); None: not calibrated
    fine_pages:          of a document, that it reads together; None: no number of its own
    finer:               how many times as finely as OCR it must see print, by budgets; where that is finer than an
                         image's pixels, a small image is enlarged
    suffix:              text that follows a question that wants a short answer; None: `eval` has its own
    answer_tokens:       that such an answer may have; None: `eval` has its own number
    budget, allocator, relevance, turn: how its tokens are placed, as in TokenConfig; None: the package's defaults
    """

    levels: str = LEVELS[0]
    coordinates: str = COORDINATES[0]
    unreadable: str | None = None
    confidence: tuple[float, ...] | None = None
    fine_pages: int | None = None
    finer: Finer = field(default_factory=Finer)
    suffix: str | None = None
    answer_tokens: int | None = None
    budget: int | None = None
    allocator: str | None = None
    relevance: str | None = None
    turn: float | str | None = None

    @property
    def placed(self) -> dict[str, Any]:
        """What it says about how tokens are placed, by the names of TokenConfig."""
        named = {name: getattr(self, name) for name in ("budget", "allocator", "relevance", "turn")}
        return {name: value for name, value in named.items() if value is not None}


def trained_as(config: Any, levels: Sequence[str] = LEVELS, coordinates: Sequence[str] = COORDINATES) -> Trained:
    """What a model's config says.

    levels, coordinates: those that its family has
    """
    table = getattr(config, TABLE, None) or {}
    if not isinstance(table, Mapping):
        raise ValueError(f"adapt: {TABLE} of config.json must be a table, got {table!r:.60}")
    known = [column.name for column in fields(Trained)]
    for name in table:
        check_choice("adapt", f"{TABLE} of config.json", name, known)
    found = Trained(**table)
    if (weights := found.confidence) is not None:
        numbers = isinstance(weights, (list, tuple)) and all(isinstance(weight, (int, float)) for weight in weights)
        if not numbers or len(weights) != CONFIDENCE:
            wanted = f"{CONFIDENCE} numbers"
            raise ValueError(f"adapt: confidence in {TABLE} of config.json must be {wanted}, got {weights!r:.60}")
        found = replace(found, confidence=tuple(map(float, weights)))
    try:
        if found.fine_pages is not None:
            check_count("adapt", f"fine_pages in {TABLE} of config.json", found.fine_pages, 1, MOST_FINE_PAGES)
        if found.answer_tokens is not None:
            check_count("adapt", f"answer_tokens in {TABLE} of config.json", found.answer_tokens, 1)
    except TypeError as error:  # a value of another kind in a file is no fault of a program
        raise ValueError(str(error)) from error
    if not isinstance(found.suffix, str | None):
        raise ValueError(f"adapt: suffix in {TABLE} of config.json must be a text, got {found.suffix!r:.60}")
    if "finer" in table:
        found = replace(found, finer=read_finer(table["finer"]))
    check_choice("adapt", f"levels in {TABLE} of config.json", found.levels, levels)
    allowed = [name for name in coordinates if name in COORDINATES]
    check_choice("adapt", f"coordinates in {TABLE} of config.json", found.coordinates, allowed)
    return found
