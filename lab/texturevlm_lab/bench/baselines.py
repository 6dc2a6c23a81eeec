"""What a good PyTorch user would write instead: vectorised, no loop over patches, no synchronisation."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from texturevlm.channels import structure
from texturevlm.ops import backend as backends
from texturevlm.ops.cover import Footprints
from texturevlm.ops.mip import level_extents, mipmap_reference
from texturevlm.relevance.information import cell_maps
from texturevlm.relevance.maps import cell_level
from texturevlm.types import Texture
from texturevlm_lab.allocators.cascade import plans_for
from texturevlm_lab.allocators.select import select
from texturevlm_lab.bench.timing import Work


def pooled(image: Tensor, levels: int) -> list[Tensor]:
    """Mips by chained average pooling."""
    chain = [image]
    for _ in range(levels - 1):
        chain.append(F.avg_pool2d(chain[-1], 2))
    return chain


def grid_sampled(levels: Sequence[Tensor], centre: Tensor, scale: Tensor, patch: int) -> Tensor:
    """Upright patches of mixed levels: every level sampled at every point, weighted by how near it is.

    levels: (1, C, H_l, W_l); centre (1, K, 2); scale (1, K, 1) or (1, K, 2): level-0 pixels per sample, across and down
    returns (1, K, C, P, P)
    """
    height, width = levels[0].shape[-2:]
    step = torch.arange(patch, device=centre.device, dtype=centre.dtype) + 0.5 - patch / 2
    x = centre[0, :, :1] + step * scale[0, :, :1]
    y = centre[0, :, 1:] + step * scale[0, :, -1:]
    points = torch.stack(
        [x[:, None, :].expand(-1, patch, -1) / width * 2 - 1, y[:, :, None].expand(-1, -1, patch) / height * 2 - 1], -1
    )
    grid = points.reshape(1, -1, patch, 2)
    lod = (scale[0].log2().mean(-1) if scale.shape[-1] > 1 else scale[0, :, 0].log2()).clamp(0, len(levels) - 1)
    total = torch.zeros((), device=centre.device)
    for index, level in enumerate(levels):
        weight = (1 - (lod - index).abs()).clamp(min=0).repeat_interleave(patch)[None, None, :, None]
        total = total + weight * F.grid_sample(level, grid, padding_mode="border", align_corners=False)
    channels = levels[0].shape[1]
    return total.reshape(1, channels, -1, patch, patch).transpose(1, 2)


def plain_cascade(
    size: tuple[int, int], *, budget: int, patch: int, compiled: bool = False
) -> Callable[[Tensor], tuple[Footprints, Tensor]]:
    """Image (1, 3, H, W) → the footprints of `cascade` and their patches; to be called `with plain_pytorch():`.

    compiled: mips, maps and samples by torch.compile, each by itself. The search stays eager: torch 2.11 loses the
              named tuples that its stages return, and one large graph takes many minutes to compile
    """
    cell, extents = cell_level(size, patch), level_extents(*size)
    plans = plans_for(size, budget=budget, patch=patch)
    coarsest = max(max(size[0] / plan.rows, size[1] / plan.columns) for plan in plans) / patch
    levels_read = min(len(extents), 1 + math.ceil(max(0.0, math.log2(coarsest))))

    def shrink(image: Tensor) -> list[Tensor]:
        return mipmap_reference(image, extents, ("mean",) * image.shape[1])

    parts: tuple[Callable[..., Any], ...] = (shrink, plain_maps, grid_sampled)
    shrunk, maps, sampled = (torch.compile(part, dynamic=False) if compiled else part for part in parts)

    def found(image: Tensor) -> tuple[Footprints, Tensor]:
        levels = shrunk(image)
        mass, legible_scale, ink = maps(levels, cell)
        given: Any = {"size": size, "budget": budget, "patch": patch, "backend": "reference"}
        tokens = select(mass[:, None], legible_scale, ink, plans, **given)
        scale = torch.stack([tokens.ddx[..., 0], tokens.ddy[..., 1]], -1)
        return tokens, sampled(levels[:levels_read], tokens.centre, scale, patch)

    return found


def plain_maps(levels: Sequence[Tensor], cell: int) -> tuple[Tensor, Tensor, Tensor]:
    """Salience, legible scale and ink (1, h, w)."""
    maps = cell_maps(Texture(tuple(levels)), cell, backend="reference")
    return maps.salience, maps.legible_scale, maps.ink


@contextmanager
def plain_pytorch() -> Iterator[None]:
    """Every operation by its reference, and windows by pooling, which is what PyTorch has for them on a GPU."""
    usual, slide = backends.no_kernel_because, structure._slide
    backends.no_kernel_because = lambda tensor: "the benchmark asks for plain PyTorch"
    structure._slide = _pool
    try:
        yield
    finally:
        backends.no_kernel_because, structure._slide = usual, slide


def _pool(texels: Tensor, extent: int, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    reach = extent // 2
    sides, window = ((reach, reach, 0, 0), (1, extent)) if axis == -1 else ((0, 0, reach, reach), (extent, 1))
    around = F.pad(texels, sides, mode="replicate")
    if combine is torch.add:
        return F.avg_pool2d(around, window, stride=1) * extent
    sign = 1 if combine is torch.maximum else -1
    return sign * F.max_pool2d(sign * around, window, stride=1)


def nvdiffrast_calls(
    image: Tensor, points: Tensor, lod: Tensor, upstream: Tensor, levels: int
) -> tuple[Work, Work] | None:
    """nvdiffrast's texture sampler at points (1, N, 2) in pixels and levels lod (1, N); None: it is not installed.

    returns sampling from mips made beforehand; and mips, sampling and the gradient for upstream (1, N, C)
    """
    try:
        nvdiffrast: Any = import_module("nvdiffrast.torch")
    except ImportError:
        return None
    texels = image.detach().permute(0, 2, 3, 1).contiguous().requires_grad_()
    extent = torch.tensor([image.shape[3], image.shape[2]], device=points.device)
    places, level = (points / extent)[:, None].contiguous(), lod[:, None].contiguous()
    ready = nvdiffrast.texture_construct_mip(texels.detach(), max_mip_level=levels - 1)
    options = {"filter_mode": "linear-mipmap-linear", "boundary_mode": "clamp", "max_mip_level": levels - 1}
    sampled = partial(nvdiffrast.texture, uv=places, mip_level_bias=level, **options)

    def step() -> object:
        return torch.autograd.grad(sampled(texels), texels, upstream[None])

    return partial(sampled, texels.detach(), mip=ready), step
