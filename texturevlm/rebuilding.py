"""The picture that the tokens deliver.

A token holds the mean of the image over each of its P×P cells. It is enlarged (bicubic) to its footprint. Smaller
footprints are painted over larger ones. Where there is no token, the picture is the image's median grey.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.ops import sample_patches, share_of_pixels
from texturevlm.types import Allocation, Texture, check_allocation, check_texture

PixelBox = tuple[int, int, int, int]  # xyxy in whole pixels
AxisWeights = dict[tuple[float, ...], tuple[Tensor, Tensor, slice]]


def rebuild(
    texture: Texture, allocation: Allocation, *, box: PixelBox | None = None, grey: Tensor | None = None
) -> Tensor:
    """Paint the tokens of an allocation, sampled from a texture's finest level. For pictures: labels are averaged too.

    box:    xyxy in whole pixels: only that part of the picture, at a fraction of the cost
    grey:   (B,), the value where there is no token; None: `median_grey` of the texture, which takes time
    returns (B, C, H, W), the size of the image, or of the box
    """
    check_texture("rebuild", texture)
    check_allocation("rebuild", allocation)
    _check_whole("rebuild", texture, allocation.size)
    if texture.batch != allocation.batch:
        raise ValueError(f"rebuild: allocation must be for {texture.batch} images, got {allocation.batch}")
    left, top, right, bottom = _check_box("rebuild", box, allocation.size)
    image = texture.levels[0].detach()
    grey = median_grey(texture) if grey is None else grey
    canvas = grey[:, None, None, None].expand(*image.shape[:2], bottom - top, right - left).clone()
    boxes = allocation.boxes.detach().double().cpu()
    first, last = allocation.pixel_span()
    first, last = first.maximum(torch.tensor([left, top])), last.minimum(torch.tensor([right, bottom]))
    touched = allocation.valid.cpu() & (first < last).all(-1)
    area, upright = allocation.area.detach().cpu(), allocation.upright.cpu()
    if not upright[touched].all():
        texture = texture.mipmapped()  # rotated footprints are sampled
    weights: AxisWeights = {}
    for index in range(texture.batch):
        slots = touched[index].nonzero()[:, 0].tolist()
        for slot in sorted(slots, key=lambda slot: -area[index, slot].item()):
            (x0, y0), (x1, y1) = first[index, slot].tolist(), last[index, slot].tolist()
            part = canvas[index, :, y0 - top : y1 - top, x0 - left : x1 - left]
            if upright[index, slot]:
                _paint_upright(part, image[index], boxes[index, slot].tolist(), allocation.patch, (x0, y0), weights)
            else:
                _paint_turned(part, texture, allocation, index, slot, (x0, y0))
    return canvas


def median_grey(texture: Texture) -> Tensor:
    """(B,): the median of each image's grey, its channels' mean."""
    return texture.levels[0].detach().mean(1).flatten(1).median(1).values


def resized(texture: Texture, *, budget: int = BUDGET, patch: int = PATCH, box: PixelBox | None = None) -> Tensor:
    """The baseline: the whole image scaled by √(budget·patch² / (H·W)) with area averaging, enlarged again (bicubic).

    This ideal resize may use fractions of a token. An image that has no more pixels than that is returned unchanged.
    box:    xyxy in whole pixels: only that part of the picture, at a fraction of the cost
    returns (B, C, H, W), the size of the image, or of the box
    """
    check_texture("resized", texture)
    height, width = texture.size
    check_count("resized", "budget", budget, 1)
    check_count("resized", "patch", patch, 1)
    _check_whole("resized", texture, texture.size)
    left, top, right, bottom = _check_box("resized", box, (height, width))
    scale = math.sqrt(budget * patch**2 / (height * width))
    image = texture.levels[0].detach()
    if scale >= 1:
        return image[..., top:bottom, left:right]
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    down_y, up_y, across = shrunk_axis(height, rows, top, bottom, image)
    down_x, up_x, along = shrunk_axis(width, columns, left, right, image)
    return up_y @ (down_y @ image[..., across, along] @ down_x.mT) @ up_x.mT


def shrunk_axis(extent: int, cells: int, first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor, slice]:
    """Matrices from pixels down to equal cells and up to the pixels first to last; and the pixels that are read."""
    side = extent / cells
    low = max(0, math.floor(first / side) - 3)  # bicubic interpolation reads two cells on either side
    high = min(cells, math.ceil(last / side) + 3)
    source = slice(math.floor(low * side), min(extent, math.ceil(high * side)))
    down = share_of_pixels(low * side, high * side, high - low, source.start, source.stop, like)
    return down, _bicubic(low * side, high * side, high - low, first, last, like), source


def _check_whole(function: str, texture: Texture, size: tuple[int, int]) -> None:
    finest = tuple(texture.levels[0].shape[2:])
    if not finest == texture.size == size:
        got = f"levels[0] {finest} of {texture.size}"
        raise ValueError(f"{function}: texture must hold the full image of {size}, got {got}")


def _check_box(function: str, box: PixelBox | None, size: tuple[int, int]) -> PixelBox:
    height, width = size
    if box is None:
        return 0, 0, width, height
    left, top, right, bottom = box
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ValueError(f"{function}: box must be xyxy inside an image of {size}, got {tuple(box)}")
    return left, top, right, bottom


def _paint_upright(
    part: Tensor, image: Tensor, box: list[float], patch: int, corner: tuple[int, int], weights: AxisWeights
) -> None:
    """Paint an upright footprint: cell means down to P×P and bicubic up again, each axis on its own.

    weights: of axes, kept for the next footprint in the same row or column
    """
    axes = []
    for axis, extent in enumerate(reversed(image.shape[1:])):  # x, then y
        low, high, first, last = box[axis], box[axis + 2], corner[axis], corner[axis] + part.shape[2 - axis]
        key = (low, high, first, last, extent)
        if key not in weights:
            # Cells outside the image repeat its edge, so the source is the part inside, at least one pixel.
            start = min(max(math.floor(low), 0), extent - 1)
            stop = min(max(math.ceil(high), start + 1), extent)
            up = _bicubic(low, high, patch, first, last, image)
            weights[key] = share_of_pixels(low, high, patch, start, stop, image), up, slice(start, stop)
        axes.append(weights[key])
    (down_x, up_x, columns), (down_y, up_y, rows) = axes
    _multiply(part, up_y, down_y, image[:, rows, columns], down_x, up_x)


def _multiply(part: Tensor, up_y: Tensor, down_y: Tensor, image: Tensor, down_x: Tensor, up_x: Tensor) -> None:
    """part = up_y @ down_y @ image @ down_xᵀ @ up_xᵀ, of a few dozen pixels."""
    if part.is_cuda or part.dtype not in (torch.float32, torch.float64):
        part.copy_(up_y @ (down_y @ image @ down_x.mT) @ up_x.mT)
        return
    # torch would share each product among threads, which takes many times as long as the products.
    after, before, pixels, across, along = (one.numpy() for one in (up_y, down_y, image, down_x, up_x))
    part.numpy()[...] = after @ (before @ pixels @ across.T) @ along.T


def _bicubic(low: float, high: float, cells: int, first: int, last: int, like: Tensor) -> Tensor:
    """(last − first, cells): bicubic weights of the equal cells between low and high; the edge cells are repeated."""
    pixel = torch.arange(first, last, dtype=torch.float64) + 0.5
    position = (pixel - low) / (high - low) * cells - 0.5
    read = position.floor()[:, None] + torch.arange(-1.0, 3.0, dtype=torch.float64)
    weights = torch.zeros(last - first, cells, dtype=torch.float64)
    weights.scatter_add_(1, read.long().clamp(0, cells - 1), cubic((position[:, None] - read).abs()))
    return weights.to(like)


def cubic(distance: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2, which reproduces quadratics; Pillow uses the same."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(distance)))


def _paint_turned(
    part: Tensor, texture: Texture, allocation: Allocation, index: int, slot: int, corner: tuple[int, int]
) -> None:
    """Paint a rotated footprint: sample it like a token, then interpolate in its own axes."""
    levels = [level[index : index + 1] for level in texture.levels]
    one = (slice(index, index + 1), slice(slot, slot + 1))
    footprint = (allocation.centre[one], allocation.ddx[one], allocation.ddy[one])
    patch = sample_patches(levels, *footprint, patch=allocation.patch, nearest=texture.nearest)[0, 0]
    u, v, inside = allocation.local(index, slot, corner[0], corner[1], part.shape[1:])
    grid = torch.stack([u, v], -1).to(part)[None]
    values = torch.nn.functional.grid_sample(
        patch[None], grid, mode="bicubic", padding_mode="border", align_corners=False
    )[0]
    part.copy_(torch.where(inside.to(part.device), values, part))


def pixel_box(box: Sequence[float], size: tuple[int, int]) -> PixelBox:
    """The whole pixels of a box (xyxy) inside an image (height, width); at least one."""
    height, width = size
    left, top = min(max(math.floor(box[0]), 0), width - 1), min(max(math.floor(box[1]), 0), height - 1)
    return left, top, min(max(math.ceil(box[2]), left + 1), width), min(max(math.ceil(box[3]), top + 1), height)
