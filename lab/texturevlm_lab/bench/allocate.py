"""`texturevlm bench allocate`: from an image to its patches, beside the same cascade in plain PyTorch, in one run."""

from __future__ import annotations

import time
import traceback
from functools import partial
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.auto import auto
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.ops.mip import mipmap
from texturevlm.placement import TokenConfig, choose_tokens
from texturevlm.placement.captured import MOST_GRAPHS, CompiledChooser, compile
from texturevlm.relevance import find_relevance, prepare
from texturevlm.relevance.information import cell_maps
from texturevlm.relevance.maps import cell_level
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm_lab.allocators.cascade import cascade
from texturevlm_lab.bench.baselines import plain_cascade, plain_pytorch
from texturevlm_lab.bench.pictures import SIDE, page, photograph
from texturevlm_lab.bench.report import Report, Row
from texturevlm_lab.bench.timing import Timing, Work, elapsed, waited

TITLE = "Allocation"
BATCH = 32
PAGE = (2200, 1700)
CAPTURED_BAR, UNCAPTURED_BAR, BATCH_BAR, PAGE_BAR = 250.0, 1500.0, 60.0, 1.5e6  # microseconds
TIMES_SLOWER = {"PyTorch compiled": 5.0}  # what the project asked for
WORK = f"image → patches, {SIDE}², {BUDGET} tokens"


def bench(report: Report) -> None:
    """Measure everything; a quick run leaves out torch.compile and most repetitions."""
    if report.device == "cuda":
        return _on_gpu(report)
    texture = Texture.open(page(1, *PAGE))
    for allocator in ("auto", "cascade"):
        work = f"page of {PAGE[1]}×{PAGE[0]} in memory → {BUDGET} patches, no OCR"
        report.add(work, allocator, partial(_patches, texture, allocator), "cpu", bar=PAGE_BAR)
    report.notes.append("cpu: wall clock of one call: mips, maps of information and salience, allocation, samples.")


def _patches(texture: Texture, allocator: str) -> Tensor:
    texture = texture.mipmapped()
    return sample(texture, choose_tokens(texture, allocator=allocator, relevance="none")).pixels


def _on_gpu(report: Report) -> None:
    image = photograph(1, SIDE, SIDE).cuda()
    ours = _captured(report, WORK, compile((SIDE, SIDE), BUDGET, "cascade", relevance="none"), image, CAPTURED_BAR)
    plain = _chooser("cascade", graphs=0)
    for state, bar in (("host", UNCAPTURED_BAR), ("one call", UNCAPTURED_BAR), ("warm", None)):
        report.add(WORK, "uncaptured", partial(plain, image), state, bar=bar)
    many = partial(plain, photograph(BATCH, SIDE, SIDE).cuda())
    report.add(
        f"{WORK}, per image of a batch of {BATCH}", "uncaptured", many, "host", bar=BATCH_BAR, per=BATCH, calls=20
    )
    del many
    _stages(report, image)
    recaptured = Timing.of([_recapture(index) for index in range(2 if report.quick else 5)])
    report.append(Row("capturing another size", "compile", "one call", recaptured))
    _auto(report)
    slower = _plain(report, image)
    for by, median in slower.items():
        asked = f" (bar: {TIMES_SLOWER[by]:g})" if by in TIMES_SLOWER else ""
        report.notes.append(f"captured is {median / ours:.1f} × as fast as {by}{asked}.  ")
    report.notes += [
        "host: wall clock per call from Python in steady state, the larger of host and device time. one call: wall",
        "clock until the GPU is done. warm: device time from a captured graph of many. PyTorch: the same maps, plans",
        "and selection by the references, windows by pooling, samples by grid_sample (bench/baselines.py). Compiled:",
        "all but the selection, which torch.compile cannot take. In a graph: the same, captured as a whole, more than",
        "reduce-overhead does.",
        "auto, searched on the CPU: the same maps on the GPU, the squares or tiles by the references.",
    ]


def _chooser(allocator: str, *, graphs: int = MOST_GRAPHS, **options: Any) -> CompiledChooser:
    return CompiledChooser(TokenConfig(BUDGET, allocator, "none", patch=PATCH, options=options), graphs)


def _captured(report: Report, work: str, chooser: CompiledChooser, image: Tensor, bar: float | None = None) -> float:
    call = partial(chooser, image)
    median = report.add(work, "captured", call, "host", bar=bar)
    if chooser.reason is not None:
        report.notes.append(f"NOT captured: {chooser.reason}")
    report.add(work, "captured", call, "one call", bar=bar)
    return median


def _recapture(index: int) -> float:
    """Wall clock of a call with a size that was not seen before."""
    image, chooser = photograph(1, SIDE - 8 * (index + 1), SIDE).cuda(), _chooser("cascade")
    torch.cuda.synchronize()
    return elapsed(waited(partial(chooser, image)))


def _stages(report: Report, image: Tensor) -> None:
    """What each stage takes by itself."""
    texture = Texture((image,)).mipmapped()
    relevance = find_relevance(texture, relevance="none")
    prepared = prepare(texture, "none")
    allocation = cascade(texture, relevance, budget=BUDGET, patch=PATCH)
    stages: dict[str, Work] = {
        "mips": partial(mipmap, image),
        "maps of information and salience": partial(cell_maps, texture, cell_level(texture.size, PATCH)),
        "balance": partial(find_relevance, texture, relevance=prepared),
        "cascade": partial(cascade, texture, relevance, budget=BUDGET, patch=PATCH),
        "samples": partial(sample, texture, allocation, backend="cuda"),
    }
    for name, call in stages.items():
        report.add(f"stage: {name}", "cuda", call)


def _auto(report: Report) -> None:
    """auto on pages (layers) and photographs (density), beside its search on the CPU."""
    images = {
        f"a photograph of {SIDE}²": photograph(1, SIDE, SIDE),
        f"a page of {SIDE}²": page(1, SIDE, SIDE),
        f"a page of {PAGE[1]}×{PAGE[0]}": page(1, *PAGE),
    }
    for name, image in images.items():
        image = image.cuda()
        work = f"image → patches by auto, {name}, {BUDGET} tokens"
        _captured(report, work, compile((image.shape[2], image.shape[3]), BUDGET, "auto", relevance="none"), image)
        report.add(work, "uncaptured", partial(_chooser("auto", graphs=0), image), "host")
        searching = partial(_chooser("auto", graphs=0, backend="reference"), image)
        report.add(work, "searched on the CPU", searching, "host", calls=3, repeats=3)
        texture = Texture((image,)).mipmapped()
        relevance = find_relevance(texture, relevance="none")
        chosen = partial(auto, texture, relevance, budget=BUDGET, patch=PATCH)
        report.add(f"stage: auto, {name}", "cuda", chosen)


def _plain(report: Report, image: Tensor) -> dict[str, float]:
    """Plain PyTorch, eager and under torch.compile, or why not; returns the medians."""
    found: dict[str, float] = {}
    with plain_pytorch(), torch.no_grad():
        for by in ("PyTorch",) if report.quick else ("PyTorch", "PyTorch compiled"):
            call = partial(plain_cascade((SIDE, SIDE), budget=BUDGET, patch=PATCH, compiled=by != "PyTorch"), image)
            try:
                started = time.perf_counter()
                call()
                if by != "PyTorch":
                    report.notes.append(f"torch.compile took {time.perf_counter() - started:.0f} s.  ")
                found[by] = report.add(WORK, by, call, "host", calls=5, repeats=3)
                found[f"{by}, in a graph"] = report.add(WORK, f"{by}, in a graph", call, "warm", repeats=5)
            except Exception as error:  # a missing compiler, a failed capture: the table says which, and this where
                traceback.print_exc()
                report.add_missing(WORK, by, error)
    return found
