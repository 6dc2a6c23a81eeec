"""The pixels of tokens as a browser gets them: one JPEG with a square per token.

On a CPU the sampler of the library takes longer than everything else together, because it is written to be the
specification of the kernels. Here `grid_sample` reads the same probes, level by level.
"""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from texturevlm.ops.lookup_reference import lattice, probes
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture

ATLAS_COLUMNS = 32  # tokens per row
GUTTER = 4  # pixels around each token that repeat its edge: a browser that shrinks the atlas mixes neighbours
ATLAS_QUALITY = 92


def token_pixels(texture: Texture, allocation: Allocation) -> Tensor:
    """(K, 3, P, P) uint8: the used tokens of one image, as a model gets them."""
    used = int(allocation.valid[0].sum())
    if texture.device.type != "cpu":
        found = sample(texture, allocation).pixels[0, :used, :3]
    else:
        centre, ddx, ddy = (one[0, :used].float() for one in (allocation.centre, allocation.ddx, allocation.ddy))
        found = _sampled(texture.levels, centre, ddx, ddy, allocation.patch)
    return (found.clamp(0, 1) * 255).round().byte().cpu()


def _sampled(levels: tuple[Tensor, ...], centre: Tensor, ddx: Tensor, ddy: Tensor, patch: int) -> Tensor:
    """What `sample` returns, (K, C, P, P), each token by two levels."""
    lod, spread, number = probes(ddx, ddy)
    lod = lod.clamp(0, len(levels) - 1)
    points = lattice(centre[None], ddx[None], ddy[None], patch)[0]  # (K, P, P, 2)
    extent = torch.tensor([levels[0].shape[3], levels[0].shape[2]], dtype=points.dtype)
    found = points.new_zeros(len(points), levels[0].shape[1], patch, patch)
    for level in range(len(levels)):
        # A token between two levels reads both; the weight of this one falls with the distance.
        weight = (1 - (lod - level).abs()).clamp(min=0)
        own = weight.nonzero()[:, 0]
        for probe in range(int(number[own].max()) if len(own) else 0):
            some = own[probe < number[own]]
            offset = (probe / (number[some] - 1).clamp(min=1) - 0.5) * (number[some] > 1)
            where = (points[some] + (offset[:, None] * spread[some])[:, None, None]) / extent * 2 - 1
            read = grid_sample(
                levels[level][:1], where.reshape(1, -1, patch, 2), padding_mode="border", align_corners=False
            )
            share = (weight[some] / number[some])[:, None, None, None]
            found[some] += read[0].reshape(-1, len(some), patch, patch).transpose(0, 1) * share
    return found


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
