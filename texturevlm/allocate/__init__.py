"""Budget + relevance → Allocation: which footprints become tokens.

An allocator is a function `(texture, relevance, *, budget, patch, **options) → Allocation`. ALLOCATORS holds all of
them by name. Most of them are one idea on the same search (`search.py`): the image is a grid of cells (`cells.py`);
`ops.cover` covers chosen cells by squares of one size; the search asks how fine the squares can be and how many of the
best cells they reach within the budget; the candidate with the highest expected value (`value.py`) wins.

To add an allocator, write one file with one function, and add it below:

    @per_image()                                          # allocator.py
    def mine(cells: Cells, budget: int, *, overview: float = OVERVIEW) -> Boxes:
        return scored(cells, [fitted_layer(cells, cells.ink, budget)])

`per_image` calls the function for each image and gives leftover tokens to the best boxes. A function that needs the
texture, or that works on a whole batch, uses the decorator `allocator` instead and returns an Allocation.
`share_budget` gives one budget to several images, with any allocator.
"""

from texturevlm.allocate.allocator import RegisteredAllocator
from texturevlm.allocate.auto import auto
from texturevlm.allocate.crops import crops
from texturevlm.allocate.density import density
from texturevlm.allocate.foveated import foveate
from texturevlm.allocate.layers import fit, layers
from texturevlm.allocate.plain import grid, resize
from texturevlm.allocate.quadtree import quadtree
from texturevlm.allocate.share import share_budget
from texturevlm.registry import Registry

ALLOCATORS: Registry[RegisteredAllocator] = Registry(
    "allocator",
    "texturevlm.allocators",
    {
        "resize": resize,  # the whole image at one scale
        "grid": grid,  # the best cells of a uniform grid, nothing else
        "fit": fit,  # all ink at the finest scale that fits
        "layers": layers,  # the best cells finely, the other ink coarsely
        "density": density,  # a tiling whose density follows the relevance
        "crops": crops,  # an overview and a few rectangles
        "quadtree": quadtree,  # square tiles halved both ways
        "auto": auto,  # layers or density, by the kind of image
    },
    lab=("cascade", "atlas", "dag", "pyramid", "frequency", "logpolar", "fixations"),
    clients=("resize", "grid", "fit", "layers", "density", "crops", "quadtree", "auto"),
)

__all__ = ["ALLOCATORS", "RegisteredAllocator", "foveate", "share_budget"]
