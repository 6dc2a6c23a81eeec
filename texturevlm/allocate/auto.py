"""auto: whichever allocator won where an image like this one was measured (docs/experiments.md).

A page, or anything that a question points into: `layers`. A photograph without a question: `density`. On a GPU nobody
waits to be told which it is: the kernels of either leave the other's images alone.
"""

from __future__ import annotations

from typing import Any

import torch

from texturevlm.allocate.density import density
from texturevlm.allocate.layers import OVERVIEW, layers, layers_by_kernel
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture


def auto(texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, **options: Any) -> Allocation:
    """`density` for photographs where nothing was asked, `layers` for everything else; options are the allocator's."""
    scene = relevance.photograph
    if scene is None or relevance.asked:
        return layers(texture, relevance, budget=budget, patch=patch, **options)
    if not options:
        pages = layers_by_kernel("auto", relevance, budget=budget, patch=patch, overview=OVERVIEW, skipped=scene)
        if pages is not None:
            return _either(scene, density(texture, relevance, budget=budget, patch=patch, wanted=scene), pages)
    if not scene.any():
        return layers(texture, relevance, budget=budget, patch=patch, **options)
    chosen = density(texture, relevance, budget=budget, patch=patch, **options)
    if scene.all():
        return chosen
    return _either(scene, chosen, layers(texture, relevance, budget=budget, patch=patch, **options))


def _either(scene: torch.Tensor, photographs: Allocation, pages: Allocation) -> Allocation:
    """Each image's own, (B,) of them photographs."""
    columns = {
        name: torch.where(
            scene.view(-1, *[1] * (getattr(pages, name).dim() - 1)), getattr(photographs, name), getattr(pages, name)
        )
        for name in ("centre", "ddx", "ddy", "score", "valid")
    }
    return Allocation(**columns, source=pages.source, size=pages.size, patch=pages.patch)
