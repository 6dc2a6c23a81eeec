"""What a model's own image processor makes of an image: the baseline that chosen tokens are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from texturevlm.vlm import Adapter
from texturevlm.vlm.families.qwen import INPUTS, QwenAdapter
from texturevlm.vlm.families.qwen_vl import Glm4V
from texturevlm.vlm.places import grid_for


@dataclass(frozen=True, eq=False)
class OwnInput:
    """Pixel inputs, and how many tokens they are."""

    inputs: dict[str, Tensor]
    tokens: int


def has_own_input(adapter: Adapter) -> bool:
    """Whether a model's image processor cuts an image of any size into tokens, so that it can be asked for fewer."""
    return isinstance(adapter, QwenAdapter) and getattr(adapter.processor, "image_processor", None) is not None


def own_input(adapter: Any, image: Image.Image, most: int | None = None) -> OwnInput:
    """What the model's own image processor makes of an image, on the model's device, if `has_own_input`.

    most: at most so many tokens, by its own resize (`max_pixels`); None for what it does by itself
    """
    options: dict[str, Any] = {}
    if most is not None:
        limits = _pixel_limits(adapter, (image.height, image.width), most)
        options = {"do_resize": True, "size": dict(zip(("shortest_edge", "longest_edge"), limits))}
    found = adapter.processor.image_processor(images=[image], return_tensors="pt", **options)
    rows, grid = (found[name] for name in INPUTS[False])
    moved = rows.to(adapter.tower.dtype).to(adapter.device), grid.to(adapter.device)
    return OwnInput(dict(zip(INPUTS[False], moved)), int(grid.prod()) // adapter.merge**2)


def _pixel_limits(adapter: Any, size: tuple[int, int], most: int) -> tuple[int, int]:
    """The least and the most pixels for which the processor cuts an image into at most so many tokens.

    It rounds up when it enlarges a small image, and never goes below one row or column: then a lower limit is needed.
    """
    side = adapter.side**2
    pixels = side * adapter.moments if isinstance(adapter, Glm4V) else side  # as its processor counts a token's
    usual = adapter.processor.image_processor.size["shortest_edge"] * side // pixels
    for least, limit in [(min(usual, most * side), most), *((side, limit) for limit in range(most, 0, -1))]:
        rows, columns = grid_for(size, adapter.side, least=least, most=limit * side)
        if rows * columns <= most:
            break
    return least * pixels // side, limit * pixels
