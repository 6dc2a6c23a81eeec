"""The same cascade as a good PyTorch user would write it: no loop over patches, nothing that waits, ready to compile.

Windows are pooled and patches gathered from all levels at once, so that a compiler sees short functions of static
shapes; each is compiled by itself, the steps of the search once each, which takes a minute where one large graph takes
many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from texturevlm.allocate.cascade import plans_for
from texturevlm.channels import structure
from texturevlm.channels.structure import luma
from texturevlm.ops import backend as backends
from texturevlm.ops import select as selection
from texturevlm.ops.mip import level_extents, mipmap_reference
from texturevlm.ops.select import CUTS, SEEN_BY_THE_LAST, UNIT, Footprints, numbers_of, pack_plans
from texturevlm.relevance.information import information
from texturevlm.relevance.maps import cell_level
from texturevlm.relevance.photograph import is_photograph
from texturevlm.relevance.salience import salience

Part = Callable[..., Any]
CLOSE = 1e-3  # what a compiled part may be off by, of its largest number
POOLED = 9  # texels: the widest window that is pooled at once


class Vectorised:
    """Image (1, 3, H, W) → patches; `with plain_pytorch():` around making and calling it.

    mode:    of torch.compile; None: eager
    eager:   parts that could not be compiled, and why
    seconds: what compiling took
    """

    def __init__(self, image: Tensor, *, budget: int, patch: int, mode: str | None = None) -> None:
        size = (image.shape[2], image.shape[3])
        self.size, self.budget, self.patch, self.mode = size, budget, patch, mode
        self.cell, extents = cell_level(size, patch), level_extents(*size)
        plans = plans_for(size, budget=budget, patch=patch)
        scales, self.plans, self.levels = numbers_of(pack_plans(plans, 1, size, patch), image.device)
        self.steps = max(len(plan.stages) for plan in plans)
        self.eager: dict[str, str] = {}

        def shrunk(image: Tensor) -> list[Tensor]:
            return mipmap_reference(image, extents, ("mean",) * image.shape[1])

        def summed(mass: Tensor, half: Tensor, ink: Tensor) -> Tensor:
            return selection.tables(mass[:, None], half, ink, scales)

        self.shrunk = self._part("the mips", shrunk)
        self.informed = self._part("the maps of information", informed)
        self.standing = self._part("salience", salience)
        self.summed = self._part("the tables", summed)
        self.cut = self._part("a stage of the search", self._cut)
        self.keep_best = self._part("the choice of a plan", self._best)
        self.cut_in_two = self._part("the cuts in two", self._in_two)
        self.ended = self._part("the footprints", self._ended)
        self.sampled = self._part("the samples", gathered)
        started = time.perf_counter()
        self(image)
        self.seconds = time.perf_counter() - started

    def __call__(self, image: Tensor) -> Tensor:
        levels = self.shrunk(image)
        half, ink, scene = self.informed(levels, self.cell)
        mass = self.standing(levels, self.cell, half, ink, scene)
        tokens = self._search(self.summed(mass, half, ink))
        found: Tensor = self.sampled(levels, tokens.centre, tokens.ddx, tokens.ddy, self.patch)
        return found

    def _part(self, name: str, function: Part) -> Part:
        """A function compiled when it is first called, or as it is if that fails or gives something else."""
        if self.mode is None:
            return function
        compiled = torch.compile(function, dynamic=False, mode=self.mode)
        tried: set[tuple[int, ...]] = set()

        def part(*given: Any) -> Any:
            version = tuple(one for one in given if isinstance(one, int))  # each is compiled by itself
            if version not in tried and name not in self.eager:
                tried.add(version)
                if reason := _differs(compiled, function, given):
                    self.eager[name] = reason
            return (function if name in self.eager else compiled)(*given)

        return part

    def _search(self, tables: Tensor) -> Footprints:
        tiles = selection._begin(self.plans, 1, self.budget)
        for step in range(self.steps):
            tiles = selection._Tiles(*self.cut(tables, tiles, step))
        tiles = self.keep_best(tables, tiles)
        for _ in range(CUTS):
            tiles = selection._Tiles(*self.cut_in_two(tables, tiles))
        tokens: Footprints = self.ended(tables, tiles)
        return tokens

    def _searching(self, tables: Tensor) -> selection._Search:
        return selection._Search(tables, self.levels, self.size, self.patch)

    def _cut(self, tables: Tensor, tiles: selection._Tiles, step: int) -> tuple[Tensor, ...]:
        search = self._searching(tables)
        return (*search.cut(tiles, search.gains(tiles, step), step),)  # torch 2.11 loses a named tuple made elsewhere

    def _best(self, tables: Tensor, tiles: selection._Tiles) -> selection._Tiles:
        search = self._searching(tables)
        value = (search.sums(tiles, search.number(tiles, SEEN_BY_THE_LAST)) * tiles.used).sum(-1)
        return tiles.only(value.argmax(1))

    def _in_two(self, tables: Tensor, tiles: selection._Tiles) -> tuple[Tensor, ...]:
        search = self._searching(tables)
        return (*search.cut_in_two(tiles, search.gains(tiles, None)),)

    def _ended(self, tables: Tensor, tiles: selection._Tiles) -> Footprints:
        search = self._searching(tables)
        score = search.sums(tiles, search.number(tiles, SEEN_BY_THE_LAST)).float() / UNIT
        return selection._footprints(tiles, score, self.size, self.patch)


def _differs(compiled: Part, function: Part, given: Sequence[Any]) -> str | None:
    """Why a compiled function cannot stand for the function."""
    wanted = [one for one in tree_leaves(function(*given)) if isinstance(one, Tensor)]
    try:
        found = [one for one in tree_leaves(compiled(*given)) if isinstance(one, Tensor)]
    except Exception as error:  # whatever the compiler raises: the report says what
        return f"{type(error).__name__}: {error}".splitlines()[0][:120]
    if [one.shape for one in found] != [one.shape for one in wanted]:
        return f"it gives {[tuple(one.shape) for one in found]}, not {[tuple(one.shape) for one in wanted]}"
    furthest = max(float((one.double() - other.double()).abs().max()) for one, other in zip(found, wanted))
    largest = max(1.0, *(float(one.double().abs().max()) for one in wanted))
    return None if furthest <= CLOSE * largest else f"it is off by {furthest:.2g} of {largest:.2g}"


def informed(levels: Sequence[Tensor], cell: int) -> tuple[Tensor, Tensor, Tensor]:
    """Half, ink and whether it is a photograph."""
    grey = [luma(level) for level in levels]
    _, half, ink = information(grey, cell)
    return half, ink, is_photograph(grey[cell])


def gathered(levels: Sequence[Tensor], centre: Tensor, ddx: Tensor, ddy: Tensor, patch: int) -> Tensor:
    """Upright patches of mixed levels of one image, trilinear: all levels in one row of texels, eight of them a sample.

    Where a footprint is longer than wide our sampler takes several probes, and this does not.

    levels: (1, C, H_l, W_l); centre, ddx, ddy: (1, K, 2), upright; returns (1, K, C, P, P)
    """
    texels = torch.cat([level[0].flatten(1) for level in levels], 1)
    across, down = ddx[0, :, :1], ddy[0, :, 1:]
    lod = (across * down)[:, 0].sqrt().log2().clamp(0, len(levels) - 1)
    finer = lod.floor().clamp(max=max(0, len(levels) - 2))
    coarser = (finer + 1).clamp(max=len(levels) - 1)
    share = (lod - finer)[:, None, None]
    step = torch.arange(patch, device=centre.device) + 0.5 - patch / 2
    x, y = centre[0, :, :1] + step * across, centre[0, :, 1:] + step * down
    fine, coarse = (_bilinear(texels, levels, level.long(), x, y) for level in (finer, coarser))
    return (fine + (coarse - fine) * share).transpose(0, 1)[None]


def _bilinear(texels: Tensor, levels: Sequence[Tensor], level: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(C, K, P, P): each token from its own level; beyond the border the edge goes on."""
    height, width, start = torch.zeros_like(level), torch.zeros_like(level), torch.zeros_like(level)
    before = 0
    for index, texture in enumerate(levels):  # numbers, chosen by arithmetic: nothing is uploaded
        here = level == index
        height, width = height + here * texture.shape[2], width + here * texture.shape[3]
        start = start + here * before
        before += texture.shape[2] * texture.shape[3]
    axes = []
    for place, extent, whole in ((x, width, levels[0].shape[3]), (y, height, levels[0].shape[2])):
        at = (place / whole * extent[:, None] - 0.5).clamp(min=0).minimum((extent - 1)[:, None].float())
        low = at.long()
        axes.append((low, (low + 1).minimum((extent - 1)[:, None]), at - low))
    (left, right, across), (top, bottom, down) = axes
    across, down = across[:, None, :], down[:, :, None]

    def texel(row: Tensor, column: Tensor) -> Tensor:
        return texels[:, start[:, None, None] + row[:, :, None] * width[:, None, None] + column[:, None, :]]

    upper = texel(top, left) * (1 - across) + texel(top, right) * across
    lower = texel(bottom, left) * (1 - across) + texel(bottom, right) * across
    return upper * (1 - down) + lower * down


@contextmanager
def plain_pytorch() -> Iterator[None]:
    """Every operation by its reference, and windows by pooling, which is what PyTorch has for them on a GPU."""
    usual, slide = backends.no_kernel_because, structure._slide
    backends.no_kernel_because = lambda tensor: "the benchmark asks for plain PyTorch"
    structure._slide = _pooled
    try:
        yield
    finally:
        backends.no_kernel_because, structure._slide = usual, slide


def _pooled(texels: Tensor, extent: int, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    reach = extent // 2
    around = functional.pad(texels, (reach, reach, 0, 0) if axis == -1 else (0, 0, reach, reach), mode="replicate")
    if combine is torch.add:
        return functional.avg_pool2d(around, (1, extent) if axis == -1 else (extent, 1), stride=1) * extent
    return _greatest(around, extent, axis) if combine is torch.maximum else -_greatest(-around, extent, axis)


def _greatest(texels: Tensor, extent: int, axis: int) -> Tensor:
    """A wide window is two of half its width, which overlap: a compiler writes out each texel of one that is pooled."""
    if extent <= POOLED:
        return functional.max_pool2d(texels, (1, extent) if axis == -1 else (extent, 1), stride=1)
    half = (extent + 1) // 2
    runs = _greatest(texels, half, axis)
    count = texels.shape[axis] - extent + 1
    return torch.maximum(runs.narrow(axis, 0, count), runs.narrow(axis, extent - half, count))
