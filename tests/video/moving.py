"""Made-up videos: a smooth scene, things that move over it, noise, fades and cuts."""

import torch
from torch.nn import functional


def scene(size, seed=0, stripes=True):
    """(1, 3, H, W): smooth noise of several scales, and a patch of stripes as text would make."""
    random = torch.Generator().manual_seed(seed)
    image = torch.zeros(1, 3, *size)
    for cells in (3, 9, 27):
        image += functional.interpolate(torch.rand(1, 3, cells, cells, generator=random), size, mode="bilinear") / 3
    if stripes:
        height, width = size[0] // 6, size[1] // 4
        image[..., height : 2 * height, width : 2 * width] = ((torch.arange(width) // 3) % 2).float()
    return image


def noisy(image, sigma, seed=0):
    random = torch.Generator().manual_seed(seed)
    return (image + sigma / 255 * torch.randn(image.shape, generator=random)).clamp(0, 1)


def with_box(image, x, y, side=24, seed=1):
    """A square of texture at (x, y)."""
    random = torch.Generator().manual_seed(seed)
    frame = image.clone()
    box = functional.interpolate(torch.rand(1, 3, 6, 6, generator=random), (side, side), mode="bilinear")
    height, width = image.shape[2:]
    bottom, right = min(y + side, height), min(x + side, width)
    frame[..., y:bottom, x:right] = box[..., : bottom - y, : right - x]
    return frame


def crossing(size, frames, side=24):
    """A square that crosses a still scene."""
    ground = scene(size)
    for index in range(frames):
        x = (5 * index) % (size[1] - side)
        y = (3 * index) % (size[0] - side)
        yield with_box(ground, x, y, side)
