"""mipmap and update_region: exact areas, kept means, every backend against the float64 reference."""

import itertools

import pytest
import torch

from tests.conftest import TOLERANCE, poison, worst
from texturevlm.ops import mipmap, update_region
from texturevlm.ops.mip import level_extents

SIZES = [
    (1, 1),
    (1, 2),
    (2, 2),
    (3, 3),
    (1, 9),
    (9, 1),
    (5, 8),
    (16, 16),
    (37, 53),
    (64, 64),
    (65, 129),
    (100, 4),
    (3, 700),
]
LARGE = [(1024, 1024), (1080, 1920), (425, 550), (127, 127), (511, 513), (64, 4096), (1, 3000), (192, 320), (2048, 36)]
MIXED = ("mean", "max", "min", "nearest", "mean")
KERNEL_DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def area_matrix(fine: int, coarse: int) -> torch.Tensor:
    """Row i: the share of each fine texel in the interval [i, i+1) · fine / coarse. Written apart from the library."""
    edges = torch.arange(coarse + 1, dtype=torch.float64) * fine / coarse
    texel = torch.arange(fine, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], texel + 1) - torch.maximum(edges[:-1, None], texel)
    return overlap.clamp(min=0) * coarse / fine


@pytest.mark.parametrize("size", SIZES)
def test_levels_average_exact_areas(size):
    image = torch.rand(2, 3, *size, dtype=torch.float64)
    levels = mipmap(image)
    assert levels[0] is image
    assert [tuple(level.shape[2:]) for level in levels] == level_extents(*size)
    assert levels[-1].shape[2:] == (1, 1)
    for fine, coarse in itertools.pairwise(levels):
        rows = area_matrix(fine.shape[2], coarse.shape[2])
        columns = area_matrix(fine.shape[3], coarse.shape[3])
        assert worst(coarse, rows @ fine @ columns.T) < 1e-14


@pytest.mark.parametrize("size", SIZES)
def test_means_are_kept_and_constants_stay(size):
    image = torch.rand(1, 2, *size, dtype=torch.float64)
    for level in mipmap(image):
        assert worst(level.mean((2, 3)), image.mean((2, 3))) < 1e-14
    for level in mipmap(torch.full((1, 1, *size), 0.7, dtype=torch.float64)):
        assert worst(level, torch.full_like(level, 0.7)) < 1e-15


def test_max_and_min_bound_all_below_and_nearest_takes_a_texel_of_its_area():
    image = torch.rand(1, 3, 37, 53, dtype=torch.float64)
    highest, lowest, names = (image[:, channel : channel + 1] for channel in range(3))
    for level in mipmap(highest, reduce="max")[1:]:
        rows, columns = level.shape[2:]
        for i in range(rows):
            y0, y1 = i * 37 // rows, -(-(i + 1) * 37 // rows)
            for j in range(columns):
                x0, x1 = j * 53 // columns, -(-(j + 1) * 53 // columns)
                assert level[0, 0, i, j] >= highest[0, 0, y0:y1, x0:x1].max()
    assert mipmap(highest, reduce="max")[-1].item() == highest.max()
    assert mipmap(lowest, reduce="min")[-1].item() == lowest.min()
    for level in mipmap(names, reduce="nearest"):
        rows, columns = level.shape[2:]
        y = ((torch.arange(rows) + 0.5) * 37 / rows).floor().long()
        x = ((torch.arange(columns) + 0.5) * 53 / columns).floor().long()
        assert torch.equal(level[0, 0], names[0, 0][y[:, None], x])


def test_reductions_are_chosen_per_channel():
    image = torch.rand(2, 5, 21, 34, dtype=torch.float64)
    mixed = mipmap(image, reduce=MIXED)
    for channel, mode in enumerate(MIXED):
        alone = mipmap(image[:, channel : channel + 1], reduce=mode)
        for level, wanted in zip(mixed, alone):
            assert torch.equal(level[:, channel : channel + 1], wanted)


@pytest.mark.parametrize("reduce", ["mean", "max", "min", "nearest"])
def test_gradients(reduce):
    image = torch.rand(1, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(mipmap(x, reduce=reduce)), image)


def random_boxes(batch: int, count: int, height: int, width: int) -> torch.Tensor:
    corner = torch.rand(batch, count, 2) * torch.tensor([width, height]) - 3
    side = torch.rand(batch, count, 2) * torch.tensor([width, height]) / 3 + 1
    boxes = torch.cat([corner, corner + side], -1).round().int()
    boxes[:, -1] = 0  # padding
    return boxes


def change_inside(image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    changed = image.clone()
    for i, per_image in enumerate(boxes.tolist()):
        for x0, y0, x1, y1 in per_image:
            part = changed[i, :, max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)]
            part.copy_(torch.rand_like(part))
    return changed


def check_update(size, dtype, device, backend, reduce, levels):
    image = torch.rand(2, 5, *size, device=device).to(dtype)
    boxes = random_boxes(2, 4, *size).to(device)
    pyramid = mipmap(image.clone(), levels=levels, reduce=reduce, backend=backend)
    changed = change_inside(image, boxes)
    pyramid[0].copy_(changed)
    update_region(pyramid, boxes, reduce=reduce, backend=backend)
    for level, wanted in zip(pyramid, mipmap(changed, levels=levels, reduce=reduce, backend=backend)):
        assert torch.equal(level, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_update_region_equals_a_rebuild_bit_for_bit(size, dtype):
    check_update(size, dtype, "cpu", "reference", MIXED, None)


def test_update_region_touches_nothing_else():
    pyramid = mipmap(torch.rand(1, 1, 64, 64))
    pyramid[1][0, 0, 0, 0] = 9.0  # would be repaired by a full rebuild
    update_region(pyramid, torch.tensor([[[40, 40, 42, 42]]]))
    assert pyramid[1][0, 0, 0, 0] == 9.0


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"mipmap: image must be \(B, C, H, W\), got \(3, 4\)"):
        mipmap(torch.rand(3, 4))
    with pytest.raises(TypeError, match=r"mipmap: image must be floating point, got torch.uint8"):
        mipmap(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"mipmap: image must not be empty"):
        mipmap(torch.rand(1, 3, 0, 4))
    with pytest.raises(ValueError, match=r"mipmap: reduce must be one of mean, max, min, nearest, got 'median'"):
        mipmap(torch.rand(1, 1, 4, 4), reduce="median")
    with pytest.raises(ValueError, match=r"mipmap: reduce must name one reduction per channel \(3\), got 2"):
        mipmap(torch.rand(1, 3, 4, 4), reduce=("mean", "max"))
    with pytest.raises(ValueError, match=r"mipmap: levels must be at least 1, got 0"):
        mipmap(torch.rand(1, 3, 4, 4), levels=0)
    with pytest.raises(TypeError, match=r"update_region: boxes must hold whole numbers, got torch.float32"):
        update_region(mipmap(torch.rand(1, 1, 4, 4)), torch.rand(1, 2, 4))
    with pytest.raises(ValueError, match=r"update_region: levels\[1\] must be \(1, 1, 2, 2\), got \(1, 1, 3, 3\)"):
        update_region([torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)], torch.zeros(1, 1, 4, dtype=torch.int))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"mipmap: backend 'cuda' cannot run here: the tensor is on cpu"):
            mipmap(torch.rand(1, 3, 4, 4), backend="cuda")


def test_a_box_may_say_everything_with_any_number():
    image = torch.rand(1, 2, 40, 50)
    pyramid = mipmap(torch.zeros_like(image))
    pyramid[0].copy_(image)
    update_region(pyramid, torch.tensor([[[-(2**40), -(2**40), 2**40, 2**40]]]))
    for level, wanted in zip(pyramid, mipmap(image), strict=True):
        assert torch.equal(level, wanted)


def test_a_pyramid_ends_at_one_texel():
    levels = mipmap(torch.rand(1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"update_region: levels must end at 1×1, got 1 more after it"):
        update_region([*levels, levels[-1]], torch.zeros(1, 1, 4, dtype=torch.int))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("size", SIZES + LARGE)
@pytest.mark.parametrize("levels", [2, 3, 5, None])
def test_kernel_equals_reference(size, dtype, levels):
    image = torch.rand(2, 5, *size, device="cuda").to(dtype)
    for reduce in ("mean", MIXED):
        poison()
        got = mipmap(image, levels=levels, reduce=reduce, backend="cuda")
        wanted = mipmap(image.double(), levels=levels, reduce=reduce, backend="reference")
        for level, exact in zip(got, wanted, strict=True):
            assert level.shape == exact.shape and level.dtype == dtype
            assert worst(level, exact) <= TOLERANCE["cuda", dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES + LARGE)
@pytest.mark.parametrize("levels", [5, None])
def test_kernel_update_region_equals_a_rebuild_bit_for_bit(size, dtype, levels):
    check_update(size, dtype, "cuda", "cuda", MIXED, levels)
    check_update(size, dtype, "cuda", "cuda", "mean", levels)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES, (1024, 1024), (425, 550)])
@pytest.mark.parametrize("reduce", ["mean", MIXED])
def test_kernel_gradients_equal_the_references(size, reduce):
    image = torch.rand(1, 5, *size, device="cuda", requires_grad=True)
    exact = image.detach().double().requires_grad_()
    got, wanted = mipmap(image, reduce=reduce, backend="cuda"), mipmap(exact, reduce=reduce, backend="reference")
    upstream = [torch.randn_like(level) for level in got]
    poison()
    (gradient,) = torch.autograd.grad(got, image, upstream)
    (truth,) = torch.autograd.grad(wanted, exact, [u.double() for u in upstream])
    assert worst(gradient, truth) <= 1e-5


@pytest.mark.gpu
def test_kernel_takes_a_view_and_only_some_levels_need_gradients():
    image = torch.rand(3, 40, 50, device="cuda").permute(0, 2, 1)[None].requires_grad_()
    levels = mipmap(image, backend="cuda")
    assert worst(levels[2], mipmap(image.detach().double(), backend="reference")[2]) < 2e-6
    levels[3].sum().backward()
    assert image.grad is not None and abs(image.grad.sum().item() - levels[3].numel()) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("size", "count"), [((4096, 4096), 40), ((4096, 4096), 300), ((1080, 1920), 33), ((30, 20000), 9)]
)
def test_kernel_update_region_with_many_boxes_and_many_tiles(size, count):
    image = torch.rand(1, 1, *size, device="cuda")
    corner = (torch.rand(1, count, 2) * torch.tensor([size[1], size[0]])).int()
    boxes = torch.cat([corner, corner + torch.randint(0, 60, (1, count, 2))], -1)
    pyramid = mipmap(image.clone())
    changed = change_inside(image, boxes)
    pyramid[0].copy_(changed)
    update_region(pyramid, boxes.to("cuda"))
    for level, wanted in zip(pyramid, mipmap(changed), strict=True):
        assert torch.equal(level, wanted)


@pytest.mark.gpu
def test_kernel_update_region_touches_nothing_else():
    pyramid = mipmap(torch.rand(1, 1, 1080, 1920, device="cuda"))
    pyramid[1][0, 0, 0, 0] = 9.0
    update_region(pyramid, torch.tensor([[[1000, 800, 1010, 810]]], device="cuda"))
    assert pyramid[1][0, 0, 0, 0].item() == 9.0


@pytest.mark.gpu
def test_kernel_takes_memory_that_begins_anywhere():
    for offset in (1, 2, 3):
        image = torch.rand(64 * 96 + offset, device="cuda")[offset:].view(1, 1, 64, 96)
        for level, exact in zip(
            mipmap(image, backend="cuda"), mipmap(image.double(), backend="reference"), strict=True
        ):
            assert worst(level, exact) < 2e-6


@pytest.mark.gpu
def test_kernels_refuse_a_second_derivative():
    image = torch.rand(1, 1, 16, 16, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad((mipmap(image)[2] ** 2).sum(), image, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
