"""What a browser shows, as files: tokens, tiles, thumbnails, relevance, layers."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, pad

from texturevlm.draw import HEAT, layer_picture, ramp_colours, strength, to_pil
from texturevlm.placement import Placement
from texturevlm.serve.limits import ApiError
from texturevlm.types import Texture

ATLAS_COLUMNS = 32  # tokens per row
GUTTER = 4  # pixels around each token that repeat its edge: a browser that shrinks the atlas mixes neighbours
ATLAS_QUALITY = 92
TILE = 512  # pixels along a side of a tile
QUALITY = 88  # of any other JPEG
LAYER_SIDE = 640  # pixels along the longer side of a layer
THUMBNAIL, LARGEST_THUMBNAIL = 160, 1280


def atlas(pixels: Tensor) -> dict[str, object]:
    """All tokens (K, 3, P, P), values 0 to 1, in one picture, row by row, each with a gutter around it."""
    edge = torch.arange(-GUTTER, pixels.shape[-1] + GUTTER).clamp(0, pixels.shape[-1] - 1)
    pixels = (pixels[:, :, edge][..., edge].clamp(0, 1) * 255).round().byte().cpu()
    count, _, patch, _ = pixels.shape
    rows = max(1, -(-count // ATLAS_COLUMNS))
    whole = pad(pixels, (0, 0, 0, 0, 0, 0, 0, rows * ATLAS_COLUMNS - count))
    whole = whole.reshape(rows, ATLAS_COLUMNS, 3, patch, patch).permute(0, 3, 1, 4, 2)
    image = Image.fromarray(whole.reshape(rows * patch, ATLAS_COLUMNS * patch, 3).contiguous().numpy())
    return {"url": data_url(image), "columns": ATLAS_COLUMNS, "gutter": GUTTER}


def data_url(image: Image.Image) -> str:
    """A JPEG as a data URL."""
    content = jpeg(image, quality=ATLAS_QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(content).decode()


def jpeg(image: Image.Image, **options: int) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": QUALITY, **options})
    return file.getvalue()


def tile(texture: Texture, level: int, column: int, row: int) -> bytes:
    """A square of a mip level, as JPEG; at the border what is left of it."""
    levels = texture.levels
    if not 0 <= level < len(levels):
        raise ApiError(404, f"level must be from 0 to {len(levels) - 1}, got {level}")
    height, width = levels[level].shape[2:]
    if not (0 <= column * TILE < width and 0 <= row * TILE < height):
        raise ApiError(404, f"level {level} has {-(-width // TILE)}×{-(-height // TILE)} tiles, got {column}_{row}")
    return jpeg(to_pil(levels[level][:1, :3, row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]))


def thumbnail(texture: Texture, side: int) -> bytes:
    """The whole image as JPEG, small: `side` pixels along its longer side at most."""
    level = next((level for level in texture.levels if max(level.shape[2:]) <= 2 * side), texture.levels[-1])
    image = to_pil(level[:1])
    image.thumbnail((side, side))
    return jpeg(image)


def heat(placement: Placement) -> bytes:
    """The relevance as a transparent PNG, a pixel per cell, to be laid over the image as it was given: stronger is more
    opaque."""
    mass = placement.picture.frame.inverse().maps(placement.relevance.mass)[0].float().cpu()
    strong = strength(mass)
    colours = ramp_colours(0.25 + 0.75 * strong, HEAT)
    opaque = np.minimum(1.0, strong * 1.15)[..., None] * 235
    file = io.BytesIO()
    Image.fromarray(np.concatenate([colours, opaque], -1).round().astype(np.uint8), "RGBA").save(file, "PNG")
    return file.getvalue()


def coloured(name: str, layer: Tensor, *, small: bool) -> bytes:
    """A channel (h, w) in its colours, as JPEG."""
    side = THUMBNAIL if small else LAYER_SIDE
    scale = min(1.0, side / max(layer.shape))
    size = tuple(max(1, round(extent * scale)) for extent in layer.shape)
    mode = "nearest" if name == "cluster_id" else "area"
    shrunk: Tensor = interpolate(layer[None, None].float(), size, mode=mode)[0, 0]
    return jpeg(layer_picture(name, shrunk))
