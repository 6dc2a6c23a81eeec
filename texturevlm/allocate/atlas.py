"""Atlas: regions of one colour each, kept whole: a region is delivered at one scale of its own, or left to the rest.

The regions are superpixels of a coarse mip level. One that is worth it is covered by footprints of its own scale, which
follow its shape; all others share one coarse scale, the rest. Which regions come forward, and how fine, is the same
traversal as that of `dag`: a region's finer scales are its descendants. `fragmentation` says how many footprints a
region is broken into, and how many regions share a footprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.detail import Detail
from texturevlm.allocate.footprints import Box, allocation_of, use_all
from texturevlm.allocate.layers import Layer
from texturevlm.allocate.spans import finest_span, held, ladder, lay, most_that_fits, side_of, value_of, with_scores
from texturevlm.allocate.traverse import Forest
from texturevlm.check import check_count, check_shapes
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.segment import superpixels
from texturevlm.relevance.maps import Relevance
from texturevlm.types import COLOURS, Allocation, Texture

REGIONS = 50
OVERVIEW = 0.1
STEPS = 2.0  # scales an octave


def atlas(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    overview: float = OVERVIEW,
    count: int = REGIONS,
    regions: Tensor | None = None,
) -> Allocation:
    """Whole regions at scales of their own where that is worth it, the rest at one coarse scale.

    overview: the share of the budget that the rest may cost, were it everything: it sets the floor of scale
    count:    how many regions are made
    regions:  (B, h, w) whole numbers over the relevance's grid, if there are better ones (a segmenter's)
    """
    check_count("atlas", "budget", budget, 1)
    check_count("atlas", "patch", patch, 1)
    check_count("atlas", "count", count, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"atlas: overview must be above 0 and at most 1, got {overview!r}")
    if regions is None:
        regions = colour_regions(texture, relevance, count=count)
    else:
        check_shapes("atlas", mass=(relevance.mass, "B h w"), regions=(regions, "B h w"))
    images = []
    for index, ids in enumerate(regions.cpu().numpy()):
        found = kept_whole(Cells.of(relevance, index), ids, budget, patch, overview)
        images.append(use_all(found, budget=budget, patch=patch))
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)


def colour_regions(texture: Texture, relevance: Relevance, *, count: int = REGIONS) -> Tensor:
    """Superpixels of the image at the size of the relevance's grid: (B, h, w)."""
    rows, columns = relevance.grid
    level = next(
        (
            level
            for level in reversed(texture.mipmapped().levels)
            if level.shape[2] >= rows and level.shape[3] >= columns
        ),
        texture.levels[0],
    )
    if set(COLOURS) <= set(texture.names):
        level = level[:, [texture.names.index(name) for name in COLOURS]]
    return superpixels(functional.adaptive_avg_pool2d(level.float(), (rows, columns)), count=count)


def kept_whole(cells: Cells, ids: np.ndarray, budget: int, patch: int, overview: float) -> list[tuple[Box, float]]:
    """`atlas` for one image. ids: (h, w), the region of each cell."""
    detail = Detail(cells)
    floor = finest_span(cells, cells.ink, max(1, int(budget * overview)), patch)
    spans = ladder(cells, floor, patch, STEPS)
    names = np.unique(ids[cells.ink])
    forest = _regions_by_scale(cells, detail, ids, names, spans, patch)

    def attempt(nominal: int) -> list[Layer] | None:
        chosen = np.zeros(int(ids.max()) + 1, dtype=np.int64)
        for node in forest.cut(nominal).tolist():
            chosen[names[node % len(names)]] = spans[node // len(names)]
        return lay(cells, detail, np.where(cells.ink, chosen[ids], 0), patch, budget)

    best = most_that_fits(attempt, lambda found: value_of(cells, detail, found, patch), budget)
    return with_scores(cells, best, budget, patch)


def _regions_by_scale(
    cells: Cells, detail: Detail, ids: np.ndarray, names: np.ndarray, spans: Sequence[int], patch: int
) -> Forest:
    """Each region at each span; node number: step · regions + region. The child of a region is itself, a step finer."""
    position = np.zeros(int(ids.max()) + 1, dtype=np.int64)
    position[names] = np.arange(len(names))
    region = position[ids][cells.ink]
    rows = [rows_of(cells.ink & (ids == name)) for name in names]
    together = len(cover(rows_of(cells.ink), spans[0], ids.size))  # the rest is covered as one, and shared by ink
    cost = [together * np.bincount(region, minlength=len(names)) / len(region)]
    cost += [np.array([len(cover(marked, span, ids.size)) for marked in rows]) for span in spans[1:]]
    lost = (detail.lost(side_of(cells, span, patch) / patch)[cells.ink] for span in spans)
    error = [np.bincount(region, values, len(names)) for values in lost]
    parent = np.arange(len(spans) * len(names)) - len(names)
    return Forest(np.maximum(parent, -1), np.concatenate(cost), np.concatenate(error))


class Fragmentation(NamedTuple):
    """Means: how many footprints a region has, how many regions a footprint has, its main region's share of it."""

    footprints: float
    regions: float
    main: float


def fragmentation(relevance: Relevance, allocation: Allocation, regions: Tensor, *, image: int = 0) -> Fragmentation:
    """How an allocation and the regions of an image cut one another up; of what is not blank.

    regions: (B, h, w) over the relevance's grid, as from `colour_regions`
    """
    check_shapes("fragmentation", mass=(relevance.mass, "B h w"), regions=(regions, "B h w"))
    cells = Cells.of(relevance, image)
    ids = regions[image].cpu().numpy()
    pairs, tokens, main = 0, 0, 0.0
    for box in allocation.boxes[image][allocation.valid[image]].double().tolist():
        inside = ids[held(cells, [tuple(box)]) & cells.ink]
        if len(inside):
            sizes = np.unique(inside, return_counts=True)[1]
            pairs, tokens, main = pairs + len(sizes), tokens + 1, main + sizes.max() / len(inside)
    tokens = max(tokens, 1)
    return Fragmentation(pairs / len(np.unique(ids[cells.ink])), pairs / tokens, float(main / tokens))
