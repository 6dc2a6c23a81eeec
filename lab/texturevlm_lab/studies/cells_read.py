"""How many cells a search reads if runs of cells are skipped by their maxima, against a look at every cell.

    python -m texturevlm_lab.studies.cells_read DATA --out DIR [--limit N] [--device D]

DATA is a folder like docvqa_half. For one question per page of the train split, relevance by the scout and by nothing
asked; the search is that of `layers` for 273 tokens. The tokens are the same either way (tests/allocate/test_runs.py).
On a GPU the search of the kernels is counted too, and its tokens are compared with those of the CPU's.
"""

import argparse
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.cells import RUN, Cells
from texturevlm.allocate.layers import layered, layers, layers_by_kernel
from texturevlm.allocate.search import OVERVIEW
from texturevlm.channels.pretrained import torch_device
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.types import COLUMNS, Texture
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import DEVICE, device_of, each, evenly, provenance, study_main

PAGES = 24
BINS = (0.0, 0.05, 0.08, 0.12, 0.2, 0.4, 1.0)  # of the share of cells that are above a threshold
SCORERS = ("scout", "none")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    pages = {sample.image: sample for sample in load_data(options.data, split="train").samples}
    chosen = evenly(list(pages.values()), options.limit or PAGES)
    device = torch_device("cells_read", device_of(options))
    rows: list[dict[str, Any]] = []
    for sample in each(chosen, "pages"):
        texture = Texture.open(sample.image, device=device).mipmapped()
        for scorer in SCORERS:
            question = sample.question if scorer == "scout" else ""
            maps = find_relevance(texture, question, patch=PATCH, relevance=scorer)
            cells = Cells.of(maps, 0, PATCH)
            layered(cells, BUDGET, OVERVIEW)
            looks = cells.reads.of / cells.mass.size
            row = {"scorer": scorer, "page": sample.image.name, "ink": float(cells.ink.mean()), "looks": looks}
            row |= {"read": cells.reads.share, "cuts": cells.reads.cuts}
            rows.append(row | (kernels(texture, maps) if device.type == "cuda" else {}))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"rows": rows, "pages": len(chosen), "data": options.data.name, "device": name}


def kernels(texture: Texture, maps: Relevance) -> dict[str, Any]:
    """What the kernels read, and whether their tokens are those of the CPU's search, bit for bit."""
    cuts: list[Tensor] = []
    found = layers_by_kernel("cells_read", maps, BUDGET, PATCH, OVERVIEW, "cuda", cuts=cuts)
    wanted = layers(texture, maps, budget=BUDGET, patch=PATCH, backend="reference")
    same = found is not None and all(torch.equal(getattr(found, one), getattr(wanted, one)) for one in COLUMNS)
    tried = cuts[0][cuts[0][:, 0] > 0].double() / maps.mass[0].numel()
    return {"kernel_cuts": tried.tolist(), "same": same}


def report(found: dict[str, Any]) -> str:
    cuts, totals = [], []
    searches = {"CPU": "cuts"} | ({"GPU": "kernel_cuts"} if "same" in found["rows"][0] else {})
    for scorer in SCORERS:
        rows = [row for row in found["rows"] if row["scorer"] == scorer]
        for search, name in searches.items():
            for low, high in pairwise(BINS):
                some = [cut for row in rows for cut in row[name] if low <= cut[0] < high]
                if some:
                    passing, read = (mean(column) for column in zip(*some))
                    numbers = (passing, read, max(cut[1] for cut in some))
                    cuts.append([search, scorer, len(some), f"{low:g} to {high:g}", *(f"{one:.3f}" for one in numbers)])
        means = [mean(row[name] for row in rows) for name in ("ink", "looks", "read")]
        totals.append([scorer, len(rows), *(f"{one:.2f}" for one in means)])
    compared = [row["same"] for row in found["rows"] if "same" in row]
    same = f" The kernels chose the CPU's tokens in {sum(compared)} of {len(compared)} searches." if compared else ""
    return markdown_page(
        "# Cells that a search reads",
        f"{found['pages']} pages of {found['data']} (`train`), `layers` with {BUDGET} tokens, {found['device']}. "
        f"Shares of all cells; maxima, one of {RUN} cells, are not among them.{same}",
        "## Which cells are above a threshold",
        markdown_table(("search", "relevance", "cuts", "share above", "mean", "cells read", "at most"), cuts),
        "## The whole search, on the CPU",
        "With the values that are computed for each scale, and with making the maxima.",
        markdown_table(("relevance", "pages", "cells with ink", "looks", "cells read"), totals),
        provenance(found),
    )


main = study_main(__name__, __doc__, measure, report, DEVICE)
