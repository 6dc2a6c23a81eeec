"""Pixels of Pillow in memory that a GPU can copy from.

Pillow keeps 4 bytes per pixel. `np.asarray` packs them to 3 and joins the rows, which takes as long as decoding: here
rows are copied as they are. A JPEG file is decoded into our memory at once, without any copy; torch keeps pinned memory
for the next image, so that no fresh pages of memory are touched either.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MOST_PINNED = 1 << 24  # pixels of an image that goes to a GPU through pinned memory, which torch does not give back


class StagedImage:
    """Memory for the pixels of an image of a size (width, height), which is to go to a device."""

    def __init__(self, size: tuple[int, int], device: torch.device) -> None:
        width, height = size
        pinned = device.type == "cuda" and height * width <= MOST_PINNED
        self.device = device
        self.pixels = torch.empty((height, width, 4), dtype=torch.uint8, pin_memory=pinned)
        self.pixels[0, 0, 3] = 0  # Pillow writes 255 there
        self.shared = Image.frombuffer("RGBX", size, self.pixels.numpy(), "raw", "RGBX", 0, 1)

    @property
    def filled(self) -> bool:
        """Whether Pillow wrote into it: a version that does not share memory would not."""
        return bool(self.pixels[0, 0, 3] == 255)

    def on_device(self) -> Tensor:
        """(H, W, 3) uint8."""
        return self.pixels.to(self.device, non_blocking=True)[..., :3]


def stage_jpeg(image: Any, device: torch.device) -> StagedImage | None:
    """Have an opened JPEG file decode into memory of ours when it is loaded; None for other images.

    The image is an RGBX image from then on: this is for files that nobody else holds.
    """
    if image.format != "JPEG" or image.mode != "RGB" or not image.tile:
        return None
    staged = StagedImage(image.size, device)
    image._mode, image.im = "RGBX", staged.shared.im
    return staged


def image_bytes(image: Image.Image, device: torch.device) -> Tensor:
    """An RGB image as (H, W, 3) uint8 on a device."""
    staged = StagedImage(image.size, device)
    staged.shared.im.paste(image.im, (0, 0, *image.size))
    return staged.on_device() if staged.filled else torch.from_numpy(np.array(image)).to(device)
