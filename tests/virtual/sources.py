"""Sources of pages for tests: arrays in memory, and a large image that is computed page by page."""

import numpy as np

from texturevlm.ops.mip import level_extents
from texturevlm.virtual import PageKey, StoredLevel, StoredPage


class ArraySource:
    """Levels in memory, (H, W, 3) uint8 each; pages named in `broken` cannot be read."""

    name, opened_with = "arrays", 0

    def __init__(self, arrays, page=(64, 64), broken=()):
        self.arrays, self.broken = arrays, {PageKey(*key) for key in broken}
        self.levels = tuple(StoredLevel(array.shape[:2], page) for array in arrays)
        self.total_bytes = sum(array.size for array in arrays)
        self.asked = []

    def read_pages(self, keys):
        self.asked += keys
        return [self._read(key) for key in keys]

    def _read(self, key):
        if key in self.broken:
            return StoredPage(None, 0, "made so")
        tall, wide = self.levels[key.level].page
        top, left = key.row * tall, key.column * wide
        texels = self.arrays[key.level][top : top + tall, left : left + wide]
        return StoredPage(texels, texels.size)


class LargeSheet:
    """20,480 × 20,480 pixels of paper with one label, 600 pixels wide, of stripes that coarse levels show as grey."""

    name, opened_with, page = "sheet", 0, 256
    label = (9000, 12000, 9600, 12600)  # top, left, bottom, right

    def __init__(self):
        self.levels = tuple(StoredLevel(size, (256, 256)) for size in level_extents(20480, 20480, 8))
        self.total_bytes = sum(3 * height * width for (height, width), _ in self.levels)

    def read_pages(self, keys):
        return [self._read(key) for key in keys]

    def _read(self, key):
        step = 2**key.level
        rows, columns = (
            (np.arange(place * 256, min((place + 1) * 256, extent)) + 0.5) * step
            for place, extent in zip(key[1:], self.levels[key.level].size)
        )
        top, left, bottom, right = self.label
        y, x = rows[:, None], columns[None]
        inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        stripes = np.where((x // 4 % 2 == 0) & (y // 24 % 2 == 0), 20, 230) if step <= 4 else 160
        grain = (np.floor(y * 7 + x * 13) % 3).astype(int)
        grey = np.where(inside, stripes, 230 + grain).astype(np.uint8)
        texels = np.repeat(grey[..., None], 3, 2)
        return StoredPage(texels, texels.size)


def stored_levels(image, count=None):
    """The mip levels of (H, W, 3) uint8, each rounded as a file would store it."""
    import torch

    from texturevlm.ops.mip import mipmap

    levels = mipmap(torch.from_numpy(image).permute(2, 0, 1)[None].float(), levels=count)
    return [level[0].permute(1, 2, 0).round().byte().numpy() for level in levels]


def as_levels(arrays):
    """The same as tensors (1, 3, H, W), 0 to 1."""
    import torch

    return [torch.from_numpy(array).permute(2, 0, 1)[None].float() / 255 for array in arrays]
