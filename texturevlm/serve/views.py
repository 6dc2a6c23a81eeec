"""Pictures that the page lays under and over one another: tiles, relevance, layers."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from texturevlm.draw import HEAT, PALE, layer_picture, ramp_colours, to_pil
from texturevlm.relevance import Relevance
from texturevlm.serve.limits import ApiError
from texturevlm.serve.pictures import Picture

TILE = 512  # pixels along a side of a tile
TILE_QUALITY = 88
LAYER_SIDE = 640  # pixels along the longer side of a layer
THUMBNAIL, LARGEST_THUMBNAIL = 160, 1280


def encoded(image: Image.Image, form: str, **options: int) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def tile(picture: Picture, level: int, column: int, row: int) -> bytes:
    """A square of a mip level, as JPEG; at the border what is left of it."""
    levels = picture.texture.levels
    if not 0 <= level < len(levels):
        raise ApiError(404, f"level must be from 0 to {len(levels) - 1}, got {level}")
    height, width = levels[level].shape[2:]
    if not (0 <= column * TILE < width and 0 <= row * TILE < height):
        raise ApiError(404, f"level {level} has {-(-width // TILE)}×{-(-height // TILE)} tiles, got {column}_{row}")
    part = levels[level][:1, :3, row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
    return encoded(to_pil(part), "JPEG", quality=TILE_QUALITY)


def thumbnail(picture: Picture, side: int = THUMBNAIL) -> bytes:
    """The whole picture, small: `side` pixels along its longer side at most."""
    levels = picture.texture.levels
    level = next((one for one in levels if max(one.shape[2:]) <= 2 * side), levels[-1])
    image = to_pil(level[:1])
    image.thumbnail((side, side))
    return encoded(image, "JPEG", quality=TILE_QUALITY)


def relevance_picture(relevance: Relevance) -> bytes:
    """The relevance as a transparent PNG, a pixel per cell, to be laid over the picture: stronger is more opaque."""
    mass = relevance.mass[0].float().cpu()
    # As in `draw.heat`: the square root makes low values visible, and uniform relevance stays pale.
    strength = (mass / mass.max().maximum(PALE * mass.mean()).clamp(min=1e-30)).sqrt().numpy()
    colours = ramp_colours(0.25 + 0.75 * strength, HEAT)
    opaque = np.minimum(1.0, strength * 1.15)[..., None] * 235
    return encoded(Image.fromarray(np.concatenate([colours, opaque], -1).round().astype(np.uint8), "RGBA"), "PNG")


def layer_view(picture: Picture, name: str, *, small: bool) -> bytes:
    """A channel in colours."""
    return _drawn(name, picture.layer(name), small=small)


def gaze_view(gaze: torch.Tensor, *, small: bool) -> bytes:
    """The channel `gaze`, (1, h, w), in colours."""
    return _drawn("gaze", gaze[0], small=small)


def _drawn(name: str, layer: torch.Tensor, *, small: bool) -> bytes:
    side = THUMBNAIL if small else LAYER_SIDE
    scale = min(1.0, side / max(layer.shape))
    size = tuple(max(1, round(extent * scale)) for extent in layer.shape)
    mode = "nearest" if name == "cluster_id" else "area"
    shrunk: torch.Tensor = interpolate(layer[None, None].float(), size, mode=mode)[0, 0]
    return encoded(layer_picture(name, shrunk), "JPEG", quality=TILE_QUALITY)
