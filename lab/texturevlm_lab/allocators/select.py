"""Selection: which tiles of an image are cut into smaller ones, stage by stage, until a budget of tokens is used.

Every token is a tile (column c of C, row r of R) of some grid over the whole image, so children replace their parent
without gap or overlap and no grid needs to be a power of two. How much a tile would gain is a sum over a box of cells;
sums are of whole numbers, so that no order of summation changes them and a captured graph gives the same answer again.
Several plans (how coarse to begin, how many survive) run side by side, and the one with the highest expected legibility
is kept: the image decides, without synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes, check_size
from texturevlm.cuda.kernel import device_constant, launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops import backend as backends
from texturevlm.ops.cover import Footprints, empty_footprints
from texturevlm.relevance.maps import UNIT, legibility

CUTS = 8  # rounds in which tokens that are left over cut others in two
MOST = {name: constants("select.cu", f"MOST_{name.upper()}")[0] for name in ("tokens", "plans", "levels", "scales")}
MOST["tables"] = 255  # the numbers of tables are bytes

ROWS_PER_BLOCK = 8  # one per warp
_SELECT = Layout("select.cu", "Select")
_PLAN = Layout("select.cu", "Plan").in_order("rows", "columns", "stages", "level")
_LEVEL = Layout("select.cu", "Level").in_order("across", "down", "survivors", "seen", "finest", "last", "unused")
SEEN, SEEN_FINEST, SEEN_BY_THE_LAST = 3, 4, 5  # columns of Packed.levels


class Stage(NamedTuple):
    """Tiles are cut into across × down; at most `survivors` of them; scored by the map of that number."""

    across: int
    down: int
    survivors: int
    map: int = 0


class Plan(NamedTuple):
    """The first tiling, and what is done to it."""

    rows: int
    columns: int
    stages: tuple[Stage, ...]


def select(
    maps: Tensor,
    legible_scale: Tensor,
    ink: Tensor,
    plans: Sequence[Plan],
    *,
    size: tuple[int, int],
    budget: int,
    patch: int,
    backend: str = "auto",
) -> Footprints:
    """Cut an image into at most `budget` tiles, finer where there is more to gain.

    maps:  (B, M, h, w), at least 0, each summing to 1: the chance that what matters is in a cell. Each stage names the
           map that it uses; the last map judges the plans
    legible_scale: (B, h, w), the sample width in pixels at which half of a cell's content is legible
    ink:   (B, h, w) bool; tiles without any are never cut
    plans: each of at most `budget` tiles to begin with
    size:  (height, width) of the image; patch: the side of a token in samples
    returns the tokens of each image's best plan. Together they cover the image; those that would be finer than its
           pixels are widened and overlap
    """
    check_shapes("select", maps=(maps, "B M h w"), legible_scale=(legible_scale, "B h w"), ink=(ink, "B h w"))
    check_floating("select", maps=maps, legible_scale=legible_scale)
    size = check_size("select", size)
    check_count("select", "budget", budget, 1)
    check_count("select", "patch", patch, 1)
    _check_plans(tuple(plans), maps.shape[1], budget)
    todo = pack_plans(tuple(plans), maps.shape[1], size, patch)
    limit = _kernel_limit(todo, maps.shape[1], budget)
    if backends.choose("select", maps, backend, limit) == "cuda":
        return _select_cuda(maps, legible_scale, ink, todo, size, budget, patch)
    return select_reference(maps, legible_scale, ink, todo, size, budget, patch)


def _kernel_limit(todo: Packed, maps: int, budget: int) -> str | None:
    tables = maps * len(todo.scales) + 1
    counts = (budget, len(todo.plans), len(todo.levels), len(todo.scales), tables)
    for (name, most), count in zip(MOST.items(), counts, strict=True):
        if count > most:
            return f"the kernel takes up to {most} {name}, not {count}"
    return None


@lru_cache(maxsize=256)
def _check_plans(plans: tuple[Plan, ...], maps: int, budget: int) -> None:
    if not plans:
        raise ValueError("select: plans must not be empty")
    for plan in plans:
        if not 1 <= plan.rows * plan.columns <= budget:
            raise ValueError(f"select: a plan must begin with 1 to {budget} tiles, got {plan.rows} × {plan.columns}")
        for stage in plan.stages:
            if stage.across * stage.down < 2 or stage.survivors < 0 or not 0 <= stage.map < maps:
                raise ValueError(f"select: a stage must cut into two or more and use one of {maps} maps, got {stage}")


class Packed(NamedTuple):
    """Plans as numbers. Tables are sums of what is legible at each of `scales`, map by map, and of ink, the last.

    plans:  rows, columns and stages of each, and where its levels begin
    levels: across, down, survivors; and the tables of what is seen there, of what the finest level would show, and
            of what the last map sees there. The finest level has no survivors
    """

    scales: tuple[float, ...]
    plans: tuple[tuple[int, int, int, int], ...]
    levels: tuple[tuple[int, int, int, int, int, int], ...]


@lru_cache(maxsize=256)
def pack_plans(plans: tuple[Plan, ...], maps: int, size: tuple[int, int], patch: int) -> Packed:
    """The numbers that both the reference and the kernel go by."""
    their_scales = [_level_scales(plan, size, patch) for plan in plans]
    scales = tuple(sorted({scale for mine in their_scales for scale in mine}))
    starts: list[tuple[int, int, int, int]] = []
    levels: list[tuple[int, int, int, int, int, int]] = []
    for plan, mine in zip(plans, their_scales):
        starts.append((plan.rows, plan.columns, len(plan.stages), len(levels)))
        finest = scales.index(mine[-1])
        for stage, scale in zip((*plan.stages, Stage(1, 1, 0, maps - 1)), mine, strict=True):
            here, start = scales.index(scale), stage.map * len(scales)
            levels.append((*stage[:3], start + here, start + finest, (maps - 1) * len(scales) + here))
    return Packed(scales, tuple(starts), tuple(levels))


def _level_scales(plan: Plan, size: tuple[int, int], patch: int) -> list[float]:
    """How wide a sample is, in pixels, on each level of a plan, along the coarser axis; never below 1."""
    rows = accumulate((stage.down for stage in plan.stages), mul, initial=plan.rows)
    columns = accumulate((stage.across for stage in plan.stages), mul, initial=plan.columns)
    return [round(max(size[0] / y / patch, size[1] / x / patch, 1.0), 6) for y, x in zip(rows, columns)]


@lru_cache(maxsize=256)
def numbers_of(todo: Packed, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, plans and levels as tensors, uploaded once."""
    plans, levels = (device_constant(numbers, torch.int64, device) for numbers in (todo.plans, todo.levels))
    return device_constant(todo.scales, torch.float32, device), plans, levels


def select_reference(
    maps: Tensor, legible_scale: Tensor, ink: Tensor, todo: Packed, size: tuple[int, int], budget: int, patch: int
) -> Footprints:
    """The specification, in plain PyTorch, all images and all plans at once: tensor operations of static shapes."""
    scales, plans, levels = numbers_of(todo, legible_scale.device)
    steps = max(stages for _, _, stages, _ in todo.plans)
    search = _Search(tables(maps, legible_scale, ink, scales), levels, size, patch)
    tiles = _begin(plans, len(maps), budget)
    for step in range(steps):
        tiles = search.cut(tiles, search.gains(tiles, step), step)
    value = (search.sums(tiles, search.number(tiles, SEEN_BY_THE_LAST)) * tiles.used).sum(-1)
    best = (value * len(plans) - torch.arange(len(plans), device=value.device)).argmax(1)  # the first of equal ones
    tiles = tiles.only(best)
    for _ in range(CUTS):
        tiles = search.cut_in_two(tiles, search.gains(tiles, None))
    score = search.sums(tiles, search.number(tiles, SEEN_BY_THE_LAST)).float() / UNIT
    return _footprints(tiles, score, size, patch)


def tables(maps: Tensor, legible_scale: Tensor, ink: Tensor, scales: Tensor) -> Tensor:
    """(B, M · S + 1, h + 1, w + 1) int32: sums over the cells above and left of each corner, see Packed."""
    batch, _, rows, columns = maps.shape
    seen = legibility(legible_scale.float()[:, None], scales[:, None, None])
    inked = maps.float() * ink[:, None]
    values = (inked[:, :, None] * seen[:, None] * UNIT).round().to(torch.int32).view(batch, -1, rows, columns)
    values = torch.cat([values, ink[:, None].to(torch.int32)], 1)
    sums = values.cumsum(-1, dtype=torch.int32).cumsum(-2, dtype=torch.int32)
    return torch.nn.functional.pad(sums, (1, 0, 1, 0))


class _Tiles(NamedTuple):
    """(B, plans, K): column and row, of how many; the steps taken. (B, plans, 1): slots used, stages, first level."""

    column: Tensor
    row: Tensor
    columns: Tensor
    rows: Tensor
    step: Tensor
    filled: Tensor
    stages: Tensor
    start: Tensor

    @property
    def used(self) -> Tensor:
        return torch.arange(self.column.shape[-1], device=self.column.device) < self.filled

    def only(self, plan: Tensor) -> _Tiles:
        """The tiles of one plan per image, (B,)."""
        return _Tiles(*(part.gather(1, plan[:, None, None].expand(-1, 1, part.shape[2])) for part in self))


def _begin(plans: Tensor, batch: int, budget: int) -> _Tiles:
    slots = torch.arange(budget, device=plans.device)
    rows, columns, stages, start = plans[:, :, None].unbind(1)
    places = (slots % columns, slots // columns, columns, rows, torch.zeros_like(slots))
    wide = [place.expand(batch, len(plans), budget) for place in places]
    return _Tiles(*wide, *(one.expand(batch, len(plans), 1) for one in (rows * columns, stages, start)))


class _Search(NamedTuple):
    tables: Tensor  # (B, T, h + 1, w + 1)
    levels: Tensor  # as in Packed
    size: tuple[int, int]
    patch: int

    def number(self, tiles: _Tiles, column: int) -> Tensor:
        """(B, plans, K): a number of each tile's own level."""
        return self.levels[:, column][tiles.start + tiles.step]

    def sums(self, tiles: _Tiles, table: Tensor) -> Tensor:
        """(B, plans, K) int64: the sum of a table over each tile."""
        height, width = self.tables.shape[2] - 1, self.tables.shape[3] - 1
        left, right = (_first_cell(tiles.column + side, tiles.columns, width) for side in (0, 1))
        upper, lower = (_first_cell(tiles.row + side, tiles.rows, height).clamp(max=height) for side in (0, 1))
        flat = self.tables.flatten(1)

        def corner(y: Tensor, x: Tensor) -> Tensor:
            at = (table * (height + 1) + y) * (width + 1) + x
            return flat.gather(1, at.flatten(1)).view_as(at).long()

        return corner(lower, right) - corner(lower, left) - corner(upper, right) + corner(upper, left)

    def gains(self, tiles: _Tiles, step: int | None) -> Tensor:
        """(B, plans, K): what the finest level would gain; 0 for another step's, and where nothing can be cut."""
        seen, finest = (self.sums(tiles, self.number(tiles, column)) for column in (SEEN, SEEN_FINEST))
        inked = self.sums(tiles, torch.full_like(tiles.column, self.tables.shape[1] - 1))
        wanted = tiles.used & (self.coarse(tiles.columns, 1) | self.coarse(tiles.rows, 0))
        if step is not None:
            wanted = wanted & (tiles.step == step) & (tiles.step < tiles.stages)
        return (finest - seen + inked) * wanted

    def coarse(self, count: Tensor, axis: int) -> Tensor:
        """Whether one of `count` tiles along an axis has more pixels than samples, by more than rounding."""
        return self.size[axis] * 1000 > self.patch * 1001 * count

    def cut(self, tiles: _Tiles, gains: Tensor, step: int) -> _Tiles:
        """The tiles that gain most become across × down each, as many as the plan and the budget allow."""
        level = torch.minimum(tiles.start + step, tiles.start + tiles.stages)
        across, down, most = (self.levels[:, column][level] for column in range(3))
        more = across * down - 1
        allowed = torch.minimum(most, (gains.shape[-1] - tiles.filled) // more.clamp(min=1))
        return _divide(tiles, gains, across, down, more, allowed, 1)

    def cut_in_two(self, tiles: _Tiles, gains: Tensor) -> _Tiles:
        """Each of the tiles that gain most once across; or down, where that is too long or across is fine enough."""
        long = 3 * self.size[1] * tiles.rows >= 2 * self.size[0] * tiles.columns
        across = 1 + (self.coarse(tiles.columns, 1) & (long | ~self.coarse(tiles.rows, 0))).long()
        left = gains.shape[-1] - tiles.filled
        return _divide(tiles, gains, across, 3 - across, torch.ones_like(left), left, 0)


def _first_cell(tile: Tensor, tiles: Tensor, cells: int) -> Tensor:
    """The first cell whose centre is not before the edge tile / tiles."""
    return (2 * tile * cells + tiles - 1).div(2 * tiles, rounding_mode="floor").clamp(max=cells)


def _divide(
    tiles: _Tiles, gains: Tensor, across: Tensor, down: Tensor, more: Tensor, allowed: Tensor, deeper: int
) -> _Tiles:
    """The best `allowed` of the tiles that gain anything, the earlier of equal ones, are cut.

    The first child takes its parent's slot, the `more` others follow the slots in use, those of the best parent first.
    """
    slots = torch.arange(gains.shape[-1], device=gains.device)
    order = gains.sort(dim=-1, descending=True, stable=True).indices
    count = torch.minimum((gains > 0).sum(-1, keepdim=True), allowed)
    chosen = torch.zeros_like(gains, dtype=torch.bool).scatter(-1, order, slots < count)
    born = slots - tiles.filled
    fresh = (born >= 0) & (born < count * more)
    parent = order.gather(-1, (born // more.clamp(min=1)).clamp(0, len(slots) - 1))
    source = torch.where(fresh, parent, slots)
    child = torch.where(fresh, born % more.clamp(min=1) + 1, 0)
    parts = (*tiles[:5], chosen, across, down)
    column, row, columns, rows, step, cut, x, y = (part.expand_as(gains).gather(-1, source) for part in parts)
    x, y = torch.where(cut, x, 1), torch.where(cut, y, 1)
    column, row = column * x + child % x, row * y + child.div(x, rounding_mode="floor")
    filled = tiles.filled + count * more
    return _Tiles(column, row, columns * x, rows * y, step + cut * deeper, filled, tiles.stages, tiles.start)


def _footprints(tiles: _Tiles, score: Tensor, size: tuple[int, int], patch: int) -> Footprints:
    """Tiles in pixels; unused slots are a patch at the corner."""
    used, score = tiles.used[:, 0], score[:, 0]
    axes = []
    for place, count, extent in ((tiles.column, tiles.columns, size[1]), (tiles.row, tiles.rows, size[0])):
        side = extent / count[:, 0].double()
        wide = side.clamp(min=min(patch, extent))
        start = (place[:, 0] * side - (wide - side) / 2).clamp(min=0).minimum(extent - wide)
        axes.append((torch.where(used, start + wide / 2, patch / 2), torch.where(used, wide / patch, 1.0)))
    (x, across), (y, down) = axes
    zero = torch.zeros_like(across)
    centre, ddx, ddy = (torch.stack(pair, -1).float() for pair in ((x, y), (across, zero), (zero, down)))
    return Footprints(centre, ddx, ddy, torch.where(used, score, 0.0), used)


def _select_cuda(
    maps: Tensor, legible_scale: Tensor, ink: Tensor, todo: Packed, size: tuple[int, int], budget: int, patch: int
) -> Footprints:
    """`select` without uploads and without waiting: the plans travel with the launch."""
    batch, count, rows, columns = maps.shape
    maps, legible_scale, ink = maps.float().contiguous(), legible_scale.float().contiguous(), ink.contiguous()
    lines = batch * (count * len(todo.scales) + 1) * rows
    plans = len(todo.plans)
    room = lines * (columns + 1) + batch * plans * (5 * budget + 2)
    whole = torch.empty(room, dtype=torch.int32, device=maps.device)
    tables = whole.data_ptr()
    tiles = tables + 4 * lines * (columns + 1)
    tokens = empty_footprints(batch, budget, maps.device)
    given = {"maps": maps, "legible_scale": legible_scale, "ink": ink}
    work = {"tables": tables, "tiles": tiles, "totals": tiles + 4 * batch * plans * 5 * budget}
    counts = {"batch": batch, "maps_count": count, "cell_rows": rows, "cell_columns": columns}
    sizes = {"height": size[0], "width": size[1], "budget": budget, "patch": patch}
    parameters = _fixed(todo).pack(**given, **work, **tokens._asdict(), **counts, **sizes)
    launch("select.cu", "select_sums", maps.device, -(-lines // ROWS_PER_BLOCK), parameters)
    launch("select.cu", "select_tokens", maps.device, (plans, batch), parameters, early=True)
    launch("select.cu", "select_best", maps.device, batch, parameters, early=True)
    return tokens


@lru_cache(maxsize=256)
def _fixed(todo: Packed) -> Layout:
    """The struct with the plans in it."""
    plan, level = [_PLAN(*one) for one in todo.plans], [_LEVEL(*one, 0) for one in todo.levels]
    return _SELECT.fix(plans=len(plan), scales=len(todo.scales), plan=plan, level=level, scale=todo.scales)
