"""Cascade: coarse tiles over everything, finer ones over the best of them, the finest over the best of those.

All of it is tensor operations of static shapes for a whole batch (`select.py`); on a GPU it is one kernel. How coarse
the first tiles are and how many survive is set by options, or adapted to each image: then several plans are
computed and the one with the highest expected legibility is kept.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.footprints import allocation_of_tokens
from texturevlm.allocate.plain import tiling
from texturevlm.check import check_shapes, check_share
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.regions import Regions, find_regions, shared_in_regions
from texturevlm_lab.allocators.select import Plan, Stage, select

_FINE_ENOUGH = 0.6  # pixels per sample: a stage that would end below is left out

Factors = tuple[tuple[int, int], ...]  # across and down, one pair per stage


class _Family(NamedTuple):
    """overview: the share of the budget for the first tiling; survivors: the share of children that are cut in turn."""

    overview: float
    factors: Factors
    survivors: float


def _squares(*factors: int) -> Factors:
    return tuple((factor, factor) for factor in factors)


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
        _Family(overview, ((2, 1), (1, 2)) * halvings, survivors)
        for overview in (0.12, 0.25)
        for halvings in (1, 2, 3, 4)
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
    survivors: float | None = None,
    scan: Relevance | None = None,
    regions: Regions | None = None,
) -> Allocation:
    """Coarse tiles over everything; the ones that gain most are cut again and again.

    stages:    the number of scales: 3, 5 or "continuous", which halves tiles alternately across and down
    survivors: the share of a cut tile's children that are cut in turn, above 0; None: adapted to the image
    scan:      the relevance for all stages but the last (for example salience, while `relevance` knows the question);
               None: the same
    regions:   objects that all stages but the last keep whole, as for `atlas`: each counts by its mean; None: none are
    """
    maps = relevance.mass[:, None]
    if regions is not None:
        if scan is not None:
            raise ValueError("cascade: regions and scan both say what the first stages see; give one of them")
        whole = shared_in_regions(relevance.mass, find_regions("cascade", regions, texture, relevance))
        scan = replace(relevance, mass=whole)
    if scan is not None:
        check_shapes("cascade", relevance=(relevance.mass, "B h w"), scan=(scan.mass, "B h w"))
        maps = torch.stack([scan.mass, relevance.mass], 1)
    last = maps.shape[1] - 1
    plans = plans_for(texture.size, budget=budget, patch=patch, stages=stages, survivors=survivors, last_map=last)
    found = select(maps, relevance.legible_scale, relevance.ink, plans, size=texture.size, budget=budget, patch=patch)
    return allocation_of_tokens(found, texture.size, patch)


@lru_cache(maxsize=256)
def plans_for(
    size: tuple[int, int],
    *,
    budget: int,
    patch: int,
    stages: int | str = 3,
    survivors: float | None = None,
    last_map: int = 0,
) -> tuple[Plan, ...]:
    """The plans that the options of `cascade` leave to the image; last_map: the map of the last stage."""
    if stages not in PLAN_FAMILIES:
        raise ValueError(f"cascade: stages must be one of {', '.join(map(str, PLAN_FAMILIES))}, got {stages!r}")
    families = PLAN_FAMILIES[stages]
    if survivors is not None:
        check_share("cascade", "survivors", survivors)
        families = tuple(family._replace(survivors=survivors) for family in families)
    # Several families may give the same plan, because an image has a finite number of pixels.
    return tuple(dict.fromkeys(_plan(family, size, budget, patch, last_map) for family in families))


def _plan(family: _Family, size: tuple[int, int], budget: int, patch: int, last_map: int) -> Plan:
    """The cuts of a family down to the pixels, and how many tiles each may cut so that the budget lasts."""
    rows, columns = tiling(size, max(1, round(family.overview * budget)), patch)
    tiles = rows * columns
    factors = []
    down, across = size[0] / rows, size[1] / columns
    for cut in family.factors:
        enough = max(across / cut[0], down / cut[1]) < _FINE_ENOUGH * patch
        if tiles == budget or max(across, down) <= patch or enough:
            break
        factors.append(cut)
        across, down = across / cut[0], down / cut[1]
    cost = 0.0  # of cutting one tile, and the share of its children that survive, to the last stage
    for wide, tall in reversed(factors):
        cost = wide * tall - 1 + wide * tall * family.survivors * cost
    count, stages = (budget - tiles) / max(cost, 1.0), []
    for wide, tall in factors:
        stages.append(Stage(wide, tall, max(1, round(count)), 0))
        count *= wide * tall * family.survivors
    if stages:
        stages[-1] = stages[-1]._replace(survivors=budget, map=last_map)
    return Plan(rows, columns, tuple(stages))
