"""What one configuration delivers of an image: the tokens' picture and scale, or a baseline's.

The three kinds are judged by the same metrics: an allocation, the ideal resize, and the full image (the ceiling).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm.evaluate.recall import box_scale, resize_scale
from texturevlm.rebuilding import PixelBox, rebuild, resized
from texturevlm.types import Allocation, Texture


@dataclass(frozen=True, eq=False)
class Delivered:
    """A texture and its median grey; with an allocation, or with budget and patch (the ideal resize), or the image."""

    texture: Texture
    grey: Tensor
    allocation: Allocation | None = None
    budget: int | None = None
    patch: int = 32

    def picture(self, box: PixelBox | None = None) -> Tensor:
        """(C, H, W), or a part of it."""
        if self.allocation is not None:
            return rebuild(self.texture, self.allocation, box=box, grey=self.grey)[0]
        if self.budget is not None:
            return resized(self.texture, budget=self.budget, patch=self.patch, box=box)[0]
        image = self.texture.levels[0][0]
        return image if box is None else image[:, box[1] : box[3], box[0] : box[2]]

    def scale(self, box: PixelBox) -> Tensor:
        """(h, w): image pixels per token pixel."""
        if self.allocation is not None:
            return box_scale(self.allocation, box)
        side = 1.0 if self.budget is None else resize_scale(self.texture.size, self.budget, self.patch)
        return torch.full((box[3] - box[1], box[2] - box[0]), side)
