"""Salience: where something stands that a question could be about, before there is one.

On a document that is text, and every word may be asked for: small print holds more words on the same area, so it counts
as much more as it is smaller. On a photograph it is what stands out from its surroundings, and near the middle, where
photographers put it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.channels.saliency import centre_prior, saliency
from texturevlm.channels.text import text_map
from texturevlm.ops.mip import mipmap

STANDING_OUT = 0.15  # of saliency, against 1 of text, on a page
ANYTHING = 0.02  # that is not blank
WRITTEN = 0.2  # of text, against 1 of saliency, in a photograph


def salience(levels: Sequence[Tensor], cell: int, half: Tensor, ink: Tensor, scene: Tensor) -> Tensor:
    """How likely a question is about each cell, knowing the image alone.

    levels:    red, green and blue, finest first, each (B, 3, H_l, W_l)
    cell:      the level whose texels are the cells
    half, ink: (B, h, w), from `information`
    scene:     (B,), whether it is a photograph
    returns    (B, h, w), summing to 1 an image
    """
    first = min(cell, 1)  # the maps are made at half size: the cells are coarser anyway
    maps = text_map(levels[first], levels[first:]), saliency(levels[first], levels[first:], centre=False)
    text, standing = (mipmap(found[:, None], levels=cell - first + 1)[-1][:, 0] for found in maps)
    page = (text + STANDING_OUT * standing + ANYTHING) * ink / half.clamp(min=1).square()
    photograph = standing * centre_prior(levels[cell]) + WRITTEN * text
    return normalised(torch.where(scene[:, None, None], photograph, page))


def normalised(worth: Tensor) -> Tensor:
    """(B, h, w) → the same, summing to 1 an image; even where there is nothing at all."""
    total = worth.sum((1, 2), keepdim=True)
    even = 1 / worth[0].numel()
    return (worth / total.clamp(min=1e-30)).where(total > 0, even)
