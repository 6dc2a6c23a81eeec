"""What several kernels read, packed: the levels of a pyramid (probe.cuh), which tiles (marks.cuh) or boxes changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from texturevlm.cuda import Layout, constants, device_constant

_PYRAMID, _MARKS = Layout("probe.cuh", "Pyramid"), Layout("marks.cuh", "Marks")
(FAR,) = constants("mip.cuh", "FAR")


def pack_pyramid(levels: Sequence[Tensor], nearest: Sequence[int]) -> bytes:
    """levels: finest first, each (B, C, H_l, W_l) in any layout; nearest: channels that hold labels."""
    flags = None
    if nearest:
        chosen = [int(channel in nearest) for channel in range(levels[0].shape[1])]
        flags = device_constant(chosen, torch.uint8, levels[0].device)
    geometry = _geometry(tuple([(level.shape, level.stride()) for level in levels]))
    return geometry.pack(data=levels, nearest=flags)


@lru_cache(maxsize=256)
def _geometry(levels: tuple[tuple[torch.Size, tuple[int, ...]], ...]) -> Layout:
    """With strides and extents, the same for every image of a size."""
    for index, (shape, stride) in enumerate(levels):
        if (shape[2] - 1) * stride[2] + (shape[3] - 1) * stride[3] >= 1 << 31:
            raise ValueError(
                f"levels[{index}] of {tuple(shape)} with strides {stride} has texels further apart than 2³¹ elements, "
                "more than the kernels can count: pass levels.contiguous(), or backend='reference'"
            )
    shapes, strides = zip(*levels)
    _, channels, height, width = (list(sizes) for sizes in zip(*shapes))
    names = ("image", "channel", "row", "column")
    by_axis = {name: list(steps) for name, steps in zip(names, zip(*strides))}
    return _PYRAMID.fix(**by_axis, height=height, width=width, levels=len(levels), channels=channels[0])


@dataclass(frozen=True, eq=False)
class Marks:
    """A summed-area table. total: (rows + 1, columns + 1) int32, the marked tiles above and left of each corner."""

    total: Tensor
    tile: int

    @cached_property
    def packed(self) -> bytes:
        """`struct Marks` of marks.cuh."""
        rows, columns = self.total.shape
        return _MARKS.pack(total=self.total, rows=rows - 1, columns=columns - 1, inverse=1 / self.tile)


def pack_marks(marks: Marks | None) -> bytes | None:
    """`struct Marks`; None: everything changed."""
    return None if marks is None else marks.packed


def packed_boxes(boxes: Tensor) -> Tensor:
    """Rectangles (B, N, 4) of whole numbers as kernels read them: int32, one aligned load each."""
    if boxes.dtype != torch.int32:
        boxes = boxes.clamp(-FAR, FAR).to(torch.int32)
    boxes = boxes.contiguous()
    return boxes if boxes.data_ptr() % 16 == 0 else boxes.clone()
