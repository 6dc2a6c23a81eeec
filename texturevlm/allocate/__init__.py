"""Budget → Allocation: which footprints a model gets to see."""

from texturevlm.allocate.foveated import foveate

__all__ = ["foveate"]
