"""Reading a pyramid between its texels and between its levels, as a texture unit does.

`lookup` reads points, `lookup_grad` footprints, `sample_patches` (the hot path) patches of samples over footprints;
lookup_reference.py says what each computes. A stream of images asks for the same shapes again and again. Checks
therefore run once per combination of shapes, layouts, dtypes and options (a `Request`), which also remembers how its
kernels are started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_count, check_floating, check_shapes
from texturevlm.ops import backend as backends
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup_kernel import sample_cuda
from texturevlm.ops.lookup_reference import MAX_ANISOTROPY, Options, Where, sample_cpu, sample_pyramid, sample_reference
from texturevlm.ops.mip import check_nearest, check_pyramid
from texturevlm.ops.paged import PagedLevels, sample_paged_cuda

MOST_REQUESTS = 1024
Levels = list[Tensor] | tuple[Tensor, ...]


def lookup(
    levels: Levels | DeviceTexture, points: Tensor, lod: Tensor, *, nearest: Sequence[int] = (), backend: str = "auto"
) -> Tensor:
    """Read a mip pyramid at fractional positions and levels (trilinear, clamped).

    levels:  finest first, each (B, C, H_l, W_l); or a DeviceTexture, filled once and read many times
    points:  (B, N, 2), x then y in level-0 pixels
    lod:     (B, N), 0 is the finest; clamped to the levels there are
    nearest: channels that hold labels: the nearest texel of the nearest level, not filtered
    backend: auto, reference, cuda or texture (which makes a texture for this one call)
    returns  (B, N, C) in the levels' dtype, differentiable in levels, points and lod (not through `nearest`)
    """
    return sample_levels(levels, Where(points, lod), Options("lookup", None, 1, tuple(nearest), backend))


def lookup_grad(
    levels: Levels | DeviceTexture,
    points: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    *,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """Read a mip pyramid over footprints: anisotropic filtering, up to 16 times as long as wide.

    levels, nearest, backend: as for `lookup`
    points:   (B, N, 2), the centres, x then y in level-0 pixels
    ddx, ddy: (B, N, 2), the footprint's two axes in level-0 pixels, as `tex2DGrad` takes them
    returns   (B, N, C); for a square footprint of side s it is `lookup` at lod log2(s).
              Differentiable in levels, points, ddx and ddy (the number of probes is piecewise constant).
    """
    options = Options("lookup_grad", None, max_anisotropy, tuple(nearest), backend)
    return sample_levels(levels, Where(points, None, ddx, ddy), options)


def sample_patches(
    levels: Levels | DeviceTexture | PagedLevels,
    centre: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    *,
    patch: int,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """Sample a pyramid over footprints. An ordinary patch at level l has axes (2^l, 0), (0, 2^l); l may be fractional.

    levels:        finest first, each (B, C, H_l, W_l); or a DeviceTexture, filled once and sampled many times; or
                   PagedLevels, read through their page table, without gradients
    centre:        (B, K, 2), x then y in level-0 pixels
    ddx, ddy:      (B, K, 2), how far one step along the patch's own x and y axis moves in the image
    patch:         samples along each side of a patch
    max_anisotropy: how many times longer than wide a sample's footprint may be; longer ones are read too coarsely
    nearest:       channels that hold labels: the nearest texel, not filtered (a DeviceTexture has its own)
    backend:       auto, reference, cuda or texture
    returns        (B, K, C, P, P), differentiable in levels, centre, ddx and ddy
    """
    options = Options("sample_patches", patch, max_anisotropy, tuple(nearest), backend)
    return sample_levels(levels, Where(centre, None, ddx, ddy), options)


class Request:
    """One combination of shapes and options, checked.

    backend:   what runs it for tensors on a CUDA GPU
    forward:   how its forward kernel is started (lookup_kernel.py), once it was
    backwards: the same for gradients, by what is wanted
    """

    __slots__ = ("backend", "backwards", "forward", "may_pay", "options")

    def __init__(self, levels: Levels, where: Where, options: Options) -> None:
        function = options.function
        check_pyramid(function, levels)
        finest = levels[0]
        _check_options(where, options, levels=(finest, "B C H W"))
        names = ("points" if options.patch is None else "centre", "lod", "ddx", "ddy")
        check_floating(function, **{name: tensor for name, tensor in zip(names, where) if tensor is not None})
        check_nearest(function, options.nearest, finest.shape[1])
        self.options = options
        self.backend = backends.choose(function, finest, options.backend)
        # A texture for one call pays for dense patches alone, and never before each texel is read once.
        samples = where.points.shape[1] * (options.patch or 0) ** 2
        self.may_pay = options.backend == "auto" and samples >= finest.shape[2] * finest.shape[3]
        self.forward: Any = None
        self.backwards: dict[tuple[bool, bool, bool], Any] = {}


_requests: dict[tuple[Any, ...], Request] = {}


def sample_levels(levels: Any, where: Where, options: Options) -> Tensor:
    """Check and run one of the three functions."""
    if not isinstance(levels, (list, tuple)):
        return _sample_texture(levels, where, options)
    if torch.compiler.is_compiling():
        from texturevlm.ops.operators import probe

        _, patch, max_anisotropy, nearest, backend = options
        compiled: Tensor = probe(list(levels), *where, patch or 0, max_anisotropy, list(nearest), backend)
        return compiled
    try:
        tensors = [
            None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            for tensor in (*where, *levels)
        ]
        # With types: 16.0 equals 16 and True equals 1, and the checks refuse both.
        kinds = (type(options.patch), type(options.max_anisotropy), *map(type, options.nearest))
        key = (options, kinds, *tensors)
        request = _requests.get(key)
    except (AttributeError, TypeError):  # not a tensor, or not a number: the checks say which
        key, request = (), None
    if request is None:
        request = Request(levels, where, options)
        if len(_requests) >= MOST_REQUESTS:
            _requests.clear()
        _requests[key] = request
    finest: Tensor = levels[0]
    chosen = request.backend if finest.is_cuda else backends.choose(options.function, finest, options.backend)
    if chosen == "reference":
        quick = options.backend == "auto" and finest.device.type == "cpu" and not _wants_gradients(*where, *levels)
        return (sample_cpu if quick else sample_reference)(levels, where, options)
    hardware = chosen == "texture"
    if request.may_pay:
        hardware = backends.texture_pays(finest, where.points.shape[1] * (options.patch or 1) ** 2)
    return sample_cuda(request, hardware, levels, where)


def _wants_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _check_options(where: Where, options: Options, **levels: tuple[Tensor, str]) -> None:
    function, patch = options.function, options.patch
    if patch is not None:
        check_count(function, "patch", patch, 1)
    check_count(function, "max_anisotropy", options.max_anisotropy, 1, MAX_ANISOTROPY)
    name, count = ("points", "N") if patch is None else ("centre", "K")
    patterns = {name: f"B {count} 2", "lod": f"B {count}", "ddx": f"B {count} 2", "ddy": f"B {count} 2"}
    given = {name: (tensor, patterns[name]) for name, tensor in zip(patterns, where) if tensor is not None}
    check_shapes(function, **levels, **given)


def _sample_texture(texture: Any, where: Where, options: Options) -> Tensor:
    """Sample a texture that is filled already."""
    function, points = options.function, where.points
    _check_options(where, options)
    if isinstance(texture, PagedLevels):
        check_choice(function, "backend", options.backend, ("auto", "reference", "cuda"))
        check_shapes(function, table=(texture.table, "N"), points=(points, "1 K 2"))
        limit = texture.no_kernel_because(options.patch)
        with torch.no_grad():
            if backends.choose(function, texture.coarse[0], options.backend, limit) == "reference":
                return sample_pyramid(texture, where, options)
            assert options.patch is not None  # else there is a limit
            return sample_paged_cuda(texture, where, options.patch, options.max_anisotropy)
    if not isinstance(texture, DeviceTexture):
        raise TypeError(
            f"{function}: levels must be a sequence of (B, C, H, W) tensors, finest first, or a DeviceTexture, "
            f"got {texture!r:.60}"
        )
    check_choice(function, "backend", options.backend, ("auto", "texture"))
    if options.nearest:
        raise ValueError(f"{function}: nearest must be given to the DeviceTexture when it is made, not here")
    if points.device != texture.device or points.shape[0] != texture.shape[0]:
        raise ValueError(
            f"{function}: points must be ({texture.shape[0]}, N, 2) on {texture.device} like the texture, "
            f"got {tuple(points.shape)} on {points.device}"
        )
    if _wants_gradients(*where):
        raise ValueError(f"{function}: gradients need the levels; pass them instead of the DeviceTexture")
    return texture.fetch(where, options.patch, options.max_anisotropy)
