"""Which image belongs to which prompt: images come one by one, in lists, nested, or as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
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
        return [_channels_first(image) for image in (images if images.ndim == 4 else [images])]
    return [images]


def _channels_first(image: Tensor | np.ndarray[Any, Any]) -> Any:
    """An image whose channels come first or last, as transformers tells them apart."""
    found = torch.as_tensor(image)
    if found.ndim == 3 and found.shape[0] not in (1, 3) and found.shape[-1] in (1, 3, 4):
        return found.movedim(-1, 0)
    return found
