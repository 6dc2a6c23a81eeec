"""What `lookup`, `lookup_grad` and `sample_patches` share: checks, the choice of a backend, and the way to the kernels.

A stream of images asks for the same shapes again and again. Checks therefore run once per combination of shapes,
layouts, dtypes and options (a `Call`), which also remembers how its kernel is started.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes
from texturevlm.ops import backend as backends
from texturevlm.ops.mip import check_pyramid

MAX_ANISOTROPY = 16
MOST_CALLS = 1024

Levels = list[Tensor] | tuple[Tensor, ...]


class Call:
    """One combination of shapes and options, checked.

    patch:   samples along each side of a patch; None: points, not patches
    backend: what runs it for tensors on a CUDA GPU
    plan:    how its forward kernel is started (probe_kernel.py), once it was
    """

    __slots__ = ("backend", "max_anisotropy", "may_pay", "nearest", "patch", "plan")

    def __init__(self, patch: int | None, max_anisotropy: int, nearest: tuple[int, ...]) -> None:
        self.patch, self.max_anisotropy, self.nearest = patch, max_anisotropy, nearest
        self.backend, self.may_pay = "reference", False
        self.plan: Any = None


_calls: dict[tuple[Any, ...], Call] = {}


def sample(
    function: str,
    levels: Any,
    points: Tensor,
    lod: Tensor | None,
    ddx: Tensor | None,
    ddy: Tensor | None,
    *,
    patch: int | None,
    max_anisotropy: int,
    nearest: Sequence[int],
    backend: str,
) -> Tensor | None:
    """Check and run one of the three functions, whose name is for errors; None: the caller runs its reference."""
    if not isinstance(levels, (list, tuple)):
        return _from_texture(function, levels, points, lod, ddx, ddy, patch, max_anisotropy, nearest, backend)
    if torch.compiler.is_compiling():
        from texturevlm.ops.operators import probe as operator

        found: Tensor = operator(
            list(levels), points, lod, ddx, ddy, patch or 0, max_anisotropy, list(nearest), backend
        )
        return found
    try:
        tensors = [
            None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            for tensor in (points, lod, ddx, ddy, *levels)
        ]
        # With types: 16.0 equals 16 and True equals 1, and the checks refuse both.
        kinds = (type(patch), type(max_anisotropy), *map(type, nearest))
        key = (function, patch, max_anisotropy, tuple(nearest), kinds, backend, *tensors)
        call = _calls.get(key)
    except (AttributeError, TypeError):  # not a tensor, or not a number: the checks say which
        key, call = (), None
    if call is None:
        call = _check(function, levels, points, lod, ddx, ddy, patch, max_anisotropy, nearest, backend)
        if len(_calls) >= MOST_CALLS:
            _calls.clear()
        _calls[key] = call
    finest: Tensor = levels[0]
    chosen = call.backend if finest.is_cuda else backends.choose(function, finest, backend)
    if chosen == "reference":
        return None
    hardware = chosen == "texture"
    if call.may_pay:
        hardware = backends.texture_pays(finest, points.shape[1] * (patch or 1) ** 2)
    values: Tensor = _kernels().probe(call, hardware, levels, points, lod, ddx, ddy)
    return values


def _check(
    function: str,
    levels: Levels,
    points: Tensor,
    lod: Tensor | None,
    ddx: Tensor | None,
    ddy: Tensor | None,
    patch: int | None,
    max_anisotropy: int,
    nearest: Sequence[int],
    backend: str,
) -> Call:
    if patch is not None:
        check_count(function, "patch", patch, 1)
    check_count(function, "max_anisotropy", max_anisotropy, 1, MAX_ANISOTROPY)
    check_pyramid(function, levels)
    where = _patterns(patch, points, lod, ddx, ddy)
    check_shapes(function, levels=(levels[0], "B C H W"), **where)
    check_floating(function, **{name: tensor for name, (tensor, _) in where.items()})
    check_nearest(function, nearest, levels[0].shape[1])
    call = Call(patch, max_anisotropy, tuple(nearest))
    call.backend = backends.choose(function, levels[0], backend)
    # A texture for one call pays for dense patches alone, and never before each texel is read once.
    samples = points.shape[1] * (patch or 0) ** 2
    call.may_pay = backend == "auto" and samples >= levels[0].shape[2] * levels[0].shape[3]
    return call


def _patterns(
    patch: int | None, points: Tensor, lod: Tensor | None, ddx: Tensor | None, ddy: Tensor | None
) -> dict[str, tuple[Tensor, str]]:
    """The arguments by name, each with the shape that it must have."""
    names, count = ("centre" if patch is not None else "points", "lod", "ddx", "ddy"), "N" if patch is None else "K"
    patterns = (f"B {count} 2", f"B {count}", f"B {count} 2", f"B {count} 2")
    given = zip(names, (points, lod, ddx, ddy), patterns)
    return {name: (tensor, pattern) for name, tensor, pattern in given if tensor is not None}


def check_nearest(function: str, nearest: Sequence[int], channels: int) -> None:
    """Every entry must be the index of a channel."""
    for channel in nearest:
        check_count(function, "nearest", channel, 0, channels - 1)


def _from_texture(
    function: str,
    texture: Any,
    points: Tensor,
    lod: Tensor | None,
    ddx: Tensor | None,
    ddy: Tensor | None,
    patch: int | None,
    max_anisotropy: int,
    nearest: Sequence[int],
    backend: str,
) -> Tensor:
    from texturevlm.ops.device_texture import fetch_from

    if patch is not None:
        check_count(function, "patch", patch, 1)
    check_count(function, "max_anisotropy", max_anisotropy, 1, MAX_ANISOTROPY)
    check_shapes(function, **_patterns(patch, points, lod, ddx, ddy))
    options: Any = {"max_anisotropy": max_anisotropy, "nearest": nearest, "backend": backend}
    return fetch_from(function, texture, points, lod=lod, ddx=ddx, ddy=ddy, patch=patch, **options)


_kernel_module: list[Any] = []


def _kernels() -> Any:
    """Imported when first used, and found at once from then on: this is the hot path."""
    if not _kernel_module:
        from texturevlm.ops import probe_kernel

        _kernel_module.append(probe_kernel)
    return _kernel_module[0]
