"""What an image shows without a question: how fine its content is, and how likely a question is about each cell.

Information is what coarser sampling would lose in each cell, from the mip levels alone. A mip texel is a mean, so the
variance lost at a level is the mean square of level 0 minus that of the level. A cell whose variance does not exceed
the noise is blank. The growth of the loss from level to level tells how fine the content is: small print is lost at
level 2, a headline at level 4. `information` is the specification of the kernels (information.cu), which also weigh the
cells by text and saliency.

Salience: on a page every word may be asked for. Small print holds more words on the same area, so it counts more. On a
photograph it is what stands out from its surroundings, and more so near the middle, where photographers put their
subject.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import (
    box_mean,
    centre_prior,
    coarse_layers,
    colour_levels,
    grey_levels,
    highest,
    text_layer,
    text_map,
)
from texturevlm.channels import structure as saliency
from texturevlm.cuda import Layout, constants, launch
from texturevlm.ops import backend as backends
from texturevlm.ops import mipmap
from texturevlm.relevance.maps import ImageMaps, normalised
from texturevlm.types import COLOURS, Texture

MOST_CELL, COARSEST, COUNTS, _SIDE = constants("information.cu", "MOST_CELL", "COARSEST", "COUNTS", "SIDE")
_LOSSES, _MAPS = Layout("information.cu", "Losses"), Layout("information.cu", "Maps")
_COARSER = Layout("information.cu", "Coarser").in_order("squares", "colour", "height", "width")
WINDOW = 5  # cells over which losses are averaged, so that the gaps between words do not differ from the words
LOST = 0.6  # of the variance: with this loss, half of the words are no longer legible (measured)
BLANK = (0.012, 0.03)  # standard deviation of a blank cell on the cleanest page and on the noisiest
NOISE_SHARE, NOISE_TIMES = 0.2, 3.0  # a fifth of nearly any page is blank; content exceeds three times its noise
QUIET_STEPS = 255  # of noise between the two of BLANK: a GPU counts the cells per step and needs no sort


def losses(levels: Sequence[Tensor], cell: int) -> Tensor:
    """The variance of each cell that is lost at each level.

    levels: grey, finest first, each (B, 1, H_l, W_l)
    cell:   the level whose texels are the cells, (h, w)
    returns (B, COARSEST + 1, h, w), never falling from level to level; 0 at level 0
    """
    squares = [_down(level.square(), cell - index) for index, level in enumerate(levels[: cell + 1])]
    gone = [squares[0] - square for square in squares[: COARSEST + 1]]
    cells = levels[cell]
    for index in range(cell + 1, COARSEST + 1):
        coarse = levels[min(index, len(levels) - 1)]
        within = _down(cells.square(), min(index, len(levels) - 1) - cell) - coarse.square()
        gone.append(gone[cell] + functional.interpolate(within, cells.shape[2:], mode="nearest"))
    return torch.cat(gone, 1).clamp(min=0).cummax(1).values


def information(levels: Sequence[Tensor], cell: int) -> tuple[Tensor, Tensor]:
    """How fine the content of each cell is, and whether there is any: legible_scale and ink as in Relevance, (B, h, w).

    levels, cell: as in `losses`
    """
    gone = losses(levels, cell)
    deviation = gone[:, min(max(cell, 1), COARSEST)].sqrt()  # a cell that is one pixel varies with its neighbours
    blank = (_quiet(deviation) * NOISE_TIMES).clamp(*BLANK)[:, None, None]
    ink = highest((deviation > blank).to(gone.dtype)[:, None], 3, 3)[:, 0] > 0
    return _legible_scale(box_mean(gone, WINDOW, WINDOW)), ink


def _quiet(deviation: Tensor) -> Tensor:
    """(B, h, w) → (B,): the deviation below which a fifth of the cells lies, rounded down to a step."""
    cells = deviation.flatten(1)
    found = cells.kthvalue(1 + int(NOISE_SHARE * (cells.shape[1] - 1)), 1).values
    low, high = (edge / NOISE_TIMES for edge in BLANK)
    step = (high - low) / QUIET_STEPS
    return low + ((found - low) / step).floor().clamp(0, QUIET_STEPS) * step


def _legible_scale(gone: Tensor) -> Tensor:
    """The scale at which LOST of the variance is lost, interpolated between two levels."""
    share = gone / gone[:, -1:].clamp(min=1e-12)
    below = (share < LOST).sum(1, keepdim=True).clamp(1, share.shape[1] - 1)  # the first level that has lost as much
    low, high = share.gather(1, below - 1), share.gather(1, below)
    level = below - 1 + ((LOST - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return torch.exp2(level.squeeze(1).to(gone.dtype))


def _down(texels: Tensor, levels: int) -> Tensor:
    return mipmap(texels, levels=levels + 1)[-1] if levels > 0 else texels


def information_cuda(
    levels: Sequence[Tensor], cell: int, found: Tensor, page: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Worth, legible_scale and ink, each (B, h, w), and whether an image is a photograph, (B,), by our kernels.

    levels: red, green and blue, finest first, each (B, 3, H_l, W_l) float32, contiguous, to the coarsest
    cell:   the level whose texels are the cells, 1 to MOST_CELL
    found:  (B, 2, h, w), text and saliency on the cells, contiguous
    page:   the share of them that have the ground's brightness on a page
    """
    batch, _, rows, columns = levels[cell].shape
    memory = levels[0].new_empty((cell + 3, batch, rows, columns))
    squares, gone, legible_scale, worth = memory[0], memory[1 : cell + 1], memory[cell + 1], memory[cell + 2]
    histogram = torch.zeros((batch, COUNTS), dtype=torch.int32, device=squares.device)
    marks = torch.empty(batch * (rows * columns + 1), dtype=torch.bool, device=squares.device)
    ink, photograph = marks[batch:].view(batch, rows, columns), marks[:batch]
    blocks = -(-rows // _SIDE) * -(-columns // _SIDE) * batch
    finer = levels[: cell + 1]
    parameters = _LOSSES.pack(
        level=finer, squares=squares, gone=gone, histogram=histogram, height=[level.shape[2] for level in finer],
        width=[level.shape[3] for level in finer], batch=batch, cell=cell,
    )  # fmt: skip
    launch("information.cu", "information_losses", squares.device, blocks, parameters)
    means = mipmap(squares[:, None], levels=COARSEST - cell + 1, backend="cuda")
    coarser = []
    for above in (min(level, len(means) - 1) for level in range(1, COARSEST)):
        colour = levels[cell + above]
        coarser.append(_COARSER(means[above].data_ptr(), colour.data_ptr(), *colour.shape[2:]))
    cells = rows * columns
    parameters = _MAPS.pack(
        gone=gone, histogram=histogram, found=found, legible_scale=legible_scale, worth=worth, ink=ink,
        photograph=photograph, coarser=coarser, batch=batch, cell=cell, rows=rows, columns=columns,
        quiet_rank=int(NOISE_SHARE * (cells - 1)), page=page * cells,
    )  # fmt: skip
    launch("information.cu", "information_maps", squares.device, blocks, parameters)
    return worth, legible_scale, ink, photograph


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
