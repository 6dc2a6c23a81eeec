"""Budget + relevance → Allocation: which footprints a model gets to see. Every allocator takes the same arguments."""

from texturevlm.allocate.atlas import atlas
from texturevlm.allocate.auto import auto
from texturevlm.allocate.cascade import cascade
from texturevlm.allocate.crops import crops
from texturevlm.allocate.dag import dag
from texturevlm.allocate.density import density
from texturevlm.allocate.fixations import fixations
from texturevlm.allocate.foveated import foveate
from texturevlm.allocate.frequency import frequency
from texturevlm.allocate.layers import fit, layers
from texturevlm.allocate.logpolar import logpolar
from texturevlm.allocate.plain import grid, resize
from texturevlm.allocate.pyramid import pyramid
from texturevlm.allocate.quadtree import quadtree
from texturevlm.allocate.share import share_budget

ALLOCATORS = {
    "resize": resize,
    "grid": grid,
    "fit": fit,
    "layers": layers,
    "density": density,
    "cascade": cascade,
    "atlas": atlas,
    "crops": crops,
    "dag": dag,
    "pyramid": pyramid,
    "quadtree": quadtree,
    "frequency": frequency,
    "logpolar": logpolar,
    "fixations": fixations,
    "auto": auto,
}

__all__ = ["ALLOCATORS", "foveate", "share_budget"]
