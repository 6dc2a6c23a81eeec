"""Salience: how likely a question is about each cell, before there is one.

On a page every word may be asked for. Small print holds more words on the same area, so it counts more. On a photograph
it is what stands out from its surroundings, and more so near the middle, where photographers put their subject.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.channels.fused import coarse_layers, text_layer
from texturevlm.channels.saliency import centre_prior, saliency
from texturevlm.channels.structure import colour_levels, grey_levels
from texturevlm.channels.text import text_map
from texturevlm.ops import backend as backends
from texturevlm.ops.mip import mipmap
from texturevlm.relevance.information import MOST_CELL, information, information_cuda
from texturevlm.relevance.maps import ImageMaps, normalised
from texturevlm.types import COLOURS, Texture

STANDING_OUT = 0.15  # weight of saliency on a page, where text has 1
ANYTHING = 0.02  # weight of any cell that is not blank
WRITTEN = 0.2  # weight of text on a photograph, where saliency has 1
STEPS = 32  # of brightness
GROUND = 3  # steps of the background: paper is not lit evenly
# The share of cells with the background's brightness: at least .70 on nine pages of ten, at most .59 on nine
# photographs of ten.
PAGE_SHARE = 0.55


def cell_maps(texture: Texture, cell: int, *, backend: str = "auto") -> ImageMaps:
    """All that is known of an image without a question; on a GPU by a few kernels.

    texture: with all its mip levels, from the image's own size
    cell:    the level whose texels are the cells
    """
    colour = colour_levels(texture)
    if backends.choose("cell_maps", colour[0], backend, _no_kernel_because(colour[0], cell)) == "cuda":
        return maps_by_kernels([level.float().contiguous() for level in colour], cell)
    grey = grey_levels(texture)
    legible_scale, ink = information(grey, cell)
    photograph = is_photograph(grey[cell])
    read = grey if set(COLOURS) <= set(texture.names) else None  # of a single channel the text map has its own
    worth = salience(colour, cell, legible_scale, ink, photograph, read)
    return ImageMaps(worth, legible_scale, ink, photograph)


def _no_kernel_because(image: Tensor, cell: int) -> str | None:
    if not 1 <= cell <= MOST_CELL:
        return f"the kernels take cells that are texels of level 1 to {MOST_CELL}, not {cell}"
    return "the kernels have no gradients" if torch.is_grad_enabled() and image.requires_grad else None


def maps_by_kernels(levels: Sequence[Tensor], cell: int, layers: Tensor | None = None) -> ImageMaps:
    """layers: (B, 2, H / 2, W / 2), memory for text and saliency at half size."""
    finer = levels[1:]
    if layers is None:
        layers = finer[0].new_empty((finer[0].shape[0], 2, *finer[0].shape[2:]))
    text_layer(layers, finer, 0)
    coarse_layers(layers, finer, -1, 1)
    found = mipmap(layers, levels=cell, backend="cuda")[-1]
    worth, legible_scale, ink, photograph = information_cuda(levels, cell, found, PAGE_SHARE)
    return ImageMaps(normalised(worth), legible_scale, ink, photograph)


def salience(
    levels: Sequence[Tensor],
    cell: int,
    legible_scale: Tensor,
    ink: Tensor,
    photograph: Tensor,
    grey: Sequence[Tensor] | None = None,
) -> Tensor:
    """How likely a question is about each cell, from the image alone.

    levels: red, green and blue, finest first, each (B, 3, H_l, W_l)
    cell:   the level whose texels are the cells
    legible_scale, ink: (B, h, w), from `information`
    photograph: (B,)
    grey:   brightness of the levels, if it was made already
    returns (B, h, w), summing to 1 per image
    """
    first = min(cell, 1)  # the maps are made at half size: the cells are coarser anyway
    maps = text_map(levels[first], levels[first:], grey and grey[first:]), saliency(levels[first], levels[first:])
    text, salient = (mipmap(found[:, None], levels=cell - first + 1)[-1][:, 0] for found in maps)
    of_page = (text + STANDING_OUT * salient + ANYTHING) * ink / legible_scale.clamp(min=1).square()
    of_photograph = salient * centre_prior(levels[cell]) + WRITTEN * text
    return normalised(torch.where(photograph[:, None, None], of_photograph, of_page))


def is_photograph(cells: Tensor) -> Tensor:
    """(B, 1, h, w), brightness 0 to 1 → (B,) bool: a page has one background brightness, a photograph has none."""
    step = (cells.flatten(1) * STEPS).long().clamp(0, STEPS - 1)
    counts = torch.zeros(len(cells), STEPS, device=cells.device)
    counts.scatter_add_(1, step, torch.ones_like(step, dtype=torch.float32))
    return counts.topk(GROUND, dim=1).values.sum(1) < PAGE_SHARE * step.shape[1]
