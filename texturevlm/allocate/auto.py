"""auto: whichever allocator won where an image like this one was measured (docs/experiments.md).

A page, or anything that a question points into: `layers`. A photograph without a question: `density`.
"""

from __future__ import annotations

from typing import Any

import torch

from texturevlm.allocate.density import density
from texturevlm.allocate.layers import layers
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture


def auto(texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, **options: Any) -> Allocation:
    """`density` for photographs where nothing was asked, `layers` for everything else; options are the allocator's."""
    if relevance.scene is None or relevance.source != "none" or not relevance.scene.any():
        return layers(texture, relevance, budget=budget, patch=patch, **options)
    chosen = density(texture, relevance, budget=budget, patch=patch, **options)
    if relevance.scene.all():
        return chosen
    pages = layers(texture, relevance, budget=budget, patch=patch, **options)
    columns = {
        name: torch.where(
            relevance.scene.view(-1, *[1] * (getattr(pages, name).dim() - 1)),
            getattr(chosen, name),
            getattr(pages, name),
        )
        for name in ("centre", "ddx", "ddy", "score", "valid", "source")
    }
    return Allocation(**columns, size=texture.size, patch=patch)
