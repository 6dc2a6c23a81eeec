"""Budget + relevance → Allocation: which footprints become tokens.

An allocator is a function `(texture, relevance, *, budget, patch, **options) → Allocation`. ALLOCATORS finds them by
name. Most of them are one idea on the same search (`search.py`): the image is a grid of cells (`cells.py`);
`ops.cover` covers chosen cells by squares of one size; the search asks how fine the squares can be and how many of the
best cells they reach within the budget; the candidate with the highest expected value (`value.py`) wins.

To add an allocator, write a function, and pass it as it is, or give it a name: a line in ALLOCATORS (`allocator.py`),
or an entry point "texturevlm.allocators" of another package:

    @per_image()                                          # allocator.py
    def mine(cells: Cells, budget: int, *, overview: float = OVERVIEW) -> Boxes:
        return scored(cells, [fitted_layer(cells, cells.ink, budget)])

`per_image` calls the function for each image and gives leftover tokens to the best boxes. A function that needs the
texture, or that works on a whole batch, uses the decorator `allocator` instead and returns an Allocation.
`spend` gives one budget to many pictures, with any allocator.
"""

from texturevlm.allocate.allocator import ALLOCATORS, RegisteredAllocator
from texturevlm.allocate.foveated import foveate
from texturevlm.allocate.share import Item, spend

__all__ = ["ALLOCATORS", "Item", "RegisteredAllocator", "foveate", "spend"]
