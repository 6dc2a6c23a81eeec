"""How many cells a search reads if runs of cells are skipped by their maxima, against a look at every cell.

    python -m studies.cells_read DATA --out DIR [--limit N]

DATA is a folder like docvqa_half. For one question per page of the train split, relevance by the scout and by nothing
asked; the search is that of `layers` for 273 tokens. The tokens are the same either way (tests/allocate/test_runs.py).
"""

import argparse
from itertools import pairwise
from statistics import mean
from typing import Any

from studies.study import evenly, provenance, study_main
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.layers import layered
from texturevlm.allocate.search import OVERVIEW
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.evaluate.data import load_data
from texturevlm.evaluate.markdown import markdown_page, markdown_table
from texturevlm.progress import Progress
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture

PAGES = 24
BINS = (0.0, 0.15, 0.3, 1.0)  # of the share of cells with ink
SCORERS = ("scout", "none")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    pages = {sample.image: sample for sample in load_data(options.data, split="train").samples}
    chosen = evenly(list(pages.values()), options.limit or PAGES)
    rows: list[dict[str, Any]] = []
    progress = Progress(len(chosen), "pages")
    for sample in chosen:
        texture = Texture.open(sample.image).mipmapped()
        for scorer in SCORERS:
            question = sample.question if scorer == "scout" else ""
            cells = Cells.of(find_relevance(texture, question, patch=PATCH, relevance=scorer), 0, PATCH)
            layered(cells, BUDGET, OVERVIEW)
            looks = cells.reads.of / cells.mass.size
            row = {"scorer": scorer, "page": sample.image.name, "ink": float(cells.ink.mean()), "looks": looks}
            rows.append(row | {"read": cells.reads.share})
        progress.step()
    return {"rows": rows, "pages": len(chosen), "data": options.data.name}


def report(found: dict[str, Any]) -> str:
    table = []
    for scorer in SCORERS:
        for low, high in pairwise(BINS):
            some = [row for row in found["rows"] if row["scorer"] == scorer and low <= row["ink"] < high]
            if some:
                ink, looks, read = (mean(row[name] for row in some) for name in ("ink", "looks", "read"))
                worst = max(row["read"] for row in some)
                table.append([scorer, len(some), f"{ink:.2f}", f"{looks:.0f}", f"{read:.3f}", f"{worst:.3f}"])
    return markdown_page(
        "# Cells that a search reads",
        f"{found['pages']} pages of {found['data']} (`train`), `layers` with {BUDGET} tokens. A look at every cell is "
        "1. Making the maxima is counted.",
        markdown_table(("relevance", "pages", "cells with ink", "looks", "cells read", "at most"), table),
        provenance(found),
    )


main = study_main(__name__, __doc__, measure, report)
