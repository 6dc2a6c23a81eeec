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
BINS = (0.0, 0.05, 0.08, 0.12, 0.2, 0.4, 1.0)  # of the share of cells that are above a threshold
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
            rows.append(row | {"read": cells.reads.share, "cuts": cells.reads.cuts})
        progress.step()
    return {"rows": rows, "pages": len(chosen), "data": options.data.name}


def report(found: dict[str, Any]) -> str:
    cuts, totals = [], []
    for scorer in SCORERS:
        rows = [row for row in found["rows"] if row["scorer"] == scorer]
        for low, high in pairwise(BINS):
            some = [cut for row in rows for cut in row["cuts"] if low <= cut[0] < high]
            if some:
                passing, read = (mean(column) for column in zip(*some))
                numbers = (passing, read, max(cut[1] for cut in some))
                cuts.append([scorer, len(some), f"{low:g} to {high:g}", *(f"{one:.3f}" for one in numbers)])
        means = [mean(row[name] for row in rows) for name in ("ink", "looks", "read")]
        totals.append([scorer, len(rows), *(f"{one:.2f}" for one in means)])
    return markdown_page(
        "# Cells that a search reads",
        f"{found['pages']} pages of {found['data']} (`train`), `layers` with {BUDGET} tokens. Shares of all cells.",
        "## Which cells are above a threshold",
        markdown_table(("relevance", "cuts", "share above", "mean", "cells read", "at most"), cuts),
        "## The whole search",
        "With the values that are computed for each scale, and with making the maxima.",
        markdown_table(("relevance", "pages", "cells with ink", "looks", "cells read"), totals),
        provenance(found),
    )


main = study_main(__name__, __doc__, measure, report)
