"""Nothing is asked: is the salience of the page the better guess, or what the scout learned about usual questions?

    python -m texturevlm_lab.studies.nothing_asked DATA --out DIR [--limit N] [--ocr E,E] [--readings DIR]

DATA holds the sets that the scout was trained on; measured are pages that its training held out (held_out.py). The
scout was trained with one question in twenty left out, so it answers an empty question with what is usually asked.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from texturevlm.allocate import ALLOCATORS
from texturevlm.relevance import Balance, PriorScorer, Relevance, prepare
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import held_out
from texturevlm_lab.studies.study import OCR, READINGS, study_main

SALIENCE, PRIOR = "salience", "scout, nothing asked"
EXPLORE = (0.1, 0.5)  # shares of salience in the mixture that are tried


def guesses(texture: Texture) -> dict[str, Relevance]:
    """The relevance by each method."""
    maps = prepare(texture, "none", patch=held_out.PATCH).maps
    found = {SALIENCE: Balance().weigh(None, maps, texture.size)}
    scorer = PriorScorer()
    query, _ = scorer.score(scorer.prepare(texture), "", maps)
    for explore in EXPLORE:
        balance = Balance(explore=explore)
        found[f"{PRIOR}, {explore:g} of salience"] = balance.weigh(query, maps, texture.size, scorer.name)
    return found


def variants(texture: Texture, samples: Sequence[Sample]) -> list[dict[str, Allocation]]:
    """The tokens by each guess, the same for all questions."""
    chosen = {
        f"{budget}/{method}": ALLOCATORS["auto"](texture, relevance, budget=budget, patch=held_out.PATCH)
        for method, relevance in guesses(texture).items()
        for budget in held_out.BUDGETS
    }
    return [chosen] * len(samples)


def study(options: argparse.Namespace) -> dict[str, Any]:
    return held_out.compare_variants(options, variants, SALIENCE)


def report(record: dict[str, Any]) -> str:
    about = "Legibility of answers to questions that were not asked; allocator `auto`."
    title = "Nothing is asked: salience against what the scout knows about usual questions"
    return held_out.variants_page(title, about, record)


main = study_main(__name__, __doc__, study, report, OCR, READINGS)
