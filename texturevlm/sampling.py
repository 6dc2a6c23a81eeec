"""Texture + Allocation → Patches."""

from typing import Any, overload

import torch
from torch import Tensor

from texturevlm.allocate.foveated import foveate
from texturevlm.image import ImageLike
from texturevlm.ops import sample_patches
from texturevlm.types import Allocation, Patches, Texture, check_allocation, check_texture


@overload
def generate_mipmaps(image: Texture | ImageLike, *, levels: int | None = None) -> Texture: ...
@overload
def generate_mipmaps(image: list[Any] | tuple[Any, ...], *, levels: int | None = None) -> list[Texture]: ...
def generate_mipmaps(image: Any, *, levels: int | None = None) -> Texture | list[Texture]:
    """Make a texture with its mip levels, from a texture or anything that `Texture.open` takes; from a list, a list."""
    if isinstance(image, (list, tuple)):
        return [generate_mipmaps(one, levels=levels) for one in image]
    return (image if isinstance(image, Texture) else Texture.open(image)).mipmapped(levels)


def sample(texture: Texture, allocation: Allocation, *, backend: str = "auto") -> Patches:
    """Sample the footprints of an allocation.

    texture:    one image or a batch, with mip levels: without them coarse footprints alias
    allocation: for as many images of the same size. Unused slots are sampled too, so that shapes are static; their
                pixels mean nothing
    backend:    auto (the texture units if the texture is resident there, else our kernels, else PyTorch), or by name;
                a texture that is read by pages: through its page table, by all but the texture units
    returns     Patches with pixels (B, K, C, P, P)
    """
    check_texture("sample", texture)
    check_allocation("sample", allocation)
    if texture.size != allocation.size:
        wanted = f"an image of {texture.size} like the texture"
        raise ValueError(f"sample: allocation must be for {wanted}, got {allocation.size}")
    if texture.batch != allocation.batch:
        wanted = f"{texture.batch} images like the texture"
        raise ValueError(f"sample: allocation must be for {wanted}, got {allocation.batch}")
    if texture.pages is not None:
        weight = (allocation.score.clamp(min=0) + 1e-6) * allocation.valid
        where = (allocation.centre, allocation.ddx, allocation.ddy)
        pixels = texture.pages.sample(*where, patch=allocation.patch, weight=weight, backend=backend)
        return Patches(pixels, allocation)
    footprints = _in_texels(texture, allocation)
    gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*footprints, *texture.levels))
    if texture.resident is not None and backend in ("auto", "texture") and not gradients:
        pixels = sample_patches(texture.resident, *footprints, patch=allocation.patch)
    else:
        pixels = sample_patches(
            texture.levels, *footprints, patch=allocation.patch, nearest=texture.nearest, backend=backend
        )
    return Patches(pixels, allocation)


def _in_texels(texture: Texture, allocation: Allocation) -> tuple[Tensor, Tensor, Tensor]:
    """Footprints in texels of the texture's finest level, which may be coarser than the image."""
    footprints = (allocation.centre, allocation.ddx, allocation.ddy)
    height, width = texture.levels[0].shape[2:]
    if (height, width) == texture.size:
        return footprints
    across, down = width / texture.size[1], height / texture.size[0]
    centre, ddx, ddy = (torch.stack([t[..., 0] * across, t[..., 1] * down], -1) for t in footprints)
    return centre, ddx, ddy


@overload
def sample_foveated(texture: Texture | ImageLike, *, fixation: Any, **options: Any) -> Patches: ...
@overload
def sample_foveated(texture: list[Any] | tuple[Any, ...], *, fixation: Any, **options: Any) -> list[Patches]: ...
def sample_foveated(
    texture: Any,
    *,
    fixation: Any,
    backend: str = "auto",
    **options: Any,
) -> Patches | list[Patches]:
    """Show a whole image in `budget` patches, finest at the fixation (see `foveate` for the rule).

    texture:  a Texture (one image, or a batch of one size), anything that `Texture.open` takes, or a list of those, of
              any sizes; missing mip levels are made
    fixation: (x, y) in level-0 pixels, for all images of a batch, or a tensor (B, 2); for a list, one per entry
    options:  budget, patch, M0, e0 and cortical_magnification of `foveate`
    returns   Patches with pixels (B, budget, C, patch, patch); for a list, a list of them
    """
    if isinstance(texture, (list, tuple)):
        if len(fixation) != len(texture):
            raise ValueError(f"sample_foveated: fixation must be one per texture ({len(texture)}), got {len(fixation)}")
        pairs = zip(texture, fixation)
        return [sample_foveated(one, fixation=point, backend=backend, **options) for one, point in pairs]
    texture = texture if isinstance(texture, Texture) else Texture.open(texture)
    allocation = foveate(texture.size, fixation=fixation, device=texture.device, **options)
    if allocation.batch == 1:  # the same footprints for every image of a batch
        allocation = allocation.each(lambda column: column.expand(texture.batch, *column.shape[1:]))
    return sample(texture if len(texture.levels) > 1 else texture.mipmapped(), allocation, backend=backend)
