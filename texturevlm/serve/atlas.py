"""The pixels of tokens as a browser gets them: one JPEG with a square per token."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture

ATLAS_COLUMNS = 32  # tokens per row
GUTTER = 4  # pixels around each token that repeat its edge: a browser that shrinks the atlas mixes neighbours
ATLAS_QUALITY = 92


def token_pixels(texture: Texture, allocation: Allocation) -> Tensor:
    """(K, 3, P, P) uint8: the used tokens of one image, as a model gets them."""
    used = int(allocation.valid[0].sum())
    found = sample(texture, allocation).pixels[0, :used, :3]
    return (found.clamp(0, 1) * 255).round().byte().cpu()


def atlas_of(pixels: Tensor) -> Image.Image:
    """All tokens (K, 3, P, P) in one picture, row by row, each with a gutter around it."""
    edge = torch.arange(-GUTTER, pixels.shape[-1] + GUTTER).clamp(0, pixels.shape[-1] - 1)
    pixels = pixels[:, :, edge][..., edge]
    count, _, patch, _ = pixels.shape
    rows = max(1, -(-count // ATLAS_COLUMNS))
    whole = pad(pixels, (0, 0, 0, 0, 0, 0, 0, rows * ATLAS_COLUMNS - count))
    whole = whole.reshape(rows, ATLAS_COLUMNS, 3, patch, patch).permute(0, 3, 1, 4, 2)
    return Image.fromarray(whole.reshape(rows * patch, ATLAS_COLUMNS * patch, 3).contiguous().numpy())


def data_url(image: Image.Image) -> str:
    """A JPEG as a data URL."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=ATLAS_QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
