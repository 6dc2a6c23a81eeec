"""A frame as it enters a stream: any of the usual forms → (1, 3, H, W), float32, on the stream's device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from texturevlm.image import to_tensor

GREATEST = {torch.uint8: 255.0, torch.uint16: 65535.0}  # of the whole numbers that have an agreed range


def taken(frame: Any, size: tuple[int, int], device: torch.device, *, keep_bytes: bool = False) -> Tensor:
    """A frame of `size`; whether its values are sound is seen when they are compared, without waiting here.

    frame: a tensor (H, W), (1, H, W), (3, H, W) or with a batch of one, bytes or floats from 0 to 1; an array (H, W) or
           (H, W, 3); a PIL image; a path
    keep_bytes: leave bytes as they are, for kernels that take them: `as_floats` does the rest where it is needed
    """
    image = frame if isinstance(frame, Tensor) else to_tensor(frame)
    usual = image.shape == (1, 3, *size) and image.dtype is torch.float32 and image.device == device
    if usual and image.is_contiguous():
        return image
    while image.dim() < 4:
        image = image[None]
    batch, channels, height, width = image.shape if image.dim() == 4 else (0, 0, 0, 0)
    if batch != 1 or channels not in (1, 3):
        raise ValueError(f"step: frame must be one image (3, H, W) or grey (1, H, W), got {tuple(image.shape)}")
    if (height, width) != size:
        raise ValueError(
            f"step: frame must be {size[0]} × {size[1]} like the stream, got {height} × {width} "
            "(resize it, or begin another stream)"
        )
    image = image.to(device, non_blocking=True)
    if not image.is_floating_point() and image.dtype not in GREATEST:
        raise TypeError(f"step: frame must be bytes, or floats from 0 to 1, got {image.dtype}")
    if not (keep_bytes and image.dtype == torch.uint8):
        image = as_floats(image)
    image = image.expand(-1, 3, -1, -1)
    return image if not keep_bytes or image[0, 0].is_contiguous() else image.contiguous()


def as_floats(image: Tensor) -> Tensor:
    """Values from 0 to 1, float32."""
    return image.float() / GREATEST[image.dtype] if image.dtype in GREATEST else image.float()
