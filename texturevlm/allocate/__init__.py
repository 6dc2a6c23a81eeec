"""Budget + relevance → Allocation: which footprints a model gets to see. Every allocator takes the same arguments."""

from texturevlm.allocate.auto import auto
from texturevlm.allocate.cascade import cascade
from texturevlm.allocate.density import density
from texturevlm.allocate.foveated import foveate
from texturevlm.allocate.layers import fit, layers
from texturevlm.allocate.plain import grid, resize

ALLOCATORS = {
    "resize": resize,
    "grid": grid,
    "fit": fit,
    "layers": layers,
    "density": density,
    "cascade": cascade,
    "auto": auto,
}

__all__ = ["ALLOCATORS", "foveate"]
