"""distance_field: exact against scipy and against every pair of pixels, on each backend, at any extent."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.conftest import captured, poison, worst
from texturevlm.ops.distance import MAX_KERNEL_EXTENT, distance_field

SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (37, 53), (200, 3), (3, 200), (64, 32), (65, 33), (129, 70)]
LARGE = [(1024, 1024), (1080, 1920), (63, 1025), (2100, 40), (5, 5000), (511, 513), (1, 3000)]
MASKS = ["points", "dust", "dense", "lines", "text", "corners", "rim"]


def make_mask(kind: str, height: int, width: int) -> torch.Tensor:
    mask = torch.zeros(height, width, dtype=torch.bool)
    if kind == "points":
        mask.view(-1)[torch.randint(height * width, (3,))] = True
    if kind in ("dust", "dense"):
        mask |= torch.rand(height, width) < (0.005 if kind == "dust" else 0.3)
    if kind == "lines":
        along = torch.linspace(0, 1, 4 * (height + width))[:, None]
        for start, end in torch.rand(3, 2, 2):
            y, x = ((start + (end - start) * along) * torch.tensor([height, width])).long().unbind(1)
            mask[y.clamp(max=height - 1), x.clamp(max=width - 1)] = True
    if kind == "text":  # lines of small strokes with margins around them
        mask |= torch.rand(height, width) < 0.4
        mask &= (torch.arange(height) % 12 < 5)[:, None] & (torch.arange(width) % 7 < 5)
        mask[: height // 4] = False
        mask[:, : width // 3] = False
    if kind == "corners":
        mask[0, 0] = mask[-1, -1] = True
    if kind == "rim":  # all of the inside is equally far from something
        mask[0] = mask[-1] = True
    return mask


def to_scipy(mask: torch.Tensor) -> torch.Tensor:
    ndimage = pytest.importorskip("scipy.ndimage")
    if not mask.any():
        return torch.full(mask.shape, math.hypot(*mask.shape), dtype=torch.float64)
    return torch.from_numpy(np.asarray(ndimage.distance_transform_edt(~mask.numpy())))


def by_all_pairs(mask: torch.Tensor) -> torch.Tensor:
    """The distance to every set pixel, and the least of them. Written apart from the library."""
    pixels = torch.cartesian_prod(*(torch.arange(extent, dtype=torch.float64) for extent in mask.shape))
    sites = mask.nonzero().double()
    if len(sites) == 0:
        return torch.full(mask.shape, math.hypot(*mask.shape), dtype=torch.float64)
    return (pixels[:, None] - sites).square().sum(-1).amin(1).sqrt().view(mask.shape)


@pytest.mark.parametrize("size", [*SIZES, (300, 500), (63, 1025), (4, 5000)])
def test_reference_equals_scipy(size):
    masks = torch.stack([make_mask(kind, *size) for kind in MASKS])
    field = distance_field(masks)
    assert field.shape == masks.shape and field.dtype == torch.float32
    for got, mask in zip(field, masks):
        assert worst(got, to_scipy(mask)) < 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_reference_equals_all_pairs(size):
    mask = make_mask("dust", *size) | make_mask("points", *size)
    assert worst(distance_field(mask[None])[0], by_all_pairs(mask)) < 1e-4


def test_an_image_without_set_pixels_is_its_diagonal_away():
    masks = torch.zeros(3, 30, 40, dtype=torch.bool)
    masks[1, 5, 5] = True
    field = distance_field(masks)
    assert worst(field[0], torch.full((30, 40), 50.0)) == 0 and worst(field[2], torch.full((30, 40), 50.0)) == 0
    assert field[1].max() < 50 and field[1, 5, 5] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.float32, torch.float16])
def test_any_pixel_that_is_not_zero_is_set(dtype):
    mask = make_mask("dust", 40, 60)[None]
    assert torch.equal(distance_field(mask.to(dtype) * 3), distance_field(mask))
    assert torch.equal(distance_field(-mask.half()), distance_field(mask))


def test_an_image_does_not_depend_on_its_batch():
    masks = torch.stack([make_mask(kind, 90, 110) for kind in MASKS])
    assert torch.equal(distance_field(masks), torch.cat([distance_field(mask[None]) for mask in masks]))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"distance_field: mask must be \(B, H, W\), got \(3, 4\)"):
        distance_field(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"distance_field: mask must not be empty, got \(1, 0, 4\)"):
        distance_field(torch.zeros(1, 0, 4))
    with pytest.raises(
        ValueError, match=r"distance_field: backend must be one of auto, cuda, reference, got 'texture'"
    ):
        distance_field(torch.zeros(1, 3, 4), backend="texture")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"distance_field: backend 'cuda' cannot run here: the tensor is on cpu"):
            distance_field(torch.zeros(1, 3, 4), backend="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES + LARGE)
def test_kernel_equals_reference(size):
    masks = torch.stack([*(make_mask(kind, *size) for kind in MASKS), torch.zeros(size, dtype=torch.bool)])
    poison()
    got = distance_field(masks.cuda(), backend="cuda")
    assert got.shape == masks.shape and got.dtype == torch.float32
    assert worst(got, distance_field(masks)) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_kernel_equals_all_pairs(size):
    mask = make_mask("dust", *size) | make_mask("points", *size)
    poison()
    assert worst(distance_field(mask[None].cuda(), backend="cuda")[0], by_all_pairs(mask)) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1024, 1024), (37, 53), (700, 1300)])
def test_kernel_equals_scipy(size):
    for kind in MASKS:
        mask = make_mask(kind, *size)
        assert worst(distance_field(mask[None].cuda(), backend="cuda")[0], to_scipy(mask)) < 1e-3


@pytest.mark.gpu
def test_kernel_takes_other_dtypes_and_views():
    mask = make_mask("dust", 70, 90).cuda()
    wanted = distance_field(mask[None], backend="reference")[0]
    for dtype in (torch.uint8, torch.int8, torch.int64, torch.float32, torch.bfloat16):
        assert worst(distance_field((mask.to(dtype) * 3)[None], backend="cuda")[0], wanted) < 1e-4
    assert worst(distance_field(mask.T[None], backend="cuda")[0], wanted.T) < 1e-4
    assert worst(distance_field(mask.float().T[None], backend="cuda")[0], wanted.T) < 1e-4
    assert worst(distance_field(mask[None, 1:, 3:], backend="cuda"), distance_field(mask[None, 1:, 3:].cpu())) < 1e-4


@pytest.mark.gpu
def test_kernel_says_what_it_cannot_take():
    mask = torch.zeros(1, 1, MAX_KERNEL_EXTENT, dtype=torch.bool, device="cuda")
    mask[0, 0, 7] = True
    with pytest.raises(
        ValueError, match=rf"the kernel takes extents below {MAX_KERNEL_EXTENT}, not {MAX_KERNEL_EXTENT}"
    ):
        distance_field(mask, backend="cuda")
    assert distance_field(mask)[0, 0, -1] == MAX_KERNEL_EXTENT - 8
    poison()
    got = distance_field(mask[..., 1:], backend="cuda")
    assert worst(got, distance_field(mask[..., 1:], backend="reference")) < 1e-2
    assert worst(distance_field(mask[..., 1:].mT, backend="cuda"), got.mT) == 0


@pytest.mark.gpu
def test_kernel_is_captured_and_replayed():
    mask = make_mask("text", 300, 400)[None].cuda()
    graph, replayed = captured(partial(distance_field, mask, backend="cuda"))
    for kind in MASKS:
        mask.copy_(make_mask(kind, 300, 400)[None])
        graph.replay()
        assert worst(replayed, distance_field(mask.cpu())) < 1e-3
        assert torch.equal(replayed, distance_field(mask, backend="cuda"))
