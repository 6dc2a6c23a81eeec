"""Which image belongs to which prompt: images come one by one, in lists, nested, or as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


def by_prompt(images: Any, counts: Sequence[int]) -> list[list[Any]]:
    """Distribute images, flat or in lists, over prompts with `counts` placeholders each."""
    if (
        isinstance(images, (list, tuple))
        and len(images) == len(counts)
        and all(isinstance(one, (list, tuple)) for one in images)
    ):
        nested = [_flat(one) for one in images]
    else:
        flat = iter(_flat(images))
        nested = [[image for _, image in zip(range(count), flat)] for count in counts]
        nested[-1] += list(flat)
    if [len(one) for one in nested] != list(counts):
        raise ValueError(
            f"processor: each text must have one placeholder per image, got {list(counts)} placeholders for "
            f"{[len(one) for one in nested]} images"
        )
    return nested


def _flat(images: Any) -> list[Any]:
    """A list of single images."""
    if images is None:
        return []
    if isinstance(images, (list, tuple)):
        return [image for part in images for image in _flat(part)]
    if isinstance(images, (Tensor, np.ndarray)):
        return [_as_opened(image) for image in (images if images.ndim == 4 else [images])]
    return [images]


def _as_opened(image: Tensor | np.ndarray[Any, Any]) -> Any:
    """An array (H, W, C) or a tensor (C, H, W), whose channels may have come first or last."""
    if image.ndim != 3:
        return image
    last = image.shape[0] not in (1, 3) and image.shape[-1] in (1, 3, 4)  # as transformers tells them apart
    if isinstance(image, Tensor):
        return image.movedim(-1, 0) if last else image
    return image if last else np.moveaxis(image, 0, -1)
