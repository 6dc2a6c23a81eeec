"""The Python side of the kernels, without a GPU: launches are recorded, not made, so every path to one is walked."""

from collections import Counter

import pytest
import torch

from texturevlm.ops import DeviceTexture, backend, lookup, lookup_grad, mipmap, sample_patches, update_region

pytest.importorskip("cuda.bindings")
from texturevlm.ops import device_texture as texture
from texturevlm.ops import lookup_kernel as probe
from texturevlm.ops import mip_kernel as mip
from texturevlm.types import Texture


class _NoDevice:
    def __init__(self, *_):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


@pytest.fixture
def launches(monkeypatch):
    """Tensors on the CPU pass for tensors on a GPU; returns how often each kernel would have been started."""
    made: Counter[str] = Counter()

    def launch(source, name, device, blocks, parameters, *, early=False, **define):
        assert parameters and (blocks if isinstance(blocks, int) else min(blocks)) > 0
        made[name] += 1

    for module in (mip, probe, texture):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(backend, "no_kernel_because", lambda tensor: None)
    monkeypatch.setattr(texture, "_create", lambda shape, levels, *_: (1, [2] * levels, [3, 4]))
    monkeypatch.setattr(texture, "_destroy", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", _NoDevice)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


@pytest.mark.parametrize(
    ("size", "kernels"),
    [
        ((1024, 1024), {"mip_even": 2}),
        ((1080, 1920), {"mip_even": 1, "mip_more": 2}),
        ((1699, 2201), {"mip_any": 1, "mip_more": 2}),
        ((37, 50), {"mip_any": 1}),
    ],
)
def test_a_pyramid_takes_few_launches(launches, size, kernels):
    levels = mipmap(torch.empty(1, 1, *size), backend="cuda")
    assert levels[-1].shape[2:] == (1, 1) and launches == kernels


def test_five_levels_of_an_even_image_are_one_launch(launches):
    mipmap(torch.empty(1, 3, 1024, 1024), levels=5, backend="cuda")
    assert launches == {"mip_even": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_levels_that_share_memory_are_aligned_and_apart(launches, dtype):
    first, *others = mipmap(torch.empty(2, 3, 100, 70, dtype=dtype), backend="cuda")
    assert {level.untyped_storage().data_ptr() for level in others} == {others[0].data_ptr()} != {first.data_ptr()}
    end = others[0].data_ptr()
    for level in others:
        assert level.is_contiguous() and level.data_ptr() % 16 == 0 and level.data_ptr() >= end
        end = level.data_ptr() + level.numel() * level.element_size()
    assert end <= others[0].data_ptr() + others[0].untyped_storage().nbytes()


def test_levels_with_gradients_can_be_changed_in_place(launches):
    levels = mipmap(torch.rand(1, 3, 40, 64, requires_grad=True), backend="cuda")
    levels[2].mul_(2.0)
    levels[1].sum().backward()


def test_an_update_takes_as_many_launches_as_a_build(launches):
    levels = mipmap(torch.zeros(2, 3, 1080, 1920), backend="cuda")
    built = dict(launches)
    launches.clear()
    update_region(levels, torch.zeros(2, 3, 4, dtype=torch.int64), backend="cuda")
    assert launches == built


@pytest.mark.parametrize("chosen", ["cuda", "texture"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_gradient_that_is_wanted_is_returned(launches, chosen, dtype):
    image = torch.rand(2, 5, 37, 64, dtype=dtype, requires_grad=True)
    levels = mipmap(image, backend="cuda")
    points, ddx, ddy = (torch.rand(2, 7, 2, requires_grad=True) for _ in range(3))
    lod = torch.rand(2, 7, requires_grad=True)
    for values in (
        lookup(levels, points, lod, nearest=[1], backend=chosen),
        lookup_grad(levels, points, ddx, ddy, backend=chosen),
        sample_patches(levels, points, ddx, ddy, patch=3, backend=chosen),
    ):
        assert values.dtype == dtype
        values.sum().backward(retain_graph=True)
    for tensor in (image, points, ddx, ddy, lod):
        assert tensor.grad is not None and tensor.grad.shape == tensor.shape and tensor.grad.dtype == tensor.dtype
    assert launches["lookup_backward"] == 2 and launches["sample_patches_backward"] == 1
    assert launches["fetch"] == (3 if chosen == "texture" else 0)


def test_a_filled_texture_is_sampled_without_filling_it_again(launches):
    levels = mipmap(torch.rand(2, 5, 37, 64), backend="reference")
    filled = DeviceTexture(levels, nearest=[2])
    points, lod = torch.rand(2, 7, 2), torch.rand(2, 7)
    assert lookup(filled, points, lod).shape == (2, 7, 5)
    assert lookup_grad(filled, points, points, points).shape == (2, 7, 5)
    assert sample_patches(filled, points, points, points, patch=4).shape == (2, 7, 5, 4, 4)
    assert launches == {"fill": 1, "fetch": 3}
    assert not filled.half  # it holds names
    with pytest.raises(ValueError, match=r"lookup: gradients need the levels"):
        lookup(filled, points.requires_grad_(), lod)
    with pytest.raises(ValueError, match=r"lookup: backend must be one of auto, texture, got 'cuda'"):
        lookup(filled, points.detach(), lod, backend="cuda")


def test_a_change_is_brought_to_the_texture_units(launches):
    resident = Texture(torch.rand(2, 3, 40, 64)).mipmapped().on_device()
    launches.clear()
    resident.update_region(torch.tensor([[[1, 2, 9, 9]], [[0, 0, 0, 0]]]))
    assert launches["fill"] == 1 and sum(launches.values()) > 1
    launches.clear()
    resident.update_region(torch.zeros(2, 0, 4, dtype=torch.int64))
    assert not launches
    with pytest.raises(ValueError, match=r"DeviceTexture.fill: boxes must be \(B, N, 4\), got \(1, 1, 4\)"):
        resident.resident.fill(resident.levels, torch.zeros(1, 1, 4, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"DeviceTexture.fill: boxes must hold whole numbers"):
        resident.resident.fill(resident.levels, torch.zeros(2, 1, 4))


def test_levels_too_far_apart_for_the_kernels_are_refused(launches):
    far = torch.empty(1, 40, 8192, 8192, device="meta").to(memory_format=torch.channels_last)
    points, lod = torch.rand(1, 1, 2, device="meta"), torch.rand(1, 1, device="meta")
    with pytest.raises(ValueError, match=r"levels\[0\] of \(1, 40, 8192, 8192\) .* further apart than 2³¹"):
        lookup([far], points, lod, backend="cuda")
    lookup([far.contiguous()], points, lod, backend="cuda")
    assert launches == {"lookup": 1}
