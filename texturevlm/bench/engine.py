"""`texturevlm bench engine`: the engine's operations beside plain PyTorch, eager and compiled, in one run."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from texturevlm.bench import timing
from texturevlm.bench.baselines import grid_sampled, nvdiffrast_sampler, pooled
from texturevlm.bench.report import Report, Row, begin
from texturevlm.ops import DeviceTexture, channels_last, lookup, mipmap, sample_patches, update_region
from texturevlm.ops.lookup_reference import lattice

LEVELS = 5
PATCH = 16


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Measure everything; `quick` leaves out torch.compile and most repetitions."""
    report = begin("Engine", device)
    device = report.device
    bench = _Bench(report, device, quick)
    if device == "cuda":
        for part in (_mips, _patches, _filling, _from_python, _training, _updating, _layout, _points):
            part(bench)
        report.notes = [
            "warm: device time per call, from a captured graph of many. cold: one call after the L2 cache was flushed.",
            "host: wall clock per call from Python in a loop, the larger of host and device time.",
            "floor: each byte read or written once at this run's copy bandwidth; a small problem that stays in the",
            "L2 cache can go below it. Texture units: the texture is already filled, unless the row says otherwise.",
        ]
    else:
        _page(bench)
        report.notes = ["cpu: wall clock of one call. floor: each byte read or written once at the copy bandwidth."]
    return report


class _Bench:
    """Where rows are collected, and how work is timed on this device."""

    def __init__(self, report: Report, device: str, quick: bool) -> None:
        self.report, self.device, self.quick = report, device, quick

    def add(
        self,
        work: str,
        by: str,
        call: Callable[[], object],
        how: Callable[..., Any],
        *,
        moved: float = 0,
        bar: float | None = None,
    ) -> float:
        """Time `call`; `moved` is the least it must read and write, in bytes."""
        measured = how(call, repeats=5) if self.quick else how(call)
        floor = moved / self.report.bandwidth * 1e6 if moved else None
        self.report.rows.append(Row(work, by, how.__name__.removeprefix("device_"), measured, floor, bar))
        return float(measured.median)

    def add_compiled(
        self,
        work: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        how: Callable[..., Any],
        *,
        moved: float = 0,
        call_of: Callable[[Callable[..., Any]], Callable[[], object]] | None = None,
    ) -> None:
        """The baseline under torch.compile, or why not; `call_of` makes what is timed of it, if not a plain call."""
        if self.quick:
            return
        try:
            compiled = torch.compile(function)
            call = call_of(compiled) if call_of else partial(compiled, *arguments)
            call()
        except Exception as error:  # a missing compiler shows as many kinds of error; the table says which
            reason = str(error).splitlines()[0][:80]
            self.report.rows.append(Row(work, "PyTorch compiled", f"failed: {reason}", None))
            return
        self.add(work, "PyTorch compiled", call, how, moved=moved)

    def add_nvdiffrast(
        self, work: str, training: str, image: Tensor, points: Tensor, lod: Tensor, upstream: Tensor
    ) -> None:
        """nvdiffrast's sampler on the same points, or that it is not installed."""
        sampler = nvdiffrast_sampler(image, points, lod, LEVELS)
        if sampler is None:
            return self.report.rows.append(Row(work, "nvdiffrast", "not installed", None))
        forward, texels = sampler
        self.add(work, "nvdiffrast", partial(forward, True), timing.device_warm)

        def step() -> object:
            return torch.autograd.grad(forward(False), texels, upstream.view(1, 1, *upstream.shape[1:]))

        self.add(training, "nvdiffrast", step, timing.host)

    def add_kornia(self) -> None:
        """kornia's pyramid, or that it is not installed."""
        work = f"mips, {LEVELS} levels, 1×3×1024×1024"
        try:
            build_pyramid: Any = import_module("kornia.geometry.transform").build_pyramid
        except ImportError:
            return self.report.rows.append(Row(work, "kornia build_pyramid", "not installed", None))
        image = torch.rand(1, 3, 1024, 1024, device=self.device)
        self.add(work, "kornia build_pyramid", partial(build_pyramid, image, LEVELS), timing.device_warm)


def _random_footprints(count: int, size: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Patches at mixed fractional levels from 0 to 4: centre, ddx, ddy, and the scale alone."""
    centre = torch.rand(1, count, 2, device=device) * size
    scale = 2 ** (torch.rand(1, count, device=device) * (LEVELS - 1))
    zero = torch.zeros_like(scale)
    return centre, torch.stack([scale, zero], -1), torch.stack([zero, scale], -1), scale


def _pyramid_bytes(levels: list[Tensor]) -> float:
    return float(sum(level.numel() * level.element_size() for level in levels))


def _mips(bench: _Bench) -> None:
    bandwidth = bench.report.bandwidth
    for shape, bar in (
        ((1, 3, 1024, 1024), 6.0),
        ((1, 40, 1024, 1024), 0),
        ((32, 3, 1024, 1024), 0),
        ((1, 3, 4096, 4096), 0),
    ):
        image = torch.rand(shape, device="cuda")
        moved = _pyramid_bytes(mipmap(image, levels=LEVELS))
        work = "mips, {} levels, {}×{}×{}×{}".format(LEVELS, *shape)
        limit = bar or 1.15 * moved / bandwidth * 1e6
        bench.add(work, "cuda", partial(mipmap, image, levels=LEVELS), timing.device_warm, moved=moved, bar=limit)
        bench.add(work, "cuda", partial(mipmap, image, levels=LEVELS), timing.device_cold, moved=moved)
        bench.add(work, "reference", partial(mipmap, image, levels=LEVELS, backend="reference"), timing.device_warm)
        bench.add(work, "PyTorch avg_pool2d", partial(pooled, image, LEVELS), timing.device_warm, moved=moved)
        bench.add_compiled(work, pooled, (image, LEVELS), timing.device_warm, moved=moved)
    for shape in ((1, 3, 1024, 1024), (1, 40, 1024, 1024), (1, 3, 1700, 2200), (1, 3, 1699, 2201), (1, 40, 1080, 1920)):
        image = torch.rand(shape, device="cuda")
        work = "mips, all levels, {}×{}×{}×{}".format(*shape)
        moved = _pyramid_bytes(mipmap(image))
        bench.add(work, "cuda", partial(mipmap, image), timing.device_warm, moved=moved)


def _patches(bench: _Bench) -> None:
    bars = {(273, 40, "half"): 8.0, (4096, 40, "float"): 170.0}
    for channels in (3, 40):
        levels = mipmap(torch.rand(1, channels, 1024, 1024, device="cuda"), levels=LEVELS)
        textures = {"half": DeviceTexture(levels, half=True), "float": DeviceTexture(levels, half=False)}
        for count in (64, 273, 1024, 4096):
            centre, ddx, ddy, scale = _random_footprints(count, 1024, "cuda")
            work = f"{count} patches of {PATCH}×{PATCH}, {channels} channels"
            moved = 2.0 * 4 * count * channels * PATCH * PATCH
            for how in (timing.device_warm, timing.device_cold):
                for name, texture in textures.items():
                    call = partial(sample_patches, texture, centre, ddx, ddy, patch=PATCH)
                    bar = bars.get((count, channels, name)) if how is timing.device_warm else None
                    bench.add(work, f"texture units, {name}", call, how, moved=moved, bar=bar)
                call = partial(sample_patches, levels, centre, ddx, ddy, patch=PATCH, backend="cuda")
                bench.add(work, "cuda", call, how, moved=moved)
            if count in (273, 4096):
                plain = (levels, centre, scale, PATCH)
                bench.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain), timing.device_warm, moved=moved)
                bench.add_compiled(work, grid_sampled, plain, timing.device_warm, moved=moved)
        ratio = 4.0
        centre, ddx, ddy, _ = _random_footprints(273, 1024, "cuda")
        work = f"273 patches of {PATCH}×{PATCH}, {channels} channels, four times as wide as tall"
        for name, texture in textures.items():
            call = partial(sample_patches, texture, centre, ddx * ratio, ddy, patch=PATCH)
            bench.add(work, f"texture units, {name}", call, timing.device_warm)
        call = partial(sample_patches, levels, centre, ddx * ratio, ddy, patch=PATCH, backend="cuda")
        bench.add(work, "cuda", call, timing.device_warm)


def _filling(bench: _Bench) -> None:
    for channels in (3, 40):
        levels = mipmap(torch.rand(1, channels, 1024, 1024, device="cuda"), levels=LEVELS)
        for half in (True, False):
            name = "half" if half else "float"
            texture = DeviceTexture(levels, half=half)
            moved = _pyramid_bytes(levels) * (1.5 if half else 2.0)
            work = f"filling a texture, {channels} channels, {LEVELS} levels"
            bench.add(work, f"texture units, {name}", partial(texture.fill, levels), timing.device_warm, moved=moved)
            work = f"making, filling and dropping a texture, {channels} channels"
            bench.add(work, f"texture units, {name}", partial(DeviceTexture, levels, half=half), timing.host)


def _from_python(bench: _Bench) -> None:
    from texturevlm.sampling import sample
    from texturevlm.types import Allocation, Texture

    texture = Texture.open(torch.rand(3, 1024, 1024, device="cuda")).mipmapped(LEVELS)
    centre, ddx, ddy, scale = _random_footprints(273, 1024, "cuda")
    ones = torch.ones_like(scale)
    allocation = Allocation(centre, ddx, ddy, ones, ones.bool(), ones.long(), texture.size, PATCH)
    resident = DeviceTexture(texture.levels)
    work = f"273 patches of {PATCH}×{PATCH}, 3 channels, from Python"
    call = partial(sample_patches, texture.levels, centre, ddx, ddy, patch=PATCH)
    bench.add(work, "ops.sample_patches, cuda", call, timing.host, bar=60.0)
    call = partial(sample_patches, resident, centre, ddx, ddy, patch=PATCH)
    bench.add(work, "ops.sample_patches, texture units", call, timing.host, bar=60.0)
    bench.add(work, "sample(texture, allocation)", partial(sample, texture, allocation), timing.host)
    plain = (list(texture.levels), centre, scale, PATCH)
    bench.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain), timing.host)
    bench.add_compiled(work, grid_sampled, plain, timing.host)


def _training(bench: _Bench) -> None:
    image = torch.rand(1, 40, 1024, 1024, device="cuda", requires_grad=True)
    centre, ddx, ddy, scale = _random_footprints(273, 1024, "cuda")
    upstream = torch.randn(1, 273, 40, PATCH, PATCH, device="cuda")

    def ours() -> object:
        pixels = sample_patches(mipmap(image, levels=LEVELS), centre, ddx, ddy, patch=PATCH, backend="cuda")
        return torch.autograd.grad(pixels, image, upstream)

    def plain(image: Tensor) -> Tensor:
        return grid_sampled(pooled(image, LEVELS), centre, scale, PATCH)

    def step_of(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(image), image, upstream)

    work = "mips + 273 patches × 40 channels, forward and backward"
    bench.add(work, "cuda", ours, timing.device_warm, bar=450.0)
    bench.add(work, "cuda", ours, timing.host)
    bench.add(work, "PyTorch", step_of(plain), timing.device_warm)
    bench.add_compiled(work, plain, (image,), timing.device_warm, call_of=step_of)


def _updating(bench: _Bench) -> None:
    image = torch.rand(1, 40, 1080, 1920, device="cuda")
    levels = mipmap(image)
    one = torch.tensor([[[600, 300, 1056, 755]]], device="cuda", dtype=torch.int32)  # 10% of the frame in one piece
    corner = torch.rand(1, 20, 2, device="cuda") * torch.tensor([1920 - 102, 1080 - 102], device="cuda")
    many = torch.cat([corner, corner + 101.8], -1).int()  # the same area in 20 pieces
    full = bench.add("1080p, 40 channels: full rebuild", "cuda", partial(mipmap, image), timing.device_warm)
    for name, boxes in (("one piece", one), ("20 scattered pieces", many)):
        work = f"1080p, 40 channels: update of 10% in {name}"
        bar = full / 4 if boxes is one else None
        bench.add(work, "cuda", partial(update_region, levels, boxes), timing.device_warm, bar=bar)


def _layout(bench: _Bench) -> None:
    """Question 17: does it matter that all layers of a spot lie together in memory?"""
    levels = mipmap(torch.rand(1, 40, 1024, 1024, device="cuda"), levels=LEVELS)
    together = [level.contiguous(memory_format=torch.channels_last) for level in levels]
    points = torch.rand(1, 16384, 2, device="cuda") * 1024
    lod = torch.rand(1, 16384, device="cuda") * (LEVELS - 1)
    for how in (timing.device_warm, timing.device_cold):
        for name, pyramid in (("planar", levels), ("channels last", together)):
            call = partial(lookup, pyramid, points, lod, backend="cuda")
            bench.add("16384 scattered points, 40 channels", f"cuda, {name}", call, how)
    for count in (273, 4096):
        centre, ddx, ddy, _ = _random_footprints(count, 1024, "cuda")
        for name, pyramid in (("planar", levels), ("channels last", together)):
            call = partial(sample_patches, pyramid, centre, ddx, ddy, patch=PATCH, backend="cuda")
            bench.add(f"{count} patches, 40 channels", f"cuda, {name}", call, timing.device_warm)
        for half in (True, False):
            for pack in (1, 2, 4):
                texture = DeviceTexture(levels, half=half, pack=pack)
                call = partial(sample_patches, texture, centre, ddx, ddy, patch=PATCH)
                by = f"texture units, {'half' if half else 'float'}, {pack} channels per fetch"
                bench.add(f"{count} patches, 40 channels", by, call, timing.device_warm)


# µs of nvdiffrast's sampler on an H200, for points on the lattices of patches: forward captured in a graph; then mips,
# forward and backward as plain calls.
POINT_BARS = {(273, 3): (3.7, 439.0), (4096, 3): (19.9, 531.0), (273, 40): (22.0, 1672.0), (4096, 40): (657.0, 8445.0)}


def _points(bench: _Bench) -> None:
    """`lookup` of many points, in both layouts: on the lattices of patches, and scattered."""
    for (count, channels), (bar, training_bar) in POINT_BARS.items():
        image = torch.rand(1, channels, 1024, 1024, device="cuda", requires_grad=True)
        levels = [level.detach() for level in mipmap(image, levels=LEVELS)]
        work = f"{count}×{PATCH * PATCH} points, {channels} channels"
        convert = partial(channels_last, levels)
        bench.add(f"{channels} channels to channels last", "PyTorch copy", convert, timing.device_warm)
        layouts = {"planar": levels, "channels last": convert()}
        lattices = _lattice_points(count)
        scattered = torch.rand_like(lattices[0]) * 1024, torch.rand_like(lattices[1]) * (LEVELS - 1)
        for where, (points, lod) in {"patches": lattices, "scattered": scattered}.items():
            for layout, pyramid in layouts.items():
                call = partial(lookup, pyramid, points, lod, backend="cuda")
                limit = bar if where == "patches" and layout == "channels last" else None
                bench.add(f"{work}, {where}", f"cuda, {layout}", call, timing.device_warm, bar=limit)
            upstream = torch.randn(1, points.shape[1], channels, device="cuda")
            step = partial(_step, image, points, lod, upstream)
            training = f"mips + {work}, {where}, forward and backward"
            bench.add(training, "cuda", step, timing.host, bar=training_bar if where == "patches" else None)
            bench.add(training, "cuda, channels last", partial(step, channels_last), timing.host)
            bench.add_nvdiffrast(f"{work}, {where}", training, image, points, lod, upstream)
    bench.add_kornia()


def _lattice_points(count: int) -> tuple[Tensor, Tensor]:
    """The samples of `count` random patches as points (1, N, 2) and levels (1, N)."""
    centre, ddx, ddy, scale = _random_footprints(count, 1024, "cuda")
    points = lattice(centre, ddx, ddy, PATCH).flatten(1, 3)
    return points, scale.log2().repeat_interleave(PATCH * PATCH, 1)


def _step(
    image: Tensor, points: Tensor, lod: Tensor, upstream: Tensor, store: Callable[[list[Tensor]], list[Tensor]] = list
) -> object:
    return torch.autograd.grad(lookup(store(mipmap(image, levels=LEVELS)), points, lod), image, upstream)


def _page(bench: _Bench) -> None:
    """A 1700×2200 page on the CPU."""
    from texturevlm.sampling import sample_foveated
    from texturevlm.types import Texture

    image = torch.rand(1, 3, 2200, 1700)
    levels = mipmap(image)
    centre, ddx, ddy, scale = _random_footprints(273, 1700, "cpu")
    work = f"mips, {LEVELS} levels, 1×3×2200×1700"
    moved = _pyramid_bytes(levels[:LEVELS])
    bench.add(work, "reference", partial(mipmap, image, levels=LEVELS), timing.cpu, moved=moved, bar=5e5)
    bench.add(work, "PyTorch avg_pool2d", partial(pooled, image, LEVELS), timing.cpu)
    bench.add_compiled(work, pooled, (image, LEVELS), timing.cpu)
    work = f"273 patches of {PATCH}×{PATCH}, 3 channels"
    bench.add(work, "reference", partial(sample_patches, levels, centre, ddx, ddy, patch=PATCH), timing.cpu, bar=5e5)
    plain = (levels[:LEVELS], centre, scale, PATCH)
    bench.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain), timing.cpu)
    bench.add_compiled(work, grid_sampled, plain, timing.cpu)
    texture = Texture.open(image)
    call = partial(sample_foveated, texture, fixation=(850.0, 1100.0))
    bench.add("page in memory → mips → foveated allocation → 273 patches", "sample_foveated", call, timing.cpu, bar=1e6)
