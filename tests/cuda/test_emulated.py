"""The kernels' own code, run on a CPU by an emulator, threads in random order, against the references."""

import pytest
import torch

from tests.conftest import worst
from tests.ops.test_lookup import footprints, gradients
from tests.ops.test_mip import MIXED, change_inside, random_boxes
from texturevlm.cuda.struct import Layout
from texturevlm.ops import lookup, lookup_grad, lookup_kernel, mipmap, sample_patches, update_region
from texturevlm.ops.distance import distance_field
from texturevlm.ops.mip import _ChannelsLast
from texturevlm.ops.segment import boundaries, region_statistics, superpixels

pytestmark = pytest.mark.usefixtures("emulated")
LAYOUTS = ["planar", "channels last", "padded"]
SIZES = [(1, 1), (1, 9), (9, 1), (5, 8), (37, 53), (64, 64), (65, 129), (100, 4), (128, 192), (200, 136), (3, 300)]


def padded(level):
    """Channels last, with room for a multiple of four, as `channels_last` makes it."""
    return _ChannelsLast.apply(level)[0]


def stored(levels, layout):
    """Levels as float32: planar, channels last, or channels last with room for a multiple of four."""
    if layout == "padded":
        return [padded(level.float()) for level in levels]
    kind = torch.channels_last if layout == "channels last" else torch.contiguous_format
    return [level.float().contiguous(memory_format=kind) for level in levels]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [2, 4, None])
def test_mips(size, levels):
    image = torch.rand(2, 5, *size)
    for reduce in ("mean", MIXED):
        got = mipmap(image, levels=levels, reduce=reduce, backend="cuda")
        wanted = mipmap(image.double(), levels=levels, reduce=reduce, backend="reference")
        for level, exact in zip(got, wanted, strict=True):
            assert worst(level, exact) < 2e-6


@pytest.mark.parametrize("size", [(37, 53), (65, 129), (192, 320), (200, 136)])
@pytest.mark.parametrize("count", [4, 40])
def test_updates_equal_a_rebuild_bit_for_bit(size, count):
    image = torch.rand(2, 5, *size)
    boxes = random_boxes(2, count, *size) // (1 if count == 4 else 3)
    for reduce in ("mean", MIXED):
        pyramid = mipmap(image.clone(), reduce=reduce, backend="cuda")
        changed = change_inside(image, boxes)
        pyramid[0].copy_(changed)
        update_region(pyramid, boxes, reduce=reduce, backend="cuda")
        for level, wanted in zip(pyramid, mipmap(changed, reduce=reduce, backend="cuda"), strict=True):
            assert torch.equal(level, wanted)


@pytest.mark.parametrize("size", [(1, 9), (37, 53), (64, 64), (65, 130), (72, 40), (6, 8)])
@pytest.mark.parametrize("channels", [1, 3, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reached", ["all", "odd", "last"])
def test_mip_gradients(size, channels, layout, reached):
    image = torch.rand(2, channels, *size, requires_grad=True)
    exact = image.detach().double().requires_grad_()
    got, wanted = mipmap(image, backend="cuda"), mipmap(exact, backend="reference")
    chosen = {"all": slice(0, None), "odd": slice(1, None, 2), "last": slice(-1, None)}[reached]
    upstream = [torch.randn_like(level) for level in got[chosen]]
    laid_out = [stored([one], layout)[0] for one in upstream]
    (gradient,) = torch.autograd.grad(got[chosen], image, laid_out)
    (truth,) = torch.autograd.grad(wanted[chosen], exact, [one.double() for one in upstream])
    assert worst(gradient, truth) < 1e-5


@pytest.mark.parametrize("size", [(1, 1), (3, 300), (37, 53), (64, 48)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 6, 40])
def test_samples(size, layout, channels):
    exact = mipmap(torch.rand(2, channels, *size, dtype=torch.float64), backend="reference")
    levels = stored(exact, layout)
    points, ddx, ddy = footprints(2, 41, size)
    lod = torch.rand(2, 41) * (len(levels) + 1) - 1
    wide = [tensor.double() for tensor in (points, ddx, ddy)]
    for nearest in ((), (channels // 2,)):
        wanted = lookup(exact, wide[0], lod.double(), nearest=nearest, backend="reference")
        assert worst(lookup(levels, points, lod, nearest=nearest, backend="cuda"), wanted) < 1e-4
        wanted = lookup_grad(exact, *wide, nearest=nearest, backend="reference")
        assert worst(lookup_grad(levels, points, ddx, ddy, nearest=nearest, backend="cuda"), wanted) < 1e-4
    got = sample_patches(levels, points, ddx / 5, ddy / 5, patch=5, backend="cuda")
    assert worst(got, sample_patches(exact, wide[0], wide[1] / 5, wide[2] / 5, patch=5, backend="reference")) < 1e-4


@pytest.mark.parametrize("operation", ["lookup", "lookup_grad", "sample_patches"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [3, 6, 40])
def test_sample_gradients(operation, layout, channels):
    exact = mipmap(torch.rand(2, channels, 37, 53, dtype=torch.float64), backend="reference")
    points, ddx, ddy = footprints(2, 30, (37, 53), ratio=6)
    lod = torch.rand(2, 30) * 5
    call = {
        "lookup": lambda b: lambda p, d, *ls: lookup(ls, p, d, backend=b),
        "lookup_grad": lambda b: lambda p, x, y, *ls: lookup_grad(ls, p, x, y, backend=b),
        "sample_patches": lambda b: lambda p, x, y, *ls: sample_patches(ls, p, x, y, patch=3, backend=b),
    }[operation]
    inputs = (points, lod) if operation == "lookup" else (points, ddx, ddy)
    upstream = torch.randn((2, 30, channels, 3, 3) if operation == "sample_patches" else (2, 30, channels))
    got = gradients(call("cuda"), (*inputs, *stored(exact, layout)), upstream)
    wanted = gradients(call("reference"), (*(tensor.double() for tensor in inputs), *exact), upstream.double())
    for index, (mine, truth) in enumerate(zip(got, wanted, strict=True)):
        limit = 2e-2 if index < len(inputs) else 1e-4
        assert (mine.double() - truth).norm() <= limit * truth.norm() + 1e-6


def test_lookups_of_any_number_of_points_write_each_value():
    levels = stored(mipmap(torch.rand(1, 8, 16, 16, dtype=torch.float64), backend="reference"), "channels last")
    for count in (1, 15, 16, 17, 33, 64, 129):
        points, lod = torch.rand(1, count, 2) * 16, torch.rand(1, count) * 4
        wanted = lookup([level.double() for level in levels], points.double(), lod.double(), backend="reference")
        assert worst(lookup(levels, points, lod, backend="cuda"), wanted) < 1e-4


@pytest.mark.parametrize("operation", ["lookup", "lookup_grad"])
def test_points_that_begin_between_two_pairs_are_moved_before_kernels_read_pairs(operation, monkeypatch):
    levels = stored(mipmap(torch.rand(1, 8, 16, 16, dtype=torch.float64), backend="reference"), "channels last")
    start, layout = lookup_kernel.launch, Layout("lookup.cu", "Lookup")
    pairs = [field.offset for field in layout.fields if field.name in ("points", "ddx", "ddy")]
    read = []

    def launch(source, name, device, blocks, parameters, **options):
        read.extend(int.from_bytes(parameters[offset : offset + 8], "little") for offset in pairs)
        start(source, name, device, blocks, parameters, **options)

    monkeypatch.setattr(lookup_kernel, "launch", launch)
    points, ddx, ddy = (torch.rand(1 + 2 * 33)[1:].view(1, 33, 2).add_(1).requires_grad_() for _ in range(3))
    assert points.is_contiguous() and points.data_ptr() % 8 == 4
    call, where = (lookup, (points, torch.rand(1, 33))) if operation == "lookup" else (lookup_grad, (points, ddx, ddy))
    got = call(levels, *where, backend="cuda")
    assert worst(got, call(levels, *where, backend="reference")) < 1e-4
    got.sum().backward()
    assert points.grad is not None and len(read) == 6 and not any(address % 8 for address in read)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (37, 53), (65, 33), (2, 1100), (130, 70)])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.1, 1.0])
def test_distances(size, share):
    mask = torch.rand(2, *size) < share
    assert worst(distance_field(mask, backend="cuda"), distance_field(mask, backend="reference")) < 2.5e-4


@pytest.mark.parametrize("size", [(1, 1), (37, 53), (130, 97)])
def test_regions(size):
    image = torch.rand(2, 3, *size)
    got, wanted = (superpixels(image, count=12, backend=name) for name in ("cuda", "reference"))
    assert (got == wanted).float().mean() > 0.999
    assert torch.equal(boundaries(wanted, backend="cuda"), boundaries(wanted, backend="reference"))
    for mine, truth in zip(
        *(region_statistics(wanted, 20, backend=name) for name in ("cuda", "reference")), strict=True
    ):
        assert worst(mine, truth) < 1e-5
