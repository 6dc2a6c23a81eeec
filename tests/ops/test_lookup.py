"""lookup, lookup_grad and sample_patches: what they mean, and every backend against the float64 reference."""

import math
from functools import partial

import pytest
import torch

from tests.conftest import TOLERANCE, poison, worst
from texturevlm.ops import channels_last, lookup, lookup_grad, lookup_reference, mipmap, sample_patches
from texturevlm.ops.lookup_reference import probes

SIZES = [(1, 1), (1, 9), (7, 5), (16, 16), (37, 53), (64, 48), (3, 300)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BACKENDS = ["cuda", "texture"]


def footprints(batch: int, count: int, size: tuple[int, int], patch: int = 1, ratio: float = 16.0, **kind):
    """Random centres on and around the image, axes of random length, ratio and direction."""
    height, width = size
    centre = torch.rand(batch, count, 2) * torch.tensor([width, height]) * 1.2 - torch.tensor([width, height]) * 0.1
    short = 2 ** (torch.rand(batch, count) * (math.log2(max(size)) + 2) - 1) / patch
    long = short * (1 + torch.rand(batch, count) * (ratio - 1))
    angle = torch.rand(batch, count) * 2 * math.pi
    along = torch.stack([angle.cos(), angle.sin()], -1)
    across = torch.stack([-angle.sin(), angle.cos()], -1)
    swap = (torch.rand(batch, count, 1) < 0.5).float()
    ddx, ddy = long[..., None] * along, short[..., None] * across
    axes = ddx * swap + ddy * (1 - swap), ddy * swap + ddx * (1 - swap)
    return tuple(tensor.to(**kind) for tensor in (centre, *axes))


def test_texel_centres_give_texels_and_halfway_blends():
    levels = mipmap(torch.rand(1, 2, 6, 8, dtype=torch.float64))
    y, x = torch.meshgrid(torch.arange(6.0), torch.arange(8.0), indexing="ij")
    points = torch.stack([x, y], -1).reshape(1, -1, 2).double() + 0.5
    got = lookup(levels, points, torch.zeros(1, 48, dtype=torch.float64))
    assert torch.equal(got[0].T.reshape(2, 6, 8), levels[0][0])
    between = lookup(levels, points[:, :1] + torch.tensor([0.5, 0.0]), torch.zeros(1, 1, dtype=torch.float64))
    assert worst(between[0, 0], levels[0][0, :, 0, :2].mean(-1)) < 1e-15


def test_levels_blend_and_clamp():
    levels = mipmap(torch.rand(1, 1, 8, 8, dtype=torch.float64))
    point = torch.tensor([[[4.0, 4.0]]]).double()

    def at(lod: float) -> float:
        return lookup(levels, point, torch.tensor([[lod]]).double()).item()

    assert at(1.25) == pytest.approx(0.75 * at(1) + 0.25 * at(2), abs=1e-14)
    assert at(-3) == at(0) and at(99) == at(3) == pytest.approx(levels[0].mean().item(), abs=1e-14)


def test_numbers_of_another_type_are_refused_after_an_equal_one_was_taken():
    levels, where = mipmap(torch.rand(1, 2, 8, 8)), (torch.rand(1, 3, 2), torch.ones(1, 3, 2), torch.ones(1, 3, 2))
    sample_patches(levels, *where, patch=1, max_anisotropy=2, nearest=(1,))
    for wrong in ({"patch": 1.0}, {"patch": True}, {"max_anisotropy": 2.0}, {"nearest": (1.0,)}, {"nearest": (True,)}):
        with pytest.raises(TypeError, match=f"sample_patches: {next(iter(wrong))} must be a whole number"):
            sample_patches(levels, *where, **{"patch": 1, "max_anisotropy": 2, "nearest": (1,), **wrong})


def test_outside_the_image_the_edge_goes_on():
    levels = mipmap(torch.rand(1, 1, 5, 7, dtype=torch.float64))
    points = torch.tensor([[[-50.0, -50.0], [500.0, 2.5]]]).double()
    got = lookup(levels, points, torch.zeros(1, 2).double())[0, :, 0]
    assert got[0] == levels[0][0, 0, 0, 0] and got[1] == levels[0][0, 0, 2, -1]


def test_a_square_footprint_is_a_plain_lookup_at_its_level():
    levels = mipmap(torch.rand(2, 3, 37, 53, dtype=torch.float64))
    points = torch.rand(2, 50, 2, dtype=torch.float64) * 40
    side = torch.rand(2, 50, dtype=torch.float64) * 10 + 1
    zero = torch.zeros_like(side)
    got = lookup_grad(levels, points, torch.stack([side, zero], -1), torch.stack([zero, side], -1))
    assert worst(got, lookup(levels, points, side.log2())) < 1e-14


def test_probes_span_the_long_axis_at_the_level_of_the_short_one():
    ddx = torch.tensor([[8.0, 0.0], [0.0, 3.0], [100.0, 0.0], [0.5, 0.0], [0.0, 0.0]])
    ddy = torch.tensor([[0.0, 2.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.25], [0.0, 0.0]])
    lod, spread, count = probes(ddx, ddy)
    assert count.tolist() == [4, 2, 16, 1, 1]
    assert lod.tolist() == pytest.approx([1, 1, math.log2(100 / 16), 0, 0])
    assert spread[:, 0].tolist() == pytest.approx([6, 0, 93.75, 0, 0]) and spread[1, 1].item() == pytest.approx(1)


def test_a_long_footprint_averages_along_itself_only():
    # Columns of stripes: a footprint 8 wide averages them away, one 8 tall keeps them.
    image = (torch.arange(64) % 8 < 4).double().expand(1, 1, 64, 64).contiguous()
    levels = mipmap(image)
    point = torch.tensor([[[32.5, 32.5]]]).double()
    long, short = torch.tensor([[[8.0, 0.0]]]).double(), torch.tensor([[[0.0, 1.0]]]).double()
    assert lookup_grad(levels, point, long, short).item() == pytest.approx(0.5, abs=1e-12)
    assert lookup_grad(levels, point, short.flip(-1), long.flip(-1)).item() == 1.0


@pytest.mark.parametrize("operation", ["lookup", "lookup_grad", "sample_patches"])
def test_names_are_never_blended(operation):
    names = torch.randint(0, 50, (1, 2, 20, 30)).float()
    levels = mipmap(names, reduce="nearest")
    points, ddx, ddy = footprints(1, 200, (20, 30))
    if operation == "lookup":
        got = lookup(levels, points, torch.rand(1, 200) * 3, nearest=[0])
    elif operation == "lookup_grad":
        got = lookup_grad(levels, points, ddx, ddy, nearest=[0])
    else:
        got = sample_patches(levels, points, ddx, ddy, patch=3, nearest=[0]).transpose(2, -1)
    assert torch.equal(got[..., 0], got[..., 0].round())
    assert not torch.equal(got[..., 1], got[..., 1].round())


def test_the_full_grid_gives_back_the_image():
    image = torch.rand(2, 3, 32, 48)
    levels = mipmap(image)
    y, x = torch.meshgrid(torch.arange(2) * 16 + 8.0, torch.arange(3) * 16 + 8.0, indexing="ij")
    centre = torch.stack([x, y], -1).reshape(1, 6, 2).expand(2, -1, -1)
    ddx, ddy = torch.tensor([1.0, 0.0]).expand(2, 6, 2), torch.tensor([0.0, 1.0]).expand(2, 6, 2)
    patches = sample_patches(levels, centre, ddx, ddy, patch=16)
    assert patches.shape == (2, 6, 3, 16, 16)
    rebuilt = patches.reshape(2, 2, 3, 3, 16, 16).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 32, 48)
    assert worst(rebuilt, image) < 1e-6


def test_a_constant_image_gives_constant_patches():
    levels = mipmap(torch.full((1, 2, 33, 21), 0.3, dtype=torch.float64))
    patches = sample_patches(levels, *footprints(1, 30, (33, 21), patch=5, dtype=torch.float64), patch=5)
    assert worst(patches, torch.full_like(patches, 0.3)) < 1e-14


@pytest.mark.parametrize(
    ("size", "dtype"),
    [((1, 1), torch.float32), ((7, 5), torch.float64), ((3, 300), torch.bfloat16), ((37, 53), torch.float32)],
)
def test_on_a_cpu_values_are_those_of_the_reference_bit_for_bit(size, dtype):
    levels = mipmap(torch.rand(2, 3, *size).to(dtype))
    for pyramid, kind in ((levels, torch.float32), (channels_last(levels), torch.float64)):
        points, ddx, ddy = footprints(2, 30, size, dtype=kind)
        ddx[:, :10, 1] = ddy[:, :10, 0] = 0  # upright
        ddx[:, 10:15, 0] = ddy[:, 10:15, 1] = 0  # by a quarter turn
        lod = torch.rand(2, 30, dtype=kind) * (len(levels) + 1) - 1
        lod[:, :10] = lod[:, :10].round()
        calls = [partial(lookup, pyramid, points, lod), partial(lookup_grad, pyramid, points, ddx, ddy)]
        calls.append(partial(sample_patches, pyramid, points, ddx, ddy, patch=5))
        for call in calls:
            got, wanted = call(nearest=[1]), call(nearest=[1], backend="reference")
            assert got.dtype == wanted.dtype and got.is_contiguous() and torch.equal(got, wanted)


def test_more_footprints_than_are_read_at_once(monkeypatch):
    monkeypatch.setattr(lookup_reference, "AT_ONCE", 100)
    levels, where = mipmap(torch.rand(1, 3, 20, 30)), footprints(1, 40, (20, 30))
    wanted = sample_patches(levels, *where, patch=4, backend="reference")
    assert torch.equal(sample_patches(levels, *where, patch=4), wanted)


def test_no_footprints_give_no_patches():
    nowhere = torch.empty(1, 0, 2)
    assert sample_patches(mipmap(torch.rand(1, 3, 9, 9)), nowhere, nowhere, nowhere, patch=4).shape == (1, 0, 3, 4, 4)


@pytest.mark.parametrize("operation", ["lookup", "lookup_grad", "sample_patches"])
def test_gradients(operation):
    levels = [level.requires_grad_() for level in mipmap(torch.rand(1, 2, 6, 7, dtype=torch.float64))]
    points, ddx, ddy = (t.requires_grad_() for t in footprints(1, 4, (6, 7), ratio=4, dtype=torch.float64))
    lod = (torch.rand(1, 4, dtype=torch.float64) * 2.5).requires_grad_()
    if operation == "lookup":
        assert torch.autograd.gradcheck(lambda p, d, *ls: lookup(ls, p, d), (points, lod, *levels))
    elif operation == "lookup_grad":
        assert torch.autograd.gradcheck(lambda p, a, b, *ls: lookup_grad(ls, p, a, b), (points, ddx, ddy, *levels))
    else:
        inputs = (points, ddx, ddy, *levels)
        assert torch.autograd.gradcheck(lambda p, a, b, *ls: sample_patches(ls, p, a, b, patch=2), inputs)


def test_an_unused_footprint_of_zeros_is_finite_with_finite_gradients():
    levels = mipmap(torch.rand(1, 1, 8, 8))
    centre, ddx, ddy = (torch.zeros(1, 1, 2, requires_grad=True) for _ in range(3))
    pixels = sample_patches(levels, centre, ddx, ddy, patch=4)
    pixels.sum().backward()
    assert all(torch.isfinite(tensor).all() for tensor in (pixels, centre.grad, ddx.grad, ddy.grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_footprints_in_half_precision_are_read_at_full_precision(dtype):
    levels = mipmap(torch.rand(1, 1, 40, 2000, dtype=torch.float64))
    centre = torch.tensor([[[1536.0, 16.0]]], dtype=dtype)
    ddx, ddy = torch.tensor([[[1.5, 0.0]]], dtype=dtype), torch.tensor([[[0.0, 1.5]]], dtype=dtype)
    got = sample_patches(levels, centre, ddx, ddy, patch=8)
    assert worst(got, sample_patches(levels, centre.double(), ddx.double(), ddy.double(), patch=8)) < 1e-6


def test_a_position_that_is_no_number_reads_some_texel():
    levels = mipmap(torch.rand(1, 1, 8, 8))
    nan = torch.full((1, 3, 2), float("nan"))
    assert torch.isfinite(lookup(levels, nan, torch.full((1, 3), float("nan")))).all()
    assert torch.isfinite(lookup_grad(levels, nan, nan, nan)).all()
    assert torch.isfinite(sample_patches(levels, nan, nan, nan, patch=2, nearest=[0])).all()


def test_bad_input_is_named():
    levels = mipmap(torch.rand(2, 3, 8, 8))
    with pytest.raises(
        ValueError, match=r"lookup: lod must be \(B, N\), got \(3, 5\) \(B=2 from levels, N=5 from points\)"
    ):
        lookup(levels, torch.rand(2, 5, 2), torch.rand(3, 5))
    with pytest.raises(TypeError, match=r"lookup: levels must be a sequence of \(B, C, H, W\) tensors"):
        lookup(levels[0], torch.rand(2, 5, 2), torch.rand(2, 5))
    with pytest.raises(TypeError, match=r"lookup_grad: ddx must be floating point, got torch.int64"):
        lookup_grad(levels, torch.rand(2, 5, 2), torch.ones(2, 5, 2).long(), torch.rand(2, 5, 2))
    with pytest.raises(ValueError, match=r"sample_patches: patch must be at least 1, got 0"):
        sample_patches(levels, *footprints(2, 5, (8, 8)), patch=0)
    with pytest.raises(ValueError, match=r"sample_patches: nearest must be between 0 and 2, got 3"):
        sample_patches(levels, *footprints(2, 5, (8, 8)), patch=2, nearest=[3])
    with pytest.raises(ValueError, match=r"max_anisotropy must be between 1 and 16, got 32"):
        sample_patches(levels, *footprints(2, 5, (8, 8)), patch=2, max_anisotropy=32)
    with pytest.raises(ValueError, match=r"backend must be one of auto, cuda, texture, reference, got 'opengl'"):
        sample_patches(levels, *footprints(2, 5, (8, 8)), patch=2, backend="opengl")
    with pytest.raises(ValueError, match=r"ddx must be on cpu like levels, got meta"):
        lookup_grad(levels, torch.rand(2, 5, 2), torch.rand(2, 5, 2, device="meta"), torch.rand(2, 5, 2))


def pyramid(size, dtype, channels, channels_last=False):
    levels = mipmap(torch.rand(2, channels, *size, device="cuda").to(dtype))
    exact = [level.double() for level in levels]
    if channels_last:
        levels = [level.contiguous(memory_format=torch.channels_last) for level in levels]
    return levels, exact


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [*SIZES, (768, 1024)])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_kernels_equal_the_reference(backend, dtype, size, channels):
    levels, exact = pyramid(size, dtype, channels)
    points, ddx, ddy = footprints(2, 300, size, device="cuda")
    lod = torch.rand(2, 300, device="cuda") * (len(levels) + 1) - 1
    # A float32 position near 1000 is good to 6e-5 texels, so are values between texels.
    tolerance = max(TOLERANCE[backend, dtype], 1e-4)
    poison()
    got = lookup(levels, points, lod, backend=backend)
    assert got.dtype == dtype and worst(got, lookup(exact, points, lod, backend="reference")) <= tolerance
    got = lookup_grad(levels, points, ddx, ddy, backend=backend)
    assert worst(got, lookup_grad(exact, points.double(), ddx.double(), ddy.double(), backend="reference")) <= tolerance
    for patch in (1, 5, 16, 32):
        inputs = footprints(2, 20, size, patch=patch, device="cuda")
        poison()
        got = sample_patches(levels, *inputs, patch=patch, backend=backend)
        wanted = sample_patches(exact, *(t.double() for t in inputs), patch=patch, backend="reference")
        assert worst(got, wanted) <= tolerance


@pytest.mark.gpu
def test_kernels_read_channels_last():
    levels, exact = pyramid((65, 129), torch.float32, 10, channels_last=True)
    points, ddx, ddy = footprints(2, 300, (65, 129), device="cuda")
    wanted = lookup_grad(exact, points.double(), ddx.double(), ddy.double(), backend="reference")
    assert worst(lookup_grad(levels, points, ddx, ddy, backend="cuda"), wanted) < 1e-5
    wanted = sample_patches(exact, points.double(), ddx.double(), ddy.double(), patch=4, backend="reference")
    assert worst(sample_patches(levels, points, ddx, ddy, patch=4, backend="cuda"), wanted) < 1e-5
    assert worst(sample_patches(levels, points, ddx, ddy, patch=4, backend="texture"), wanted) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_never_blend_names(backend):
    image = torch.rand(2, 7, 61, 90, device="cuda")
    image[:, [2, 5]] = torch.randint(0, 50, (2, 2, 61, 90), device="cuda").float()
    reduce = ["nearest" if channel in (2, 5) else "mean" for channel in range(7)]
    levels = mipmap(image, reduce=reduce)
    # Positions in the middle of texels and levels in the middle of rounding: no tie for hardware to break its own way.
    points = torch.randint(0, 60, (2, 500, 2), device="cuda") + 0.5 + torch.rand(2, 500, 2, device="cuda") * 0.2
    lod = torch.randint(0, 2, (2, 500), device="cuda") + torch.rand(2, 500, device="cuda") * 0.4
    got = lookup(levels, points, lod, nearest=[2, 5], backend=backend)
    wanted = lookup(levels, points, lod, nearest=[2, 5], backend="reference")
    assert (got[..., [2, 5]] == wanted[..., [2, 5]]).float().mean() > 0.999
    assert torch.equal(got[..., [2, 5]], got[..., [2, 5]].round())
    assert worst(got[..., [0, 1, 3, 4, 6]], wanted[..., [0, 1, 3, 4, 6]]) < 1e-2


def gradients(function, inputs, upstream):
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*inputs), inputs, upstream)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(7, 5), (37, 53), (256, 320)])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", ["lookup", "lookup_grad", "sample_patches"])
def test_kernel_gradients_equal_the_references(operation, size, backend):
    levels, exact = pyramid(size, torch.float32, 6)
    points, ddx, ddy = footprints(2, 60, size, ratio=6, device="cuda")
    lod = torch.rand(2, 60, device="cuda") * (len(levels) + 1) - 1
    extra = {"lookup": (lod,)}.get(operation, (ddx, ddy))
    call = {
        "lookup": lambda b: lambda p, d, *ls: lookup(ls, p, d, backend=b),
        "lookup_grad": lambda b: lambda p, x, y, *ls: lookup_grad(ls, p, x, y, backend=b),
        "sample_patches": lambda b: lambda p, x, y, *ls: sample_patches(ls, p, x, y, patch=3, backend=b),
    }[operation]
    shape = (2, 60, 6, 3, 3) if operation == "sample_patches" else (2, 60, 6)
    upstream = torch.randn(shape, device="cuda")
    poison()
    got = gradients(call(backend), (points, *extra, *levels), upstream)
    wide = [tensor.double() for tensor in (points, *extra, *exact)]
    wanted = gradients(call("reference"), wide, upstream.double())
    names = [
        "points",
        *(["lod"] if operation == "lookup" else ["ddx", "ddy"]),
        *(f"level {i}" for i in range(len(levels))),
    ]
    for name, mine, truth in zip(names, got, wanted, strict=True):
        scale = truth.norm().item() + 1e-6
        error = (mine.double() - truth).norm().item() / scale
        # A sample within rounding of a texel border falls on either side of a kink: one such flips a position's slope.
        limit = 2e-2 if not name.startswith("level") else 1e-4
        assert error < limit, f"{name}: {error}"


@pytest.mark.parametrize("scalar", [32, 16, 17])
@pytest.mark.parametrize("footprints", [0, 1])
def test_the_variants_of_the_lookup_kernels_compile_without_a_gpu(scalar, footprints, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    from texturevlm.cuda.compiler import compile_source
    from texturevlm.ops.lookup_kernel import MORE_GROUPS, ONE_GROUP

    monkeypatch.setenv("TEXTUREVLM_CACHE", str(tmp_path))
    for tuned, channels in ((ONE_GROUP, 3), (MORE_GROUPS, 4)):
        options = {name: value for name, value in tuned.items() if name != "threads"} | {"CHANNELS": channels}
        options |= {"SCALAR": scalar, "FOOTPRINTS": footprints, "NEAREST": 0, "OF_SAMPLES": 0, "VECTOR": 1}
        assert compile_source("lookup.cu", "sm_90", options)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [3, 6, 40])
def test_padded_channels_last_levels_equal_the_reference(dtype, channels):
    levels, exact = pyramid((65, 130), dtype, channels)
    points, ddx, ddy = footprints(2, 333, (65, 130), device="cuda")
    lod = torch.rand(2, 333, device="cuda") * (len(levels) + 1) - 1
    poison()
    got = lookup(channels_last(levels), points, lod, backend="cuda")
    tolerance = max(TOLERANCE["cuda", dtype], 1e-4)
    assert got.dtype == dtype and worst(got, lookup(exact, points, lod, backend="reference")) <= tolerance
    got = lookup_grad(channels_last(levels), points, ddx, ddy, backend="cuda")
    assert worst(got, lookup_grad(exact, points.double(), ddx.double(), ddy.double(), backend="reference")) <= tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 40])
def test_gradients_of_many_points_on_small_levels_add_up(channels):
    image = torch.rand(1, channels, 64, 64, device="cuda", requires_grad=True)
    exact = image.detach().double().requires_grad_()
    points, lod = torch.rand(1, 20000, 2, device="cuda") * 64, torch.rand(1, 20000, device="cuda") * 6
    upstream = torch.randn(1, 20000, channels, device="cuda")
    (got,) = torch.autograd.grad(lookup(channels_last(mipmap(image)), points, lod), image, upstream)
    wanted = lookup(mipmap(exact, backend="reference"), points.double(), lod.double(), backend="reference")
    (truth,) = torch.autograd.grad(wanted, exact, upstream.double())
    assert (got.double() - truth).norm() <= 1e-4 * truth.norm()
