"""Atlas: regions of similar colour, kept whole: each region is shown at one scale of its own, or with the rest.

The regions are superpixels of a coarse mip level. Footprints follow a region's shape. All regions that do not gain
enough share one coarse scale. Which regions are refined, and how far, is decided by the same traversal as in `dag`: the
child of a region is the same region at the next finer scale.
"""

from functools import partial

import numpy as np
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.allocator import allocator, each_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.quadtree import Forest
from texturevlm.allocate.search import OVERVIEW, Layer, floor_span, ladder, scored
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.segment import superpixels
from texturevlm.relevance.maps import Relevance
from texturevlm.types import COLOURS, Allocation, Texture
from texturevlm_lab.allocators.regions import Regions, find_regions
from texturevlm_lab.allocators.search import lay, most_that_fits

_REGIONS = 50
_STEPS = 2.0  # scales per octave


@allocator()
def atlas(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    overview: float = OVERVIEW,
    regions: Regions | None = None,
) -> Allocation:
    """Whole regions at scales of their own where that pays, the rest at one coarse scale.

    overview: the share of the budget that the rest may take if it is all ink; it bounds the coarsest scale
    regions:  of a SAM (a hub id, a folder, a Segmenter), or (B, h, w) integers over the relevance's grid, from any
              other segmenter; None: superpixels
    """
    given = colour_regions(texture, relevance) if regions is None else regions
    found = find_regions("atlas", given, texture, relevance)
    choose = partial(_whole_regions, budget=budget, overview=overview)
    return each_image(texture, relevance, budget, patch, choose, found.cpu().numpy())


def colour_regions(texture: Texture, relevance: Relevance, *, count: int = _REGIONS) -> Tensor:
    """Superpixels of the image at the size of the relevance's grid: (B, h, w)."""
    rows, columns = relevance.grid
    large = [level for level in texture.mipmapped().levels if level.shape[2] >= rows and level.shape[3] >= columns]
    level = large[-1] if large else texture.levels[0]
    if set(COLOURS) <= set(texture.names):
        level = level[:, [texture.names.index(name) for name in COLOURS]]
    return superpixels(functional.adaptive_avg_pool2d(level.float(), (rows, columns)), count=count)


def _whole_regions(cells: Cells, ids: Array, budget: int, overview: float) -> Boxes:
    """`atlas` for one image. ids: (h, w), the region of each cell."""
    spans = ladder(floor_span(cells, budget, overview), cells.finest, _STEPS)
    names, region = np.unique(ids[cells.ink], return_inverse=True)
    count = len(names)
    rows = [rows_of(cells.ink & (ids == name)) for name in names]
    together = len(cover(rows_of(cells.ink), spans[0], ids.size))  # the rest is covered as one, and shared by ink
    cost = [together * np.bincount(region, minlength=count) / len(region)]
    cost += [np.array([len(cover(marked, span, ids.size)) for marked in rows]) for span in spans[1:]]
    error = [np.bincount(region, cells.lost(cells.scale(span))[cells.ink], count) for span in spans]
    # Node number: step · regions + region. The child of a region is itself, a step finer.
    parent = np.maximum(np.arange(len(spans) * count) - count, -1)
    forest = Forest(parent, np.concatenate(cost), np.concatenate(error))

    def attempt(nominal: int) -> list[Layer] | None:
        cut = forest.cut(nominal)
        chosen, wanted = np.zeros(count, dtype=np.int64), np.zeros(ids.shape, dtype=np.int64)
        chosen[cut % count] = np.array(spans)[cut // count]
        wanted[cells.ink] = chosen[region]
        return lay(cells, wanted, budget)

    return scored(cells, most_that_fits(cells, attempt, budget), budget)
