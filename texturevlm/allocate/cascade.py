"""Cascade: coarse tiles over everything, finer ones over the best of them, the finest over the best of those.

All of it is tensor operations of static shapes for a whole batch (`texturevlm.ops.select`); on a GPU it is one kernel.
How coarse the first tiles are and how many survive is set by options, or adapted to each image: then several plans are
computed and the one with the highest expected legibility is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.footprints import allocation_of_tokens
from texturevlm.allocate.plain import tiling
from texturevlm.channels.structure import colour_levels
from texturevlm.check import check_count, check_share
from texturevlm.ops.distance import distance_field
from texturevlm.ops.segment import seed_grid, superpixels
from texturevlm.ops.select import UNIT, Plan, Stage, select
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

_FINE_ENOUGH = 0.6  # pixels per sample: a stage that would end below is left out
_KEPT = 10  # of about 50 clusters

Factors = tuple[tuple[int, int], ...]  # across and down, one pair per stage


class _Family(NamedTuple):
    """overview: the share of the budget for the first tiling; survivors: the share of children that are cut in turn."""

    overview: float
    factors: Factors
    survivors: float


def _squares(*factors: int) -> Factors:
    return tuple((factor, factor) for factor in factors)


def _halvings(count: int) -> Factors:
    """Alternately across and down."""
    return ((2, 1), (1, 2)) * (count // 2)


# The plans that an image chooses from. On 14 documents and photographs, with and without a question, at 32 to 273
# tokens, the three-stage ones reach the expected value of the best of 106 plans per image to within 1.5 points.
PLAN_FAMILIES: dict[int | str, tuple[_Family, ...]] = {
    3: (
        _Family(0.25, _squares(2, 2), 0.3),
        _Family(0.12, _squares(2, 2), 0.6),
        _Family(0.5, _squares(2, 2), 0.3),
        _Family(0.25, _squares(3, 2), 0.3),
        _Family(0.12, _squares(3, 2), 0.6),
        _Family(0.12, _squares(2, 3), 0.6),
        _Family(0.25, _squares(3, 3), 0.3),
        _Family(0.12, _squares(3, 3), 0.3),
        _Family(1.0, (), 1.0),
    ),
    5: tuple(
        _Family(overview, _squares(2, 2, 2, 2), survivors)
        for overview in (0.03, 0.06, 0.12, 0.25, 0.5)
        for survivors in (0.2, 0.4, 0.7)
    ),
    "continuous": tuple(
        _Family(overview, _halvings(count), survivors)
        for overview in (0.12, 0.25)
        for count in (2, 4, 6, 8)
        for survivors in (0.6, 0.85)
    ),
}


@allocator(capture="always")
def cascade(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    stages: int | str = 3,
    levels: tuple[int, ...] | None = None,
    overview: float | None = None,
    survivors: float | None = None,
    scan: Relevance | None = None,
    clusters: int | None = None,
    cull: float | None = None,
    finer_across: float = 1.0,
) -> Allocation:
    """Coarse tiles over everything; the ones that gain most are cut again and again.

    stages:    the number of scales: 3, 5 or "continuous", which halves tiles alternately across and down
    levels:    how many times finer each stage is than the one before, such as (2, 3); None: adapted to the image
    overview:  the share of the budget that the first tiling takes, above 0; None: adapted
    survivors: the share of a cut tile's children that are cut in turn, above 0; None: adapted
    scan:      the relevance for all stages but the last (for example salience, while `relevance` knows the question);
               None: the same
    clusters:  segment the image into about this many regions, and refine only inside the 10 of most relevance
    cull:      refine nothing further than this many pixels from a cell of more than average relevance
    finer_across: how many times finer across than down tokens are: text stays legible up to 1.5
    """
    plans = plans_for(
        texture.size,
        budget=budget,
        patch=patch,
        stages=stages,
        levels=None if levels is None else tuple(levels),
        overview=overview,
        survivors=survivors,
        finer_across=finer_across,
        last_map=0 if scan is None else 1,
    )
    ink = relevance.ink
    if clusters is not None:
        ink = ink & _in_best_clusters(texture, relevance, clusters)
    if cull is not None:
        ink = ink & _near_relevant(relevance, cull)
    maps = relevance.mass[:, None] if scan is None else torch.stack([_scanned(scan, relevance), relevance.mass], 1)
    found = select(maps, relevance.legible_scale, ink, plans, size=texture.size, budget=budget, patch=patch)
    return allocation_of_tokens(found, texture.size, patch)


@lru_cache(maxsize=256)
def plans_for(
    size: tuple[int, int],
    *,
    budget: int,
    patch: int,
    stages: int | str = 3,
    levels: tuple[int, ...] | None = None,
    overview: float | None = None,
    survivors: float | None = None,
    finer_across: float = 1.0,
    last_map: int = 0,
) -> tuple[Plan, ...]:
    """The plans that the options of `cascade` leave to the image; last_map: the map of the last stage."""
    if stages not in PLAN_FAMILIES:
        raise ValueError(f"cascade: stages must be one of {', '.join(map(str, PLAN_FAMILIES))}, got {stages!r}")
    for name, value in (("overview", overview), ("survivors", survivors)):
        if value is not None:
            check_share("cascade", name, value)
    if not 0.5 <= finer_across <= 2:
        raise ValueError(f"cascade: finer_across must be between 0.5 and 2, got {finer_across!r}")
    families = PLAN_FAMILIES[stages]
    if levels is not None:
        for factor in levels:
            check_count("cascade", "levels", factor, 2, 16)
        families = tuple(family._replace(factors=_squares(*levels)) for family in families)
    if overview is not None:
        families = tuple(family._replace(overview=overview) for family in families if family.factors)
    if survivors is not None:
        families = tuple(family._replace(survivors=survivors) for family in families)
    # Several families may give the same plan, because an image has a finite number of pixels.
    return tuple(dict.fromkeys(_plan(family, size, budget, patch, finer_across, last_map) for family in families))


def _plan(family: _Family, size: tuple[int, int], budget: int, patch: int, finer_across: float, last_map: int) -> Plan:
    height, width = size
    rows, columns = tiling(
        (height, max(1, round(width * finer_across))), max(1, round(family.overview * budget)), patch
    )
    tiles = rows * columns
    factors = []
    down, across = height / rows, width / columns
    for cut in family.factors:
        enough = max(across / cut[0], down / cut[1]) < _FINE_ENOUGH * patch
        if tiles == budget or max(across, down) <= patch or enough:
            break
        factors.append(cut)
        across, down = across / cut[0], down / cut[1]
    return Plan(rows, columns, _stages(factors, family.survivors, tiles, budget, last_map))


def _stages(
    factors: list[tuple[int, int]], survivors: float, tiles: int, budget: int, last_map: int
) -> tuple[Stage, ...]:
    """How many tiles each stage may cut, so that the budget lasts to the last stage."""
    cost = 0.0  # of cutting one tile, and the share of its children that survive, to the last stage
    for across, down in reversed(factors):
        cost = across * down - 1 + across * down * survivors * cost
    cut, found = (budget - tiles) / max(cost, 1.0), []
    for across, down in factors:
        found.append(Stage(across, down, max(1, round(cut)), 0))
        cut *= across * down * survivors
    if found:
        found[-1] = found[-1]._replace(survivors=budget, map=last_map)
    return tuple(found)


def _scanned(scan: Relevance, relevance: Relevance) -> Tensor:
    if scan.mass.shape != relevance.mass.shape:
        wanted, got = tuple(relevance.mass.shape), tuple(scan.mass.shape)
        raise ValueError(f"cascade: scan must have the cells of relevance, {wanted}, got {got}")
    return scan.mass


def _in_best_clusters(texture: Texture, relevance: Relevance, clusters: int) -> Tensor:
    """(B, h, w): whether a cell lies in one of the _KEPT regions of most mass."""
    grid = relevance.grid
    level = next((level for level in colour_levels(texture.mipmapped()) if level.shape[2:] == grid), None)
    if level is None:
        raise ValueError(f"cascade: clusters need a texture with a level of {grid} like relevance, got {texture.size}")
    ids = superpixels(level, count=clusters).flatten(1).long()
    rows, columns = seed_grid(*grid, clusters)
    mass = (relevance.mass.flatten(1) * UNIT).long()  # integers: no order of summation changes the sums
    total = torch.zeros(len(ids), rows * columns, dtype=torch.int64, device=ids.device).scatter_add(1, ids, mass)
    best = total.topk(min(_KEPT, rows * columns), 1).indices
    kept = torch.zeros_like(total, dtype=torch.bool).scatter(1, best, True)
    return kept.gather(1, ids).view(-1, *grid)


def _near_relevant(relevance: Relevance, cull: float) -> Tensor:
    """(B, h, w): whether a cell is within `cull` pixels of one that has more mass than the mean of those with ink."""
    if not cull >= 0:
        raise ValueError(f"cascade: cull must be at least 0, got {cull!r}")
    inked = relevance.ink.sum((1, 2), keepdim=True).clamp(min=1)
    mean = (relevance.mass * relevance.ink).sum((1, 2), keepdim=True) / inked
    cell = max(extent / cells for extent, cells in zip(relevance.size, relevance.grid))
    return distance_field((relevance.mass > mean) & relevance.ink) * cell <= cull
