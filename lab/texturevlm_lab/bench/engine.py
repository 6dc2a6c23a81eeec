"""`texturevlm bench engine`: the engine's operations beside plain PyTorch, eager and compiled, in one run."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.ops import DeviceTexture, channels_last, lookup, mipmap, sample_patches, update_region
from texturevlm.ops.lookup_reference import lattice
from texturevlm.sampling import sample, sample_foveated
from texturevlm.types import Allocation, Texture
from texturevlm_lab.bench.baselines import grid_sampled, nvdiffrast_calls, pooled
from texturevlm_lab.bench.pictures import SIDE
from texturevlm_lab.bench.report import Report

TITLE = "Engine"
MIPS = 5  # levels
PATCH_SIDE = 16  # of a patch, along each side


def bench(report: Report) -> None:
    """Measure everything; a quick run leaves out torch.compile and most repetitions."""
    if report.device == "cpu":
        report.notes = ["cpu: wall clock of one call. floor: each byte read or written once at the copy bandwidth."]
        return _page(report)
    report.notes = [
        "warm: device time per call, from a captured graph of many. cold: one call after the L2 cache was flushed.",
        "host: wall clock per call from Python in a loop, the larger of host and device time.",
        "floor: each byte read or written once at this run's copy bandwidth; a small problem that stays in the",
        "L2 cache can go below it. Texture units: the texture is already filled, unless the row says otherwise.",
    ]
    for part in (_mips, _patches, _filling, _from_python, _training, _updating, _layout, _points):
        part(report)


class Squares(NamedTuple):
    """Patches at mixed fractional levels from 0 to 4; scale: (1, K, 1), pixels per sample."""

    centre: Tensor
    ddx: Tensor
    ddy: Tensor
    scale: Tensor

    @classmethod
    def random(cls, count: int, extent: int = SIDE, device: str = "cuda") -> "Squares":
        centre = torch.rand(1, count, 2, device=device) * extent
        scale = 2 ** (torch.rand(1, count, 1, device=device) * (MIPS - 1))
        zero = torch.zeros_like(scale)
        return cls(centre, torch.cat([scale, zero], -1), torch.cat([zero, scale], -1), scale)

    def sampled(self, levels: Any, **options: Any) -> Callable[[], Tensor]:
        return partial(sample_patches, levels, self.centre, self.ddx, self.ddy, patch=PATCH_SIDE, **options)

    def plainly(self, levels: Any) -> tuple[Any, ...]:
        """The same squares as arguments of `grid_sampled`."""
        return list(levels), self.centre, self.scale, PATCH_SIDE

    def points(self) -> tuple[Tensor, Tensor]:
        """The samples as points (1, N, 2) and levels (1, N)."""
        points = lattice(self.centre, self.ddx, self.ddy, PATCH_SIDE).flatten(1, 3)
        return points, self.scale[..., 0].log2().repeat_interleave(PATCH_SIDE * PATCH_SIDE, 1)


def _bytes(levels: list[Tensor]) -> float:
    return float(sum(level.numel() * level.element_size() for level in levels))


def _pyramid(channels: int) -> list[Tensor]:
    return mipmap(torch.rand(1, channels, SIDE, SIDE, device="cuda"), levels=MIPS)


def _mips(report: Report) -> None:
    for shape in ((1, 3, SIDE, SIDE), (1, 40, SIDE, SIDE), (32, 3, SIDE, SIDE), (1, 3, 4096, 4096)):
        image = torch.rand(shape, device="cuda")
        ours = partial(mipmap, image, levels=MIPS)
        moved = _bytes(ours())
        work = "mips, {} levels, {}×{}×{}×{}".format(MIPS, *shape)
        bar = 6.0 if shape == (1, 3, SIDE, SIDE) else 1.15 * moved / report.bandwidth * 1e6
        report.add(work, "cuda", ours, moved=moved, bar=bar)
        report.add(work, "cuda", ours, "cold", moved=moved)
        report.add(work, "reference", partial(ours, backend="reference"))
        report.add(work, "PyTorch avg_pool2d", partial(pooled, image, MIPS), moved=moved)
        report.add_compiled(work, pooled, image, MIPS, moved=moved)
    for shape in ((1, 3, SIDE, SIDE), (1, 40, SIDE, SIDE), (1, 3, 1700, 2200), (1, 3, 1699, 2201), (1, 40, 1080, 1920)):
        image = torch.rand(shape, device="cuda")
        work = "mips, all levels, {}×{}×{}×{}".format(*shape)
        report.add(work, "cuda", partial(mipmap, image), moved=_bytes(mipmap(image)))


def _patches(report: Report) -> None:
    bars = {(273, 40, "half", "warm"): 8.0, (4096, 40, "float", "warm"): 170.0}
    for channels in (3, 40):
        levels = _pyramid(channels)
        textures = {"half": DeviceTexture(levels, half=True), "float": DeviceTexture(levels, half=False)}
        for count in (64, 273, 1024, 4096):
            squares = Squares.random(count)
            work = f"{count} patches of {PATCH_SIDE}×{PATCH_SIDE}, {channels} channels"
            moved = 2.0 * 4 * count * channels * PATCH_SIDE * PATCH_SIDE
            for state in ("warm", "cold"):
                for name, texture in textures.items():
                    bar = bars.get((count, channels, name, state))
                    report.add(work, f"texture units, {name}", squares.sampled(texture), state, moved=moved, bar=bar)
                report.add(work, "cuda", squares.sampled(levels, backend="cuda"), state, moved=moved)
            if count in (273, 4096):
                plain = squares.plainly(levels)
                report.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain), moved=moved)
                report.add_compiled(work, grid_sampled, *plain, moved=moved)
        squares = Squares.random(273)
        wide = squares._replace(ddx=squares.ddx * 4)
        work = f"273 patches of {PATCH_SIDE}×{PATCH_SIDE}, {channels} channels, four times as wide as tall"
        for name, texture in textures.items():
            report.add(work, f"texture units, {name}", wide.sampled(texture))
        report.add(work, "cuda", wide.sampled(levels, backend="cuda"))


def _filling(report: Report) -> None:
    for channels in (3, 40):
        levels = _pyramid(channels)
        for half, name in ((True, "texture units, half"), (False, "texture units, float")):
            fill = partial(DeviceTexture(levels, half=half).fill, levels)
            moved = _bytes(levels) * (1.5 if half else 2.0)
            report.add(f"filling a texture, {channels} channels, {MIPS} levels", name, fill, moved=moved)
            make = partial(DeviceTexture, levels, half=half)
            report.add(f"making, filling and dropping a texture, {channels} channels", name, make, "host")


def _from_python(report: Report) -> None:
    texture = Texture.open(torch.rand(3, SIDE, SIDE, device="cuda")).mipmapped(MIPS)
    squares = Squares.random(273)
    ones = torch.ones_like(squares.scale[..., 0])
    allocation = Allocation(*squares[:3], ones, ones.bool(), ones.long(), texture.size, PATCH_SIDE)
    resident, plain = DeviceTexture(texture.levels), squares.plainly(texture.levels)
    work = f"273 patches of {PATCH_SIDE}×{PATCH_SIDE}, 3 channels, from Python"
    report.add(work, "ops.sample_patches, cuda", squares.sampled(texture.levels), "host", bar=60.0)
    report.add(work, "ops.sample_patches, texture units", squares.sampled(resident), "host", bar=60.0)
    report.add(work, "sample(texture, allocation)", partial(sample, texture, allocation), "host")
    report.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain), "host")
    report.add_compiled(work, grid_sampled, *plain, state="host")


def _training(report: Report) -> None:
    image = torch.rand(1, 40, SIDE, SIDE, device="cuda", requires_grad=True)
    squares = Squares.random(273)
    upstream = torch.randn(1, 273, 40, PATCH_SIDE, PATCH_SIDE, device="cuda")

    def ours() -> object:
        return torch.autograd.grad(squares.sampled(mipmap(image, levels=MIPS), backend="cuda")(), image, upstream)

    def forward(image: Tensor) -> Tensor:
        return grid_sampled(*squares.plainly(pooled(image, MIPS)))

    def step(function: Callable[[Tensor], Tensor]) -> object:
        return torch.autograd.grad(function(image), image, upstream)

    work = "mips + 273 patches × 40 channels, forward and backward"
    report.add(work, "cuda", ours, bar=450.0)
    report.add(work, "cuda", ours, "host")
    report.add(work, "PyTorch", partial(step, forward))
    report.add_compiled(work, forward, call=step)


def _updating(report: Report) -> None:
    image = torch.rand(1, 40, 1080, 1920, device="cuda")
    levels = mipmap(image)
    one = torch.tensor([[[600, 300, 1056, 755]]], device="cuda", dtype=torch.int32)  # 10% of the frame in one piece
    corner = torch.rand(1, 20, 2, device="cuda") * torch.tensor([1920 - 102, 1080 - 102], device="cuda")
    many = torch.cat([corner, corner + 101.8], -1).int()  # the same area in 20 pieces
    full = report.add("1080p, 40 channels: full rebuild", "cuda", partial(mipmap, image))
    for name, boxes, bar in (("one piece", one, full / 4), ("20 scattered pieces", many, None)):
        work = f"1080p, 40 channels: update of 10% in {name}"
        report.add(work, "cuda", partial(update_region, levels, boxes), bar=bar)


def _layout(report: Report) -> None:
    """Whether it matters that all layers of a spot lie together in memory."""
    levels = _pyramid(40)
    together = [level.contiguous(memory_format=torch.channels_last) for level in levels]
    layouts = {"cuda, planar": levels, "cuda, channels last": together}
    points = torch.rand(1, 16384, 2, device="cuda") * SIDE
    lod = torch.rand(1, 16384, device="cuda") * (MIPS - 1)
    for state in ("warm", "cold"):
        for name, pyramid in layouts.items():
            call = partial(lookup, pyramid, points, lod, backend="cuda")
            report.add("16384 scattered points, 40 channels", name, call, state)
    for count in (273, 4096):
        squares, work = Squares.random(count), f"{count} patches, 40 channels"
        for name, pyramid in layouts.items():
            report.add(work, name, squares.sampled(pyramid, backend="cuda"))
        for half in (True, False):
            for pack in (1, 2, 4):
                by = f"texture units, {'half' if half else 'float'}, {pack} channels per fetch"
                report.add(work, by, squares.sampled(DeviceTexture(levels, half=half, pack=pack)))


# µs of nvdiffrast's sampler on an H200, for points on the lattices of patches: forward captured in a graph; then mips,
# forward and backward as plain calls.
POINT_BARS = {(273, 3): (3.7, 439.0), (4096, 3): (19.9, 531.0), (273, 40): (22.0, 1672.0), (4096, 40): (657.0, 8445.0)}


def _points(report: Report) -> None:
    """`lookup` of many points, in both layouts: on the lattices of patches, and scattered."""
    for (count, channels), bars in POINT_BARS.items():
        image = torch.rand(1, channels, SIDE, SIDE, device="cuda", requires_grad=True)
        levels = [level.detach() for level in mipmap(image, levels=MIPS)]
        convert = partial(channels_last, levels)
        report.add(f"{channels} channels to channels last", "PyTorch copy", convert)
        layouts = {"cuda, planar": levels, "cuda, channels last": convert()}
        points, lod = Squares.random(count).points()
        scattered = torch.rand_like(points) * SIDE, torch.rand_like(lod) * (MIPS - 1)
        for where, places in {"patches": (points, lod), "scattered": scattered}.items():
            bar, training_bar = bars if where == "patches" else (None, None)
            work = f"{count}×{PATCH_SIDE * PATCH_SIDE} points, {channels} channels, {where}"
            for by, pyramid in layouts.items():
                limit = bar if by == "cuda, channels last" else None
                report.add(work, by, partial(lookup, pyramid, *places, backend="cuda"), bar=limit)
            upstream = torch.randn(1, points.shape[1], channels, device="cuda")
            training = f"mips + {work}, forward and backward"
            step = partial(_lookup_step, image, *places, upstream)
            report.add(training, "cuda", step, "host", bar=training_bar)
            report.add(training, "cuda, channels last", partial(step, channels_last), "host")
            if (theirs := nvdiffrast_calls(image, *places, upstream, MIPS)) is None:
                report.add_missing(work, "nvdiffrast", "not installed")
            else:
                report.add(work, "nvdiffrast", theirs[0])
                report.add(training, "nvdiffrast", theirs[1], "host")
    work, by = f"mips, {MIPS} levels, 1×3×{SIDE}×{SIDE}", "kornia build_pyramid"
    try:
        build_pyramid: Any = import_module("kornia.geometry.transform").build_pyramid
    except ImportError:
        return report.add_missing(work, by, "not installed")
    report.add(work, by, partial(build_pyramid, torch.rand(1, 3, SIDE, SIDE, device="cuda"), MIPS))


def _lookup_step(
    image: Tensor, points: Tensor, lod: Tensor, upstream: Tensor, store: Callable[[list[Tensor]], list[Tensor]] = list
) -> object:
    return torch.autograd.grad(lookup(store(mipmap(image, levels=MIPS)), points, lod), image, upstream)


def _page(report: Report) -> None:
    """A 1700×2200 page on the CPU."""
    image = torch.rand(1, 3, 2200, 1700)
    levels = mipmap(image)
    squares = Squares.random(273, 1700, "cpu")
    work = f"mips, {MIPS} levels, 1×3×2200×1700"
    report.add(work, "reference", partial(mipmap, image, levels=MIPS), moved=_bytes(levels[:MIPS]), bar=5e5)
    report.add(work, "PyTorch avg_pool2d", partial(pooled, image, MIPS))
    report.add_compiled(work, pooled, image, MIPS)
    work = f"273 patches of {PATCH_SIDE}×{PATCH_SIDE}, 3 channels"
    plain = squares.plainly(levels[:MIPS])
    report.add(work, "sample_patches", squares.sampled(levels), bar=5e5)
    report.add(work, "reference", squares.sampled(levels, backend="reference"))
    report.add(work, "PyTorch grid_sample", partial(grid_sampled, *plain))
    report.add_compiled(work, grid_sampled, *plain)
    call = partial(sample_foveated, Texture.open(image), fixation=(850.0, 1100.0))
    report.add("page in memory → mips → foveated allocation → 273 patches", "sample_foveated", call, bar=1e6)
