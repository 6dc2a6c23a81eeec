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

_WHERE = "Tensor[] levels, Tensor points, Tensor? lod, Tensor? ddx, Tensor? ddy"
_OPTIONS = "int patch, int max_anisotropy, int[] nearest, str backend"


def _sample(levels: Sequence[Tensor], where: Where, patch: int, *options: Any) -> Tensor:
    """`lookup` if there is a lod, else `sample_patches` if there is a patch, else `lookup_grad`."""
    function = "lookup" if where.lod is not None else "sample_patches" if patch else "lookup_grad"
    max_anisotropy, nearest, backend = options
    return sample_levels(list(levels), where, Options(function, patch or None, max_anisotropy, tuple(nearest), backend))


def _probe(levels: list[Tensor], points: Any, lod: Any, ddx: Any, ddy: Any, *options: Any) -> Tensor:
    with torch.no_grad():
        return _sample(levels, Where(points, lod, ddx, ddy), *options).contiguous()


def _probe_shape(levels: Any, points: Any, lod: Any, ddx: Any, ddy: Any, patch: int, *options: Any) -> Any:
    return levels[0].new_empty((*points.shape[:2], levels[0].shape[1], *((patch, patch) if patch else ())))


def _probe_backward(upstream: Tensor, levels: list[Tensor], *rest: Any) -> list[Tensor]:
    """The gradients of points, lod, ddx, ddy and the levels that are wanted, in this order."""
    *where, patch, max_anisotropy, nearest, backend, wanted = rest
    with torch.enable_grad():
        given = zip([*where, *levels], wanted)
        leaves: list[Any] = [None if tensor is None else tensor.detach().requires_grad_(want) for tensor, want in given]
        values = _sample(leaves[4:], Where(*leaves[:4]), patch, max_anisotropy, nearest, backend)
    needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    return [gradient.contiguous() for gradient in torch.autograd.grad(values, needed, upstream)]


def _probe_backward_shapes(upstream: Any, levels: Any, *rest: Any) -> list[Tensor]:
    given = zip([*rest[:4], *levels], rest[-1])
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor, want in given if want]


def _levels(image: Tensor, count: int, reduce: str, backend: str) -> list[Tensor]:
    """reduce: one word, or one per channel with commas."""
    return mipmap(image, levels=count, reduce=reduce.split(",") if "," in reduce else reduce, backend=backend)[1:]


def _mipmap(image: Tensor, *options: Any) -> list[Tensor]:
    """All levels but the finest, which is the image."""
    with torch.no_grad():
        return [level.clone() for level in _levels(image, *options)]


def _mipmap_shapes(image: Any, count: int, *options: Any) -> list[Tensor]:
    extents = level_extents(int(image.shape[2]), int(image.shape[3]), count)
    return [image.new_empty((*image.shape[:2], *extent)) for extent in extents[1:]]


def _mipmap_backward(image: Tensor, gradients: list[Tensor], *options: Any) -> Tensor:
    with torch.enable_grad():
        leaf = image.detach().requires_grad_()
        levels = _levels(leaf, *options)
    return torch.autograd.grad(levels, leaf, gradients)[0].contiguous()


def _mipmap_backward_shape(image: Any, *rest: Any) -> Tensor:
    return torch.empty_like(image, memory_format=torch.contiguous_format)


_MIPMAP = "int count, str reduce, str backend"
_OPERATORS: dict[str, tuple[Any, Any]] = {  # schema: what runs, and the shapes of what it returns
    f"probe({_WHERE}, {_OPTIONS}) -> Tensor": (_probe, _probe_shape),
    f"probe_backward(Tensor upstream, {_WHERE}, {_OPTIONS}, bool[] wanted) -> Tensor[]": (
        _probe_backward, _probe_backward_shapes),
    f"mipmap(Tensor image, {_MIPMAP}) -> Tensor[]": (_mipmap, _mipmap_shapes),
    f"mipmap_backward(Tensor image, Tensor[] gradients, {_MIPMAP}) -> Tensor": (
        _mipmap_backward, _mipmap_backward_shape),
}  # fmt: skip
_library: Any = torch.library.Library("texturevlm", "FRAGMENT")
for _schema, (_function, _shapes) in _OPERATORS.items():
    _name = _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"texturevlm::{_name}", _shapes, lib=_library)
probe = torch.ops.texturevlm.probe.default
coarser_levels = torch.ops.texturevlm.mipmap.default


def _keep_probe(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    levels, points, lod, ddx, ddy, *ctx.options = inputs
    ctx.save_for_backward(points, lod, ddx, ddy, *levels)


def _backward_of_probe(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    where, levels, of_levels = ctx.saved_tensors[:4], ctx.saved_tensors[4:], ctx.needs_input_grad[0]
    each = of_levels if isinstance(of_levels, (list, tuple)) else [of_levels] * len(levels)
    wanted = [*ctx.needs_input_grad[1:5], *each]
    operator = torch.ops.texturevlm.probe_backward
    found = iter(operator(upstream, levels, *where, *ctx.options, wanted) if any(wanted) else ())
    gradients = [next(found) if want else None for want in wanted]
    # PyTorch takes an empty list of channels for a list of tensors, and wants a gradient of the same structure.
    of_nearest: list[Tensor] | None = None if ctx.options[2] else []
    return gradients[4:], *gradients[:4], None, None, of_nearest, None


def _keep_image(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    image, *ctx.options = inputs
    ctx.save_for_backward(image)


def _backward_of_levels(ctx: Any, gradients: Any) -> tuple[Any, ...]:
    return torch.ops.texturevlm.mipmap_backward(*ctx.saved_tensors, gradients, *ctx.options), None, None, None


torch.library.register_autograd("texturevlm::probe", _backward_of_probe, setup_context=_keep_probe, lib=_library)
torch.library.register_autograd("texturevlm::mipmap", _backward_of_levels, setup_context=_keep_image, lib=_library)
