"""mipmap, lookup, lookup_grad and sample_patches as operators of PyTorch, so that torch.compile keeps them whole.

Eager calls do not come here: an operator's dispatch costs more than the kernels' own launch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops.lookup import sample_levels
from texturevlm.ops.lookup_reference import Options, Where
from texturevlm.ops.mip import level_extents, mipmap


def _sample(levels: Sequence[Tensor], where: Where, patch: int, *options: Any) -> Tensor:
    """`lookup` if there is a lod, else `sample_patches` if there is a patch, else `lookup_grad`."""
    function = "lookup" if where.lod is not None else "sample_patches" if patch else "lookup_grad"
    max_anisotropy, nearest, backend = options
    return sample_levels(list(levels), where, Options(function, patch or None, max_anisotropy, tuple(nearest), backend))


@torch.library.custom_op("texturevlm::probe", mutates_args=())
def probe(
    levels: Sequence[Tensor],
    points: Tensor,
    lod: Tensor | None,
    ddx: Tensor | None,
    ddy: Tensor | None,
    patch: int,
    max_anisotropy: int,
    nearest: Sequence[int],
    backend: str,
) -> Tensor:
    """lookup (with lod), lookup_grad (patch 0) or sample_patches."""
    with torch.no_grad():
        return _sample(levels, Where(points, lod, ddx, ddy), patch, max_anisotropy, nearest, backend).contiguous()


@probe.register_fake
def _probe_shape(levels: Any, points: Any, lod: Any, ddx: Any, ddy: Any, patch: int, *options: Any) -> Tensor:
    shape = (*points.shape[:2], levels[0].shape[1], *((patch, patch) if patch else ()))
    return levels[0].new_empty(shape)  # type: ignore[no-any-return]


# Backward operators are not custom_ops: those run below autograd, and these use it.
_library: Any = torch.library.Library("texturevlm", "FRAGMENT")
_library.define(
    "probe_backward(Tensor upstream, Tensor[] levels, Tensor points, Tensor? lod, Tensor? ddx, Tensor? ddy, int patch, "
    "int max_anisotropy, int[] nearest, str backend, bool[] wanted) -> Tensor[]"
)
_library.define("mipmap_backward(Tensor image, Tensor[] gradients, int count, str reduce, str backend) -> Tensor")


def _probe_backward(upstream: Tensor, levels: list[Tensor], *rest: Any) -> list[Tensor]:
    """The gradients of points, lod, ddx, ddy and the levels that are wanted, in this order."""
    *where, patch, max_anisotropy, nearest, backend, wanted = rest
    with torch.enable_grad():
        given = zip([*where, *levels], wanted)
        leaves: list[Any] = [None if one is None else one.detach().requires_grad_(want) for one, want in given]
        values = _sample(leaves[4:], Where(*leaves[:4]), patch, max_anisotropy, nearest, backend)
    needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    return [one.contiguous() for one in torch.autograd.grad(values, needed, upstream)]


def _probe_backward_shapes(upstream: Any, levels: Any, *rest: Any) -> Any:
    given = zip([*rest[:4], *levels], rest[-1])
    return [torch.empty_like(one, memory_format=torch.contiguous_format) for one, want in given if want]


def _mipmap_backward(image: Tensor, gradients: list[Tensor], count: int, reduce: str, backend: str) -> Tensor:
    with torch.enable_grad():
        leaf = image.detach().requires_grad_()
        levels = mipmap(leaf, levels=count, reduce=_reductions(reduce), backend=backend)
    return torch.autograd.grad(levels[1:], leaf, gradients)[0].contiguous()


def _mipmap_backward_shape(image: Any, *rest: Any) -> Any:
    return torch.empty_like(image, memory_format=torch.contiguous_format)


for _name, _function, _fake in (
    ("probe_backward", _probe_backward, _probe_backward_shapes),
    ("mipmap_backward", _mipmap_backward, _mipmap_backward_shape),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"texturevlm::{_name}", _fake)  # type: ignore[arg-type]


def _keep_probe(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    levels, points, lod, ddx, ddy, *ctx.options = inputs
    ctx.save_for_backward(points, lod, ddx, ddy, *levels)


def _backward_of_probe(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    points, lod, ddx, ddy, *levels = ctx.saved_tensors
    of_levels, *of_where = ctx.needs_input_grad[:5]
    each = of_levels if isinstance(of_levels, (list, tuple)) else [of_levels] * len(levels)
    wanted = [*of_where, *each]
    operator = torch.ops.texturevlm.probe_backward
    found = iter(operator(upstream, levels, points, lod, ddx, ddy, *ctx.options, wanted) if any(wanted) else ())
    gradients = [next(found) if want else None for want in wanted]
    # PyTorch takes an empty list of channels for a list of tensors, and wants a gradient of the same structure.
    of_nearest: list[Tensor] | None = None if ctx.options[2] else []
    return gradients[4:], *gradients[:4], None, None, of_nearest, None


probe.register_autograd(_backward_of_probe, setup_context=_keep_probe)


def _reductions(reduce: str) -> str | list[str]:
    return reduce.split(",") if "," in reduce else reduce


@torch.library.custom_op("texturevlm::mipmap", mutates_args=())
def coarser_levels(image: Tensor, count: int, reduce: str, backend: str) -> list[Tensor]:
    """All levels of `mipmap` but the finest, which is the image. reduce: one word, or one per channel with commas."""
    with torch.no_grad():
        return [level.clone() for level in mipmap(image, levels=count, reduce=_reductions(reduce), backend=backend)[1:]]


@coarser_levels.register_fake
def _level_shapes(image: Any, count: int, reduce: str, backend: str) -> list[Any]:
    extents = level_extents(int(image.shape[2]), int(image.shape[3]), count)
    return [image.new_empty((*image.shape[:2], *extent)) for extent in extents[1:]]


def _keep_image(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    image, *ctx.options = inputs
    ctx.save_for_backward(image)


def _backward_of_levels(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    return torch.ops.texturevlm.mipmap_backward(*ctx.saved_tensors, gradients, *ctx.options), None, None, None


coarser_levels.register_autograd(_backward_of_levels, setup_context=_keep_image)
