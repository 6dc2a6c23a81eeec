"""`texturevlm bench allocate`: from an image to its patches, beside the same cascade by others' means, in one run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.auto import auto
from texturevlm.allocate.cascade import cascade, plans_for
from texturevlm.bench import timing
from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.bench.vectorised import Vectorised, informed, plain_pytorch
from texturevlm.capture import CompiledChooser, compile
from texturevlm.ops.legibility import legibility
from texturevlm.ops.mip import mipmap
from texturevlm.pipeline import choose_tokens
from texturevlm.relevance import find_relevance, prepare
from texturevlm.relevance.maps import cell_level
from texturevlm.relevance.salience import cell_maps, salience
from texturevlm.sampling import sample
from texturevlm.types import Texture

SIDE, BUDGET, PATCH, BATCH = 1024, 273, 32, 32
PAGE = (2200, 1700)
BARS = {
    "captured": 250.0,
    "uncaptured": 1500.0,
    "an image of a batch": 60.0,
    "page": 1.5e6,
}  # microseconds
TIMES = {"PyTorch compiled": 5.0, "PyTorch, a patch at a time": 90.0}  # how many times slower they are to be
WORK = f"image → patches, {SIDE}², {BUDGET} tokens"


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Measure everything; `quick` leaves out torch.compile and most repetitions."""
    report = begin("Allocation", device)
    if report.device == "cuda":
        _on_gpu(report, quick)
    else:
        _on_cpu(report, quick)
    return report


def picture(batch: int, height: int, width: int) -> Tensor:
    """Smooth blobs, and lines of strokes on a light ground in the upper half: (B, 3, H, W)."""
    image = functional.interpolate(torch.rand(batch, 3, 24, 24), (height, width), mode="bilinear")
    image[..., : height // 2, :] = 0.95
    letters = (torch.rand(batch, 1, height // 2, width // 4) > 0.5).float().repeat_interleave(4, -1)
    lines = (torch.arange(height // 2) % 20 < 12).float()[:, None]
    marked = (letters * lines * (torch.arange(letters.shape[-1]) % 400 < 330)) > 0
    image[..., : height // 2, : letters.shape[-1]] *= 1 - 0.9 * marked
    return image


def paper(batch: int, height: int, width: int) -> Tensor:
    """Lines of words of strokes on white, in paragraphs, with a margin: (B, 3, H, W). `picture` is a photograph."""
    strokes = (torch.rand(batch, 1, height, -(-width // 3)) > 0.4).float().repeat_interleave(3, -1)[..., :width]
    words = (torch.rand(batch, 1, height // 28 + 1, width // 30 + 1) > 0.2).float()
    words = words.repeat_interleave(28, -2)[..., :height, :].repeat_interleave(30, -1)[..., :width]
    rows, columns = torch.arange(height), torch.arange(width)
    lines = (rows % 28 < 12) & (rows % 280 < 224) & (rows > height // 12)
    page = lines[:, None] & (columns > width // 12) & (columns < width - width // 12)
    return (1 - 0.9 * strokes * words * page).expand(-1, 3, -1, -1).contiguous()


def _on_gpu(report: Report, quick: bool) -> None:
    def add(work: str, by: str, how: str, measured: Timing, bar: float | None = None) -> float:
        report.rows.append(Row(work, by, how, measured, bar=bar))
        return measured.median

    repeats = 5 if quick else 15
    image = picture(1, SIDE, SIDE).cuda()
    captured = compile((SIDE, SIDE), BUDGET, "cascade", relevance="none")
    plain = CompiledChooser(BUDGET, "cascade", patch=PATCH, relevance="none", graphs=0)
    call, uncaptured = partial(captured, image), partial(plain, image)
    ours = add(WORK, "captured", "host", timing.host(call, repeats=repeats), BARS["captured"])
    if captured.reason is not None:
        report.notes.append(f"NOT captured: {captured.reason}")
    add(WORK, "captured", "one call", _one_call(call), BARS["captured"])
    add(WORK, "uncaptured", "host", timing.host(uncaptured, repeats=repeats), BARS["uncaptured"])
    add(WORK, "uncaptured", "one call", _one_call(uncaptured), BARS["uncaptured"])
    add(WORK, "uncaptured", "warm", timing.device_warm(uncaptured))
    many = picture(BATCH, SIDE, SIDE).cuda()
    measured = _scaled(timing.host(partial(plain, many), calls=20, repeats=repeats), BATCH)
    add(f"{WORK}, an image of {BATCH}", "uncaptured", "host", measured, BARS["an image of a batch"])
    del many
    _stages(add, image)
    add("capturing another size", "compile", "one call", _recaptures(2 if quick else 5))
    _auto_rows(report, add, repeats)
    slower = _vectorised_rows(report, add, image, mode=None)
    if not quick:
        slower |= _vectorised_rows(report, add, image, mode="default")
    slower["PyTorch, a patch at a time"] = _looped(add, image)
    for by, median in slower.items():
        bar = f" (bar: {TIMES[by]:g})" if by in TIMES else ""
        report.notes.append(f"captured is {median / ours:.1f} × as fast as {by}{bar}.  ")
    report.notes += [
        "host: wall clock a call from Python in steady state, the larger of host and device time. one call: wall clock",
        "until the GPU is done. warm: device time from a captured graph of many. PyTorch: the same maps, plans and",
        "selection by the references, windows by pooling, samples by gathering (bench/vectorised.py). In a graph: all",
        "that torch.compile made, captured as a whole, more than its mode reduce-overhead does. A patch at a time: the",
        "same maps by PyTorch, one plan of the nine, a tile's gain summed and a patch resized by a call each.",
        "auto, searched on the CPU: the same maps on the GPU, the squares or tiles by the references.",
    ]


Add = Callable[..., float]


def _stages(add: Add, image: Tensor) -> None:
    """What each stage takes by itself."""
    texture = Texture((image,)).mipmapped()
    cell = cell_level(texture.size, PATCH)
    relevance = find_relevance(texture, relevance="none", patch=PATCH)
    prepared = prepare(texture, "none", patch=PATCH)
    allocation = cascade(texture, relevance, budget=BUDGET, patch=PATCH)
    stages: dict[str, Callable[[], object]] = {
        "mips": partial(mipmap, image),
        "maps of information and salience": partial(cell_maps, texture, cell),
        "balance": partial(find_relevance, texture, relevance=prepared, patch=PATCH),
        "cascade": partial(cascade, texture, relevance, budget=BUDGET, patch=PATCH),
        "samples": partial(sample, texture, allocation, backend="cuda"),
    }
    for name, call in stages.items():
        add(f"stage: {name}", "cuda", "warm", timing.device_warm(call))


def _auto_rows(report: Report, add: Add, repeats: int) -> None:
    """auto on pages (layers) and photographs (density), beside its search on the CPU."""
    images = {
        f"a photograph of {SIDE}²": picture(1, SIDE, SIDE),
        f"a page of {SIDE}²": paper(1, SIDE, SIDE),
        f"a page of {PAGE[1]}×{PAGE[0]}": paper(1, *PAGE),
    }
    for name, image in images.items():
        image = image.cuda()
        work = f"image → patches by auto, {name}, {BUDGET} tokens"
        captured = compile((image.shape[2], image.shape[3]), BUDGET, "auto")
        plain = CompiledChooser(BUDGET, "auto", patch=PATCH, relevance="none", graphs=0)
        searching = CompiledChooser(BUDGET, "auto", patch=PATCH, relevance="none", graphs=0, backend="reference")
        call = partial(captured, image)
        add(work, "captured", "host", timing.host(call, repeats=repeats))
        if captured.reason is not None:
            report.notes.append(f"NOT captured: {captured.reason}")
        add(work, "captured", "one call", _one_call(call))
        add(work, "uncaptured", "host", timing.host(partial(plain, image), repeats=repeats))
        add(work, "searched on the CPU", "host", timing.host(partial(searching, image), calls=3, repeats=3))
        texture = Texture((image,)).mipmapped()
        relevance = find_relevance(texture, relevance="none", patch=PATCH)
        chosen = partial(auto, texture, relevance, budget=BUDGET, patch=PATCH)
        add(f"stage: auto, {name}", "cuda", "warm", timing.device_warm(chosen))


def _vectorised_rows(report: Report, add: Add, image: Tensor, *, mode: str | None) -> dict[str, float]:
    """Plain PyTorch, eager or under torch.compile, or why not."""
    by = "PyTorch" if mode is None else "PyTorch compiled"
    found: dict[str, float] = {}
    try:
        with plain_pytorch(), torch.no_grad():
            function = Vectorised(image, budget=BUDGET, patch=PATCH, mode=mode)
            if mode is not None:
                report.notes.append(f"torch.compile took {function.seconds:.0f} s.  ")
            report.notes += [
                f"It cannot take {part}, which stays eager: {why}  " for part, why in function.eager.items()
            ]
            call = partial(function, image)
            found[by] = add(WORK, by, "host", timing.host(call, calls=5, repeats=3))
            found[f"{by}, in a graph"] = add(WORK, f"{by}, in a graph", "warm", timing.device_warm(call, repeats=5))
    except Exception as error:  # a missing compiler, a failed capture: the table says which, and this where
        traceback.print_exc()
        report.rows.append(Row(WORK, by, f"failed: {str(error).splitlines()[0][:80]}", None))
    return found


def _looped(add: Add, image: Tensor) -> float:
    with plain_pytorch():
        call = partial(_patch_at_a_time, image)
        return add(WORK, "PyTorch, a patch at a time", "host", timing.host(call, calls=1, repeats=3))


def _on_cpu(report: Report, quick: bool) -> None:
    texture = Texture.open(paper(1, *PAGE))
    for allocator in ("auto", "cascade"):
        work = f"page of {PAGE[1]}×{PAGE[0]} in memory → {BUDGET} patches, no OCR"
        measured = timing.cpu(partial(_page, texture, allocator), repeats=3 if quick else 7)
        report.rows.append(Row(work, allocator, "cpu", measured, bar=BARS["page"]))
    report.notes.append("cpu: wall clock of one call: mips, maps of information and salience, allocation, samples.")


def _page(texture: Texture, allocator: str) -> Tensor:
    texture = texture.mipmapped()
    allocation = choose_tokens(texture, budget=BUDGET, patch=PATCH, allocator=allocator, relevance="none")
    return sample(texture, allocation).pixels


def _maps(levels: list[Tensor], cell: int) -> tuple[Tensor, Tensor, Tensor]:
    half, ink, scene = informed(levels, cell)
    return salience(levels, cell, half, ink, scene), half, ink


def _patch_at_a_time(image: Tensor) -> Tensor:
    """One plan, tile by tile: what a first version looks like."""
    size = (image.shape[2], image.shape[3])
    mass, half, ink = (part[0] for part in _maps(mipmap(image), cell_level(size, PATCH)))
    plan = plans_for(size, budget=BUDGET, patch=PATCH)[0]
    side = SIDE / plan.columns
    tiles = [(column * side, row * side, side) for row in range(plan.rows) for column in range(plan.columns)]
    finest = side / PATCH
    for stage in plan.stages:
        finest /= stage.across
    done: list[tuple[float, float, float]] = []
    for stage in plan.stages:
        gain = mass * ink * (legibility(half, finest) - legibility(half, tiles[0][2] / PATCH))
        ranked = sorted(tiles, key=lambda tile: -_gain(gain, tile))
        count = min(stage.survivors, (BUDGET - len(done) - len(tiles)) // (stage.across * stage.down - 1))
        done += ranked[count:]
        tiles = [
            (x + across * part, y + down * part, part)
            for x, y, side in ranked[:count]
            for part in [side / stage.across]
            for down in range(stage.down)
            for across in range(stage.across)
        ]
    patches = []
    for x, y, side in [*done, *tiles]:
        crop = image[..., int(y) : int(y + side), int(x) : int(x + side)]
        patches.append(functional.interpolate(crop, (PATCH, PATCH), mode="bilinear", antialias=True))
    return torch.cat(patches)


def _gain(gain: Tensor, tile: tuple[float, float, float]) -> float:
    x, y, side = (edge * gain.shape[0] / SIDE for edge in tile)
    return float(gain[round(y) : round(y + side), round(x) : round(x + side)].sum())


def _one_call(work: Callable[[], object], repeats: int = 50) -> Timing:
    """Wall clock from the call until the GPU is done."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e6)
    return Timing.of(samples)


def _recaptures(count: int) -> Timing:
    """Wall clock of a call with a size that was not seen before."""
    samples = []
    for index in range(count):
        image = picture(1, SIDE - 8 * (index + 1), SIDE).cuda()
        look = CompiledChooser(BUDGET, "cascade", patch=PATCH, relevance="none")
        torch.cuda.synchronize()
        started = time.perf_counter()
        look(image)
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e6)
    return Timing.of(samples)


def _scaled(measured: Timing, images: int) -> Timing:
    return replace(measured, **{name: getattr(measured, name) / images for name in ("median", "low", "high")})
