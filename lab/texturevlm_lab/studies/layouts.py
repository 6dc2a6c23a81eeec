"""Which layout, and which settings of `auto`, are best where tokens are scarce, with the scout.

    python -m texturevlm_lab.studies.layouts DATA --out DIR [--limit N] [--ocr E,E] [--readings DIR] [--sets A,B]

Other allocators, and `auto` with one setting changed: how much finer than it looks print counts (finer), the share of
tokens for the rest of the page (overview), how far the question is trusted (explore, focus, the learned balance), and
relevance that is spread to neighbouring cells (margin). Pages are those that the training of the scout held out
(held_out.py).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.nn import functional

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice
from texturevlm.relevance import Balance, Prepared, Relevance, prepare
from texturevlm.relevance.maps import normalised
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page
from texturevlm_lab.studies import held_out
from texturevlm_lab.studies.study import OCR, READINGS, option, provenance, study_main

BASELINE = "auto"
SETS = ("docvqa_half", "sroie", "funsd")
OTHERS = ("dag", "fixations")
BALANCES: dict[str, str | Balance] = {
    "learned": "learned",
    "explore 0.02": Balance(explore=0.02),
    "focus 1.5": Balance(focus=1.5),
    **{f"finer {times:g}": Balance(particularise=times) for times in (0.87, 1.15, 1.25, 1.4)},
}
OVERVIEWS = (0.05,)
MARGINS = {"margin 3 × 3": (3, 3)}  # cells, down × across
Layout = Callable[..., Allocation]


def spread(relevance: Relevance, cells: tuple[int, int]) -> Relevance:
    """The mass averaged over so many cells (down, across), both odd, and kept where there is ink."""
    down, across = cells
    mass = functional.avg_pool2d(relevance.mass[:, None], cells, 1, (down // 2, across // 2))[:, 0]
    return replace(relevance, mass=normalised(mass * relevance.ink))


def layouts(prepared: Prepared, question: str) -> dict[str, tuple[Layout, Relevance]]:
    """Variant → an allocator and the relevance that it gets."""
    shipped, auto = prepared.find(question), ALLOCATORS[BASELINE]
    found: dict[str, tuple[Layout, Relevance]] = {name: (ALLOCATORS[name], shipped) for name in (BASELINE, *OTHERS)}
    found |= {name: (auto, prepared.find(question, balance=balance)) for name, balance in BALANCES.items()}
    found |= {f"overview {share:g}": (partial(auto, overview=share), shipped) for share in OVERVIEWS}
    return found | {name: (auto, spread(shipped, cells)) for name, cells in MARGINS.items()}


def variants(texture: Texture, samples: Sequence[Sample]) -> list[dict[str, Allocation]]:
    """For each sample its tokens by each variant."""
    prepared = prepare(texture, "scout", patch=held_out.PATCH)
    return [
        {
            f"{budget}/{name}": choose(texture, relevance, budget=budget, patch=held_out.PATCH)
            for name, (choose, relevance) in layouts(prepared, sample.question).items()
            for budget in held_out.BUDGETS
        }
        for sample in samples
    ]


def study(options: argparse.Namespace) -> dict[str, Any]:
    wanted = options.sets.split(",")
    for name in wanted:
        check_choice("layouts", "--sets", name, SETS)
    return {"sets": {name: held_out.compare_variants(options, variants, BASELINE, name) for name in wanted}}


def report(record: dict[str, Any]) -> str:
    parts = []
    for name, own in record["sets"].items():
        parts += [f"## {name}", held_out.counted(own), held_out.variants_table(own)]
    engines = next(iter(record["sets"].values()))["ocr"].values()
    return markdown_page(
        "# Which layout where tokens are scarce",
        provenance(record, *engines),
        f"Legibility with the scout. `{BASELINE}` is `layers` here, and a variant without an allocator is a setting of "
        f"it: `finer` counts print as so many times finer than it looks. {held_out.PAIRED}",
        *parts,
    )


main = study_main(
    __name__,
    __doc__,
    study,
    report,
    OCR,
    READINGS,
    option("--sets", default=",".join(SETS), metavar="A,B", help="data sets (default: all)"),
)
