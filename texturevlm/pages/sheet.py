"""A contact sheet: the pages that get no tokens of their own, one token each, in one image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.types import COLOURS, Texture


def thumbnail(texture: Texture, side: int) -> Tensor:
    """(3, side, side) uint8 on the CPU: a page in the samples of one token, its longer side fitted, the rest white."""
    level = next((one for one in reversed(texture.levels) if min(one.shape[2:]) >= side), texture.levels[0])
    scale = side / max(texture.size)
    tall, wide = (max(1, min(side, round(extent * scale))) for extent in texture.size)
    small = functional.interpolate(level[:, :3].float(), (tall, wide), mode="bilinear", antialias=True)
    top, left = (side - tall) // 2, (side - wide) // 2
    whole = functional.pad(small, (left, side - wide - left, top, side - tall - top), value=1.0)
    return (whole[0].clamp(0, 1) * 255).round().to("cpu", torch.uint8).expand(3, -1, -1)


def sheet_of(thumbnails: Sequence[Tensor], device: torch.device) -> Texture:
    """Thumbnails row by row, about as many rows as columns."""
    side = thumbnails[0].shape[-1]
    columns = math.ceil(math.sqrt(len(thumbnails)))
    rows = math.ceil(len(thumbnails) / columns)
    sheet = torch.full((3, rows * side, columns * side), 255, dtype=torch.uint8)
    for place, small in enumerate(thumbnails):
        y, x = (part * side for part in divmod(place, columns))
        sheet[:, y : y + side, x : x + side] = small
    return Texture((sheet.to(device).float().div(255)[None],), COLOURS).mipmapped()


def sheet_tokens(pages: int) -> int:
    """Tokens that a sheet of so many pages takes, empty places included."""
    columns = math.ceil(math.sqrt(pages))
    return columns * math.ceil(pages / columns)
