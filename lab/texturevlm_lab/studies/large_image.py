"""A question to an image of 20,000 × 20,000 pixels: what is read, what it costs, and how legible the answer is.

    python -m texturevlm_lab.studies.large_image DATA --out DIR [--limit N] [--split S] [--across N] [--side N]

DATA is a folder like docvqa_half. Sheets of --across × --across pages of different documents, enlarged to fill them,
with the grain of a scanner, are written as flat files into a temporary folder and made pyramids as `texturevlm pyramid`
does. One page of each sheet has a located answer and is asked about, by a process of its own: `texturevlm look SHEET
--query … --relevance scout`, whose memory and time are measured. The same choice, made once more here, says how finely
the answer's box is sampled.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import texturevlm as tv
from texturevlm.allocate.value import delivered_scale
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.relevance import find_relevance
from texturevlm.virtual import build_pyramid
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.place_measures import legible_at
from texturevlm_lab.studies.study import SPLIT, each, option, provenance, study_main

SCORER = "scout"
GRAIN = 4  # grey levels of 255: without it, pages that were enlarged would hardly have bytes at their finest level


def sheets_of(samples: Sequence[Sample], each: int, count: int | None) -> list[list[Sample]]:
    """Per sheet, samples of `each` different pages, the first one with a located answer."""
    by_page = {sample.image: sample for sample in reversed(samples)}
    asked = [sample for sample in by_page.values() if sample.boxes]
    others = [sample for sample in by_page.values() if not sample.boxes] + asked[::-1]
    found = []
    for number, first in enumerate(asked[:count]):
        rest = [other for other in others if other.image != first.image]
        start = number * (each - 1) % max(1, len(rest) - each)
        found.append([first, *rest[start : start + each - 1]])
    if not found:
        raise ValueError("DATA must have questions whose answers are located, got none")
    return found


def write_sheet(samples: Sequence[Sample], across: int, side: int, number: int, path: Path) -> tuple[int, int, float]:
    """Pages side by side on white; where the first one lies (x, y), and how many times it is enlarged."""
    import pyvips

    cell, place = side // across, number % (across * across)
    order = [*samples[1 : place + 1], samples[0], *samples[place + 1 :]]
    pages, box = [], (0, 0, 1.0)
    for index, sample in enumerate(order):
        image = pyvips.Image.new_from_file(str(sample.image)).colourspace("srgb")[0:3]
        scale = min(cell / image.width, cell / image.height)
        if index == place:
            box = (index % across * cell, index // across * cell, image.width * scale / sample.size[1])
        image = image.resize(scale)
        pages.append(image.embed(0, 0, cell, cell, extend="white"))
    sheet = pyvips.Image.arrayjoin(pages, across=across)
    grain = pyvips.Image.gaussnoise(sheet.width, sheet.height, mean=0, sigma=GRAIN, seed=number)
    (sheet + grain).cast("uchar").copy(interpretation="srgb").jpegsave(str(path), Q=90)
    return box


def look(pyramid: Path, question: str, folder: Path) -> dict[str, float]:
    """Seconds and memory of a process of its own, and what it says that it read."""
    call = [sys.executable, "-m", "texturevlm.cli", "look", str(pyramid), "--query", question]
    call += ["--relevance", SCORER, "--out", str(folder / "look.png"), "--device", "cpu"]
    start = time.perf_counter()
    process = subprocess.Popen(call, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise ValueError(f"large_image: {' '.join(call[2:5])} failed with status {os.waitstatus_to_exitcode(status)}")
    seconds = {"wall seconds": time.perf_counter() - start, "CPU seconds": usage.ru_utime + usage.ru_stime}
    return {**seconds, "peak memory in MB": usage.ru_maxrss * 1024 / 1e6}


def chosen(pyramid: Path, sample: Sample, box: tuple[int, int, float]) -> dict[str, float]:
    """What the choice reads, and how legible the answer is by it and by one scale for the whole sheet."""
    texture = tv.Texture.open(pyramid)
    relevance = find_relevance(texture, sample.question, relevance=SCORER)
    allocation = tv.choose_tokens(texture, relevance=relevance)
    tv.sample(texture, allocation)
    assert texture.pages is not None
    done, total = texture.pages.counters, texture.pages.mips.source.total_bytes
    x, y, times = box
    answers = [[place + times * edge for place, edge in zip((x, y, x, y), one)] for one in sample.boxes]
    plain = tv.choose_tokens(texture, relevance=relevance, allocator="resize")
    found = {"pages read": float(done.pages_read), "share of bytes read": done.bytes_read / total}
    for name, one in (("pages", allocation), ("resized", plain)):
        scales = delivered_scale(one, relevance.grid)[0].numpy()
        found[f"legibility, {name}"] = max(legible_at(answer, scales, texture.size) for answer in answers)
    return found


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    samples = load_data(options.data, split=options.split).samples
    sheets = sheets_of(samples, options.across**2, options.limit or 8)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, sheet in enumerate(each(sheets, "sheets")):
            flat = folder / "sheet.jpg"
            box = write_sheet(sheet, options.across, options.side, number, flat)
            pyramid = build_pyramid(flat)
            seen = {**look(pyramid, sheet[0].question, folder), **chosen(pyramid, sheet[0], box)}
            rows.append({**seen, "pyramid in MB": pyramid.stat().st_size / 1e6})
    names = ("legibility, pages", "legibility, resized")
    return {
        "split": options.split,
        "side": options.side,
        "across": options.across,
        "rows": rows,
        "lead": list(paired_difference(*([row[name] for row in rows] for name in names))),
    }


def report(record: dict[str, Any]) -> str:
    rows = record["rows"]
    table = [
        (name, f"{np.median([row[name] for row in rows]):.4g}", f"{max(row[name] for row in rows):.4g}")
        for name in rows[0]
        if not name.startswith("legibility")
    ]
    legible = []
    for label in ("pages", "resized"):
        own = [row[f"legibility, {label}"] for row in rows]
        mean = paired_difference(own, [0.0] * len(own), groups=range(len(own)))
        legible.append((label, len(own), format_interval(list(mean), ".2f")))
    return markdown_page(
        f"# A question to {record['side']} × {record['side']} pixels",
        provenance(record),
        f"Sheets of {record['across']} × {record['across']} pages (`{record['split']}`), enlarged, with grain of "
        f"{GRAIN} grey levels, one question each, {BUDGET} tokens of {PATCH}×{PATCH}, relevance `{SCORER}`. Two CPU "
        "cores that others used too, one thread. Memory and time are those of the process of `texturevlm look`, with "
        "its start and its picture.",
        markdown_table(("of one question", "median", "most"), table),
        markdown_table(("tokens", "n", "legibility of the answer"), legible),
        f"Legibility is that of text as high as the answer's box. Lead over the whole sheet at one scale, paired by "
        f"sheet: {format_interval(record['lead'], '+.2f')}.",
    )


OPTIONS = (
    option("--across", type=int, default=3, metavar="N", help="pages along a side of a sheet (default: 3)"),
    option("--side", type=int, default=20000, metavar="N", help="pixels along a side of a sheet (default: 20000)"),
)
main = study_main(__name__, __doc__, study, report, SPLIT, *OPTIONS)
