"""torch.compile keeps the operations of a pyramid whole, with the values and gradients of eager calls."""

import pytest
import torch

from tests.conftest import worst
from tests.ops.test_lookup import footprints
from texturevlm.ops import lookup, lookup_grad, mipmap, operators, sample_patches


def by_lookup(image, points, lod, ddx, ddy):
    return lookup(mipmap(image * 2, levels=4), points, lod, nearest=[1]).sin()


def by_axes(image, points, lod, ddx, ddy):
    return lookup_grad(mipmap(image * 2), points, ddx, ddy, max_anisotropy=4).sin()


def by_patches(image, points, lod, ddx, ddy):
    return sample_patches(mipmap(image * 2, reduce=["mean", "max", "min"]), points, ddx, ddy, patch=3).sin()


@pytest.mark.parametrize("function", [by_lookup, by_axes, by_patches])
def test_compiled_functions_equal_eager_ones(function):
    points, ddx, ddy = footprints(2, 7, (20, 26), ratio=3)
    inputs = [one.requires_grad_() for one in (torch.rand(2, 3, 20, 26), points, torch.rand(2, 7) * 3, ddx, ddy)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    got, wanted = compiled(*inputs), function(*inputs)
    assert worst(got, wanted) < 1e-6
    upstream = torch.randn_like(wanted)
    mine = torch.autograd.grad(got, inputs, upstream, allow_unused=True)
    truth = torch.autograd.grad(wanted, inputs, upstream, allow_unused=True)
    for one, other in zip(mine, truth, strict=True):
        assert (one is None) == (other is None)
        assert one is None or worst(one, other) < 1e-5


def test_operators_keep_pytorchs_rules():
    levels = mipmap(torch.rand(1, 3, 8, 8))
    points, ddx, ddy = footprints(1, 5, (8, 8), ratio=3)
    torch.library.opcheck(operators.coarser_levels, (torch.rand(1, 3, 8, 8, requires_grad=True), 3, "mean", "auto"))
    leaves = [level.requires_grad_() for level in levels]
    torch.library.opcheck(operators.probe, (leaves, points, torch.rand(1, 5), None, None, 0, 1, [], "auto"))
    torch.library.opcheck(operators.probe, (leaves, points.requires_grad_(), None, ddx, ddy, 2, 16, [0], "auto"))
