"""What a good PyTorch user would write instead: vectorised, no loop over patches, no synchronisation."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def pooled(image: Tensor, levels: int) -> list[Tensor]:
    """Mips by chained average pooling."""
    chain = [image]
    for _ in range(levels - 1):
        chain.append(F.avg_pool2d(chain[-1], 2))
    return chain


def grid_sampled(levels: Sequence[Tensor], centre: Tensor, scale: Tensor, patch: int) -> Tensor:
    """Square patches of mixed levels: every level sampled at every point, weighted by how near it is.

    levels: (1, C, H_l, W_l); centre (1, K, 2); scale (1, K), level-0 pixels per sample; returns (1, K, C, P, P)
    """
    height, width = levels[0].shape[-2:]
    step = torch.arange(patch, device=centre.device, dtype=centre.dtype) + 0.5 - patch / 2
    x = centre[0, :, 0, None] + step * scale[0, :, None]
    y = centre[0, :, 1, None] + step * scale[0, :, None]
    points = torch.stack(
        [x[:, None, :].expand(-1, patch, -1) / width * 2 - 1, y[:, :, None].expand(-1, -1, patch) / height * 2 - 1], -1
    )
    grid = points.reshape(1, -1, patch, 2)
    lod = scale[0].log2().clamp(0, len(levels) - 1)
    total = torch.zeros((), device=centre.device)
    for index, level in enumerate(levels):
        weight = (1 - (lod - index).abs()).clamp(min=0).repeat_interleave(patch)[None, None, :, None]
        total = total + weight * F.grid_sample(level, grid, padding_mode="border", align_corners=False)
    channels = levels[0].shape[1]
    return total.reshape(1, channels, -1, patch, patch).transpose(1, 2)


def nvdiffrast_sampler(
    image: Tensor, points: Tensor, lod: Tensor, levels: int
) -> tuple[Callable[[bool], Tensor], Tensor] | None:
    """nvdiffrast's texture sampler at points (1, N, 2) in pixels and levels lod (1, N); None: it is not installed.

    returns a function and the texels (1, H, W, C) that it differentiates in. The function takes whether mips are made
    beforehand, and gives (1, 1, N, C)
    """
    try:
        nvdiffrast: Any = import_module("nvdiffrast.torch")
    except ImportError:
        return None
    texels = image.detach().permute(0, 2, 3, 1).contiguous().requires_grad_()
    extent = torch.tensor([image.shape[3], image.shape[2]], device=points.device)
    places, level = (points / extent)[:, None].contiguous(), lod[:, None].contiguous()
    options = {"filter_mode": "linear-mipmap-linear", "boundary_mode": "clamp", "max_mip_level": levels - 1}
    ready = nvdiffrast.texture_construct_mip(texels.detach(), max_mip_level=levels - 1)

    def sample(mips_are_made: bool) -> Tensor:
        source, mips = (texels.detach(), {"mip": ready}) if mips_are_made else (texels, {})
        found: Tensor = nvdiffrast.texture(source, places, mip_level_bias=level, **mips, **options)
        return found

    return sample, texels
