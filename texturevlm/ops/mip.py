"""Mipmaps: each level has half the extent of the next finer one, down to one texel for the whole image.

Extents halve as in graphics, max(1, floor(n/2)). At an odd extent n = 2m + 1 a coarse texel is 2 + 1/m fine texels
wide, so it averages three of them with the exact shares that it covers; means are therefore kept at every size.
A channel that holds an upper bound shrinks by max, a lower bound by min; one that holds labels
(cluster ids) takes the level-0 texel at the centre of its area, because labels cannot be averaged.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_count, check_floating, check_shapes
from texturevlm.ops import backend as backends

MOST_LEVELS = 64  # more than any image has
REDUCTIONS = ("mean", "max", "min", "nearest")


def level_extents(height: int, width: int, levels: int | None = None) -> list[tuple[int, int]]:
    """(height, width) of every level, finest first; all the way down to 1×1 if `levels` is None."""
    return list(_level_extents(height, width, levels))


@lru_cache(maxsize=1024)
def _level_extents(height: int, width: int, levels: int | None) -> tuple[tuple[int, int], ...]:
    extents = [(height, width)]
    while extents[-1] != (1, 1) and len(extents) != levels:
        height, width = max(1, height // 2), max(1, width // 2)
        extents.append((height, width))
    return tuple(extents)


def mipmap(
    image: Tensor, *, levels: int | None = None, reduce: str | Sequence[str] = "mean", backend: str = "auto"
) -> list[Tensor]:
    """Build the mip pyramid of a batch of images.

    image:   (B, C, H, W), any extent from 1×1
    levels:  how many levels, level 0 included; None goes down to 1×1, and so does any larger number
    reduce:  how a channel shrinks: mean, max, min or nearest; one word for all channels, or one per channel
    returns  finest first, level 0 is `image` itself (on the GPU a contiguous copy of one that is not contiguous);
             (B, C, max(1, H >> l), max(1, W >> l)). Half-precision images are reduced in float32; a level is rounded
             when it is stored. Differentiable in `image`, once.
    """
    if torch.compiler.is_compiling():
        from texturevlm.ops.operators import coarser_levels

        word = reduce if isinstance(reduce, str) else ",".join(reduce)
        coarser = coarser_levels(image, MOST_LEVELS if levels is None else levels, word, backend)
        return [image.contiguous() if image.is_cuda else image, *coarser]
    sizes = check_shapes("mipmap", image=(image, "B C H W"))
    check_floating("mipmap", image=image)
    if image.numel() == 0:
        raise ValueError(f"mipmap: image must not be empty, got {tuple(image.shape)}")
    if levels is not None:
        check_count("mipmap", "levels", levels, 1)
    modes = channel_reductions("mipmap", reduce, sizes["C"])
    extents = level_extents(sizes["H"], sizes["W"], levels)
    if len(extents) == 1:
        return [image]
    if backends.choose("mipmap", image, backend) == "reference":
        return mipmap_reference(image, extents, modes)
    if torch.is_grad_enabled() and image.requires_grad:
        from texturevlm.ops.mip_kernel import Mipmap

        return list(Mipmap.apply(image, tuple(extents), modes))  # type: ignore[no-untyped-call]
    from texturevlm.ops.mip_kernel import mipmap_cuda

    return mipmap_cuda(image, extents, modes)


def channel_reductions(function: str, reduce: str | Sequence[str], channels: int) -> tuple[str, ...]:
    """One reduction per channel, checked."""
    if not isinstance(reduce, Sequence):
        raise TypeError(f"{function}: reduce must be a word, or one word per channel, got {reduce!r}")
    return _channel_reductions(function, reduce if isinstance(reduce, str) else tuple(reduce), channels)


@lru_cache(maxsize=256)
def _channel_reductions(function: str, reduce: str | tuple[str, ...], channels: int) -> tuple[str, ...]:
    modes = (reduce,) * channels if isinstance(reduce, str) else reduce
    if len(modes) != channels:
        raise ValueError(f"{function}: reduce must name one reduction per channel ({channels}), got {len(modes)}")
    for mode in set(modes):
        check_choice(function, "reduce", mode, REDUCTIONS)
    return modes


def mipmap_reference(image: Tensor, extents: Sequence[tuple[int, int]], modes: Sequence[str]) -> list[Tensor]:
    """The specification, in plain PyTorch: what every kernel is tested against."""
    wide = image.float() if image.dtype in (torch.float16, torch.bfloat16) else image
    chain = [wide]
    for height, width in extents[1:]:
        chain.append(_by_channel(wide, chain[-1], modes, (0, height), (0, width)))
    return [image] + [level.to(image.dtype) for level in chain[1:]]


def _by_channel(
    base: Tensor, fine: Tensor, modes: Sequence[str], rows: tuple[int, int], columns: tuple[int, int]
) -> Tensor:
    """Texels rows × columns of the level above `fine`, each channel by its own reduction."""
    if len(set(modes)) == 1:
        return _texels(base, fine, modes[0], rows, columns)
    each = zip(base.split(1, 1), fine.split(1, 1), modes)
    return torch.cat([_texels(one, other, mode, rows, columns) for one, other, mode in each], 1)


def _texels(base: Tensor, fine: Tensor, mode: str, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    height, width = fine.shape[-2:]
    if mode == "nearest":
        y = _centre_texels(base.shape[-2], max(1, height // 2), rows, base.device)
        x = _centre_texels(base.shape[-1], max(1, width // 2), columns, base.device)
        return base[..., y[:, None], x]
    part = fine[..., _source(rows, height), _source(columns, width)]
    if mode == "mean" and height % 2 == 0 and width % 2 == 0:
        return torch.nn.functional.avg_pool2d(part, 2)
    return _halve(_halve(part, -2, mode, rows, height), -1, mode, columns, width)


def _centre_texels(finest: int, coarse: int, span: tuple[int, int], device: torch.device) -> Tensor:
    """The level-0 texel under the centre of each coarse texel: floor((i + ½) · finest / coarse)."""
    i = torch.arange(*span, device=device)
    return (2 * i + 1) * finest // (2 * coarse)


def _source(span: tuple[int, int], extent: int) -> slice:
    """The fine texels that coarse texels `span` are made of, along an axis of `extent` fine texels."""
    return slice(2 * span[0], 2 * span[1] + extent % 2) if extent > 1 else slice(0, 1)


def _halve(source: Tensor, axis: int, mode: str, span: tuple[int, int], extent: int) -> Tensor:
    """Coarse texels `span` from their source texels. Elementwise, so a part equals the whole bit for bit."""
    if extent == 1:
        return source
    count = span[1] - span[0]
    step = (..., slice(None, None, 2)) if axis == -1 else (..., slice(None, None, 2), slice(None))
    taps = [source.narrow(axis, tap, 2 * count - 1)[step] for tap in range(2 + extent % 2)]
    if mode in ("max", "min"):
        return torch.stack(taps).amax(0) if mode == "max" else torch.stack(taps).amin(0)
    if extent % 2 == 0:
        return (taps[0] + taps[1]) * 0.5
    half = extent // 2
    i = torch.arange(*span, device=source.device, dtype=source.dtype)
    i = i if axis == -1 else i[:, None]
    return taps[0] * ((half - i) / extent) + taps[1] * (half / extent) + taps[2] * ((i + 1) / extent)


def update_region(
    levels: Sequence[Tensor], boxes: Tensor, *, reduce: str | Sequence[str] = "mean", backend: str = "auto"
) -> None:
    """After rectangles of level 0 changed, refresh in place just what they touch on every coarser level.

    levels: a pyramid from `mipmap`, finest first, each (B, C, H_l, W_l), contiguous
    boxes:  (B, N, 4) whole numbers, xyxy in level-0 pixels, right and bottom exclusive; parts outside the image
            and empty boxes are ignored, so a fixed N can be padded with zeros
    reduce: as it was given to `mipmap`
    The result equals a full rebuild bit for bit (for the same backend).
    """
    check_pyramid("update_region", levels)
    sizes = check_shapes("update_region", levels=(levels[0], "B C H W"), boxes=(boxes, "B N 4"))
    if boxes.is_floating_point() or boxes.dtype == torch.bool:
        raise TypeError(f"update_region: boxes must hold whole numbers, got {boxes.dtype}")
    if any(level.requires_grad for level in levels):
        raise ValueError("update_region: levels must not require gradients, since they are written in place")
    modes = channel_reductions("update_region", reduce, sizes["C"])
    if len(levels) == 1 or boxes.numel() == 0:
        return
    if backends.choose("update_region", levels[0], backend) == "cuda":
        from texturevlm.ops.mip_kernel import update_region_cuda

        return update_region_cuda(levels, boxes, modes)
    update_region_reference(levels, boxes, modes)


def channels_last(levels: Sequence[Tensor]) -> list[Tensor]:
    """Copy a pyramid so that the channels of a texel are contiguous, which makes `lookup` of scattered points faster.

    levels:  finest first, each (B, C, H_l, W_l)
    returns  the same values in the same shapes, stored as (B, H_l, W_l, C) with room for a multiple of four channels;
             differentiable in levels
    """
    check_pyramid("channels_last", levels)
    return list(_ChannelsLast.apply(*levels))  # type: ignore[no-untyped-call]


class _ChannelsLast(torch.autograd.Function):
    """Copies in another layout. Gradients pass as they are, in whichever layout they come."""

    @staticmethod
    def forward(ctx: Any, *levels: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        batch, channels = levels[0].shape[:2]
        room = -(-channels // 4) * 4
        stored = []
        for level in levels:
            height, width = level.shape[2:]
            strides = (height * width * room, 1, width * room, room)
            memory = level.new_empty(batch * height * width * room)  # with room beyond the last channel of each texel
            stored.append(memory.as_strided(level.shape, strides).copy_(level))
        return tuple(stored)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients


def check_pyramid(function: str, levels: Sequence[Tensor]) -> None:
    """Levels of one batch, dtype and device, each half the extent of the one before."""
    if isinstance(levels, Tensor) or len(levels) == 0:
        raise TypeError(
            f"{function}: levels must be a sequence of (B, C, H, W) tensors, finest first, got {levels!r:.60}"
        )
    for index, level in enumerate(levels):
        if not isinstance(level, Tensor):
            raise TypeError(f"{function}: levels[{index}] must be a tensor, got {type(level).__name__}")
    _check_pyramid(function, tuple([(level.shape, level.dtype, level.device) for level in levels]))


@lru_cache(maxsize=256)
def _check_pyramid(function: str, levels: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]) -> None:
    """Cached: a stream of images of one size asks the same every time."""
    shape, dtype, device = levels[0]
    if len(shape) != 4 or 0 in shape:
        raise ValueError(f"{function}: levels[0] must be (B, C, H, W) and not empty, got {tuple(shape)}")
    if not dtype.is_floating_point:
        raise TypeError(f"{function}: levels[0] must be floating point, got {dtype}")
    extents = level_extents(*shape[2:], len(levels))
    for index, (extent, (found, *kind)) in enumerate(zip(extents, levels)):
        wanted = (*shape[:2], *extent)
        if found != wanted:
            raise ValueError(f"{function}: levels[{index}] must be {wanted}, got {tuple(found)}")
        if kind != [dtype, device]:
            raise ValueError(
                f"{function}: levels[{index}] must be {dtype} on {device} like levels[0], got {kind[0]} on {kind[1]}"
            )
    if beyond := len(levels) - len(extents):
        raise ValueError(f"{function}: levels must end at 1×1, got {beyond} more after it")


def check_nearest(function: str, nearest: Sequence[int], channels: int) -> None:
    """Every entry must be the index of a channel."""
    for channel in nearest:
        check_count(function, "nearest", channel, 0, channels - 1)


def update_region_reference(levels: Sequence[Tensor], boxes: Tensor, modes: Sequence[str]) -> None:
    """The specification: follow each box up the pyramid and recompute the texels that look at it."""
    # A stored half-precision level has lost the float32 values that the next one is made from.
    if levels[0].dtype in (torch.float16, torch.bfloat16):
        extents = [(level.shape[-2], level.shape[-1]) for level in levels]
        for level, fresh in zip(levels[1:], mipmap_reference(levels[0], extents, modes)[1:]):
            level.copy_(fresh)
        return
    for image, image_boxes in enumerate(boxes.tolist()):
        chain = [level[image : image + 1] for level in levels]
        for x0, y0, x1, y1 in image_boxes:
            rows, columns = (max(0, y0), min(chain[0].shape[-2], y1)), (max(0, x0), min(chain[0].shape[-1], x1))
            if rows[0] >= rows[1] or columns[0] >= columns[1]:
                continue
            for fine, coarse in itertools.pairwise(chain):
                rows, columns = _touched(rows, fine.shape[-2]), _touched(columns, fine.shape[-1])
                coarse[..., slice(*rows), slice(*columns)] = _by_channel(chain[0], fine, modes, rows, columns)


def _touched(span: tuple[int, int], extent: int) -> tuple[int, int]:
    """The coarse texels that read any of the fine texels in `span`."""
    if extent == 1:
        return (0, 1)
    reach = 1 + extent % 2  # the last fine texel that a coarse texel i reads is 2i + reach
    coarse = extent // 2
    first = max(0, -(-(span[0] - reach) // 2))
    last = min(coarse - 1, (span[1] - 1) // 2)
    return (min(first, coarse - 1), last + 1)


def share_of_pixels(low: float, high: float, cells: int, first: int, last: int, like: Tensor) -> Tensor:
    """(cells, last − first): the share of each pixel in each of the equal cells between low and high."""
    edges = torch.linspace(low, high, cells + 1, dtype=torch.float64)
    start, stop = edges[:-1, None], edges[1:, None]
    pixel = torch.arange(first, last, dtype=torch.float64)
    overlap = (torch.minimum(stop, pixel + 1) - torch.maximum(start, pixel)).clamp(min=0)
    nearest = ((start + stop) / 2).floor().clamp(first, last - 1) == pixel
    overlap = torch.where(overlap.sum(1, keepdim=True) > 0, overlap, nearest.double())
    return (overlap / overlap.sum(1, keepdim=True)).to(like)
