"""Texture, Allocation and Patches: what they take, derive, refuse, and carry through JSON without loss."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import worst
from texturevlm import Allocation, Patches, Texture
from texturevlm.ops import mipmap
from texturevlm.ops.mip import level_extents

NAN, INF = float("nan"), float("inf")
ISSUE_EXAMPLE = {
    "size": [8, 9],
    "patch": 4,
    "budget": 2,
    "tokens": [{"centre": [1.5, 2.0], "ddx": [1.0, 0.0], "ddy": [0.0, 0.5], "score": 0.25, "source": 0}],
}


def footprints(*rows, size=(40, 50), patch=8, unused=0, dtype=torch.float32) -> Allocation:
    """One image; a row is (centre, ddx, ddy). Unused slots hold NaN, which nobody may read."""
    columns = [torch.tensor([[row[part] for row in rows]], dtype=dtype) for part in range(3)]
    columns = [torch.cat([column, torch.full((1, unused, 2), NAN, dtype=dtype)], 1) for column in columns]
    count = len(rows) + unused
    valid = torch.arange(count)[None] < len(rows)
    score = torch.where(valid, torch.rand(1, count), NAN).to(dtype)
    return Allocation(*columns, score, valid, torch.zeros(1, count, dtype=torch.int64), size, patch)


def turned(degrees: float, scale: float = 1.0) -> tuple[tuple[float, float], tuple[float, float]]:
    cosine, sine = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    return (cosine, sine), (-sine, cosine)


def fields(**changes):
    """The arguments of a good Allocation of two images with three footprints each, with some of them changed."""
    good = {
        "centre": torch.rand(2, 3, 2),
        "ddx": torch.rand(2, 3, 2),
        "ddy": torch.rand(2, 3, 2),
        "score": torch.rand(2, 3),
        "valid": torch.ones(2, 3, dtype=torch.bool),
        "source": torch.zeros(2, 3, dtype=torch.int64),
        "size": (8, 9),
        "patch": 4,
    }
    return good | changes


def changed(**changes) -> str:
    return json.dumps(ISSUE_EXAMPLE | changes)


def changed_token(**changes) -> str:
    return changed(tokens=[ISSUE_EXAMPLE["tokens"][0] | changes])


def without(name: str) -> str:
    return json.dumps({key: value for key, value in ISSUE_EXAMPLE.items() if key != name})


@pytest.mark.parametrize(("dtype", "greatest"), [(np.uint8, 255), (np.uint16, 65535), (np.int16, 32767), (np.bool_, 1)])
def test_whole_numbers_are_scaled_by_the_greatest_of_their_type(dtype, greatest):
    array = np.array([[[0, 1, 1]], [[1, 0, 1]]]).astype(dtype)
    wanted = torch.from_numpy(array.astype(np.float64)).permute(2, 0, 1)[None] / greatest
    for source in (array, torch.from_numpy(array).permute(2, 0, 1)):
        texture = Texture.open(source)
        assert texture.levels[0].dtype == torch.float32 and texture.levels[0].shape == (1, 3, 2, 1)
        assert worst(texture.levels[0], wanted) < 1e-7


def test_the_greatest_value_of_a_type_becomes_one():
    for dtype in (torch.uint8, torch.uint16, torch.int16):
        full = torch.full((1, 2, 2), torch.iinfo(dtype).max).to(dtype)
        assert torch.equal(Texture.open(full).levels[0], torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers_without_an_agreed_range_are_refused(dtype):
    with pytest.raises(ValueError, match=rf"Texture.open: {dtype} has no agreed range"):
        Texture.open(torch.randint(0, 256, (3, 4, 4), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_point_keeps_its_type_and_values(dtype):
    image = torch.linspace(-1, 3, 24).reshape(2, 3, 4).to(dtype)
    texture = Texture.open(image)
    assert texture.levels[0].dtype == dtype
    assert torch.equal(texture.levels[0], image[None])


def test_arrays_have_their_channels_last_and_tensors_first():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert Texture.open(array).levels[0].shape == (1, 4, 2, 3)
    assert Texture.open(array).levels[0][0, 3, 1, 2] == array[1, 2, 3]
    assert Texture.open(torch.from_numpy(array)).levels[0].shape == (1, 2, 3, 4)
    assert Texture.open(array[0]).levels[0].shape == (1, 1, 3, 4)
    assert Texture.open(torch.from_numpy(array[0])).levels[0].shape == (1, 1, 3, 4)
    assert Texture.open(torch.rand(5, 2, 3, 4)).batch == 5
    assert torch.equal(Texture.open(array[::-1, ::-1]).levels[0], Texture.open(array).levels[0].flip(2, 3))


def test_a_path_a_pil_image_an_array_and_a_tensor_of_one_picture_agree(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    wanted = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    sources = (tmp_path / "small.png", str(tmp_path / "small.png"), Image.fromarray(pixels), pixels)
    for source in (*sources, torch.from_numpy(pixels).permute(2, 0, 1)):
        texture = Texture.open(source)
        assert texture.size == (5, 7) and len(texture.levels) == 1
        assert texture.names == ("red", "green", "blue") and texture.reduce == ("mean",) * 3
        assert torch.equal(texture.levels[0], wanted)


@pytest.mark.parametrize("byte_order", ["<u2", ">u2", "<f4", ">f8"])
def test_the_byte_order_of_an_array_does_not_matter(byte_order):
    array = np.array([[0, 258], [65535, 1]]).astype(byte_order)
    native = array.astype(array.dtype.newbyteorder("="))
    assert torch.equal(Texture.open(array).levels[0], Texture.open(native).levels[0])


def test_mipmapped_is_idempotent_and_stops_where_told():
    texture = Texture.open(torch.rand(2, 3, 13, 37))
    full = texture.mipmapped()
    assert [tuple(level.shape[2:]) for level in full.levels] == level_extents(13, 37)
    for level, wanted in zip(full.levels, mipmap(texture.levels[0]), strict=True):
        assert torch.equal(level, wanted)
    assert full.mipmapped() is full
    assert full.mipmapped(2) is full
    assert len(texture.mipmapped(3).levels) == 3
    assert len(texture.mipmapped(3).mipmapped().levels) == len(full.levels)
    assert len(texture.mipmapped(99).levels) == len(full.levels)
    assert texture.mipmapped(1) is texture
    with pytest.raises(ValueError, match=r"Texture\.mipmapped: levels must be at least 1, got 0"):
        texture.mipmapped(0)


def test_names_have_defaults_and_pick_channels():
    assert Texture(torch.rand(1, 3, 2, 2)).names == ("red", "green", "blue")
    assert Texture(torch.rand(1, 1, 2, 2)).names == ("grey",)
    assert Texture(torch.rand(1, 2, 2, 2)).names == ("channel_0", "channel_1")
    image = torch.rand(4, 2, 5, 6)
    texture = Texture(image, names=["edges", "ink"])
    assert texture.names == ("edges", "ink")
    assert torch.equal(texture.channel("ink"), image[:, 1])
    with pytest.raises(ValueError, match=r"Texture\.channel: name must be one of edges, ink, got 'red'"):
        texture.channel("red")
    for names in (("edges",), ("edges", "edges"), ("a", "b", "c")):
        with pytest.raises(ValueError, match=r"Texture: names must be 2 different names"):
            Texture(image, names=names)


def test_each_channel_shrinks_its_own_way():
    image = torch.rand(1, 4, 12, 10)
    modes = ("mean", "max", "nearest", "nearest")
    texture = Texture(image, reduce=modes).mipmapped()
    assert texture.nearest == (2, 3) and texture.reduce == modes
    for level, wanted in zip(texture.levels, mipmap(image, reduce=modes), strict=True):
        assert torch.equal(level, wanted)
    assert Texture(image, reduce="max").reduce == ("max",) * 4
    assert Texture(image).nearest == ()
    with pytest.raises(ValueError, match=r"Texture: reduce must name one reduction per channel \(4\), got 2"):
        Texture(image, reduce=("mean", "max"))
    with pytest.raises(ValueError, match=r"Texture: reduce must be one of mean, max, min, nearest, got 'median'"):
        Texture(image, reduce="median")


def test_a_texture_may_start_at_a_coarser_level_of_its_image():
    levels = mipmap(torch.rand(1, 1, 45, 62))
    texture = Texture((levels[2],), size=(45, 62))
    assert texture.size == (45, 62) and texture.levels[0].shape[2:] == (11, 15)
    for level, wanted in zip(texture.mipmapped().levels, levels[2:], strict=True):
        assert worst(level, wanted) < 1e-6
    assert texture.mipmapped().size == (45, 62)
    with pytest.raises(
        ValueError, match=r"Texture: levels\[0\] must be a level of an image of \(45, 62\), got \(22, 30"
    ):
        Texture((torch.rand(1, 1, 22, 30),), size=(45, 62))
    with pytest.raises(ValueError, match=r"Texture: levels\[0\] must be a level of"):
        Texture((levels[0],), size=(22, 31))


@pytest.mark.parametrize("size", [(0, 5), (-3, 5), (2.5, 5)])
def test_the_size_of_a_texture_is_two_positive_whole_numbers(size):
    with pytest.raises((ValueError, TypeError), match=r"Texture: "):
        Texture(torch.rand(1, 1, 1, 2), size=size)


def test_to_changes_precision_of_every_level_and_nothing_else():
    texture = Texture(torch.rand(1, 2, 9, 9), names=("a", "b"), reduce=("mean", "nearest")).mipmapped()
    assert texture.to("cpu") is texture and texture.to(dtype=torch.float32) is texture
    double = texture.to(dtype=torch.float64)
    assert [level.dtype for level in double.levels] == [torch.float64] * len(texture.levels)
    assert (double.names, double.size, double.reduce) == (texture.names, texture.size, texture.reduce)
    assert all(worst(a, b) == 0 for a, b in zip(double.levels, texture.levels, strict=True))
    assert texture.to("meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"Texture: levels\[0\] must be floating point, got torch.uint8"):
        texture.to(dtype=torch.uint8)


def test_bad_levels_are_named():
    with pytest.raises(TypeError, match=r"Texture: levels must be a sequence of \(B, C, H, W\) tensors"):
        Texture(())
    with pytest.raises(TypeError, match=r"Texture: levels\[0\] must be a tensor, got ndarray"):
        Texture((np.zeros((1, 1, 2, 2)),))
    with pytest.raises(ValueError, match=r"Texture: levels\[0\] must be \(B, C, H, W\) and not empty, got \(3, 4\)"):
        Texture((torch.rand(3, 4),))
    with pytest.raises(ValueError, match=r"Texture: levels\[0\] must be .* not empty, got \(1, 3, 0, 4\)"):
        Texture(torch.rand(1, 3, 0, 4))
    with pytest.raises(TypeError, match=r"Texture: levels\[0\] must be floating point, got torch.int64"):
        Texture((torch.zeros(1, 1, 2, 2, dtype=torch.int64),))
    with pytest.raises(TypeError, match=r"Texture.open: source must be a path, .* got dict"):
        Texture({})
    with pytest.raises(ValueError, match=r"Texture: levels\[1\] must be \(1, 1, 2, 2\), got \(1, 1, 3, 3\)"):
        Texture((torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)))
    with pytest.raises(ValueError, match=r"Texture: levels\[1\] must be torch.float32 on cpu .* got torch.float64"):
        Texture((torch.rand(1, 1, 4, 4), torch.rand(1, 1, 2, 2, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"Texture: levels\[1\] must be torch.float32 on cpu .* on meta"):
        Texture((torch.rand(1, 1, 4, 4), torch.rand(1, 1, 2, 2, device="meta")))


def test_a_texture_is_made_from_whatever_open_takes(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    wanted = Texture.open(pixels).levels[0]
    for source in (pixels, Image.fromarray(pixels), tmp_path / "small.png", str(tmp_path / "small.png"), wanted[0]):
        made = Texture(source)
        assert torch.equal(made.levels[0], wanted) and made.size == (7, 9) and made.names == ("red", "green", "blue")


def test_generate_mipmaps_returns_a_texture_with_its_levels():
    texture = Texture(torch.rand(3, 12, 20)).generate_mipmaps()
    for got, wanted in zip(texture.levels, mipmap(texture.levels[0]), strict=True):
        assert torch.equal(got, wanted)
    assert len(Texture(torch.rand(3, 12, 20)).generate_mipmaps(levels=2).levels) == 2


def test_types_are_frozen():
    allocation = footprints(((4, 4), (1, 0), (0, 1)))
    for made, name in (
        (Texture(torch.rand(1, 1, 2, 2)), "size"),
        (allocation, "patch"),
        (Patches(torch.rand(1, 1, 3, 8, 8), allocation), "pixels"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, None)


def test_on_device_without_a_gpu_says_why():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=r"'texture' cannot run here: the tensor is on cpu, not on a CUDA GPU"):
        Texture(torch.rand(1, 3, 4, 4)).on_device()


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"centre": torch.rand(2, 3, 3)}, ValueError, r"centre must be \(B, K, 2\), got \(2, 3, 3\)"),
        ({"ddx": torch.rand(2, 4, 2)}, ValueError, r"ddx must be \(B, K, 2\), got \(2, 4, 2\) \(B=2 .*K=3 from centre"),
        ({"ddy": torch.rand(1, 3, 2)}, ValueError, r"ddy must be \(B, K, 2\), got \(1, 3, 2\)"),
        ({"score": torch.rand(2, 3, 1)}, ValueError, r"score must be \(B, K\), got \(2, 3, 1\)"),
        ({"valid": torch.ones(2, 2, dtype=torch.bool)}, ValueError, r"valid must be \(B, K\), got \(2, 2\)"),
        ({"source": torch.zeros(3, dtype=torch.int64)}, ValueError, r"source must be \(B, K\), got \(3,\)"),
        ({"centre": [[1.0, 2.0]]}, TypeError, r"centre must be a tensor \(B, K, 2\), got list"),
        ({"ddx": torch.rand(2, 3, 2, device="meta")}, ValueError, r"ddx must be on cpu like centre, got meta"),
        ({"centre": torch.zeros(2, 3, 2, dtype=torch.int64)}, TypeError, r"centre must be floating point"),
        ({"score": torch.zeros(2, 3, dtype=torch.int64)}, TypeError, r"score must be floating point, got torch.int64"),
        ({"valid": torch.ones(2, 3)}, TypeError, r"valid must be torch.bool, got torch.float32"),
        ({"source": torch.zeros(2, 3)}, TypeError, r"source must hold whole numbers, got torch.float32"),
        ({"size": (0, 9)}, ValueError, r"height must be at least 1, got 0"),
        ({"size": (8, -1)}, ValueError, r"width must be at least 1, got -1"),
        ({"size": (8, 9.5)}, TypeError, r"width must be a whole number, got 9.5"),
        ({"patch": 0}, ValueError, r"patch must be at least 1, got 0"),
        ({"patch": 1.5}, TypeError, r"patch must be a whole number, got 1.5"),
    ],
)
def test_a_bad_allocation_is_refused(changes, error, match):
    Allocation(**fields())
    with pytest.raises(error, match="^Allocation: " + match):
        Allocation(**fields(**changes))


def test_batch_and_budget_are_the_shape():
    allocation = Allocation(**fields())
    assert (allocation.batch, allocation.budget) == (2, 3)


def test_level_is_that_of_the_shorter_axis():
    allocation = footprints(
        ((0, 0), (1, 0), (0, 1)),
        ((0, 0), (4, 0), (0, 1)),
        ((0, 0), (4, 0), (0, 8)),
        ((0, 0), *turned(30, scale=2**2.7)),
        ((0, 0), (0.5, 0), (0, 3)),
    )
    assert worst(allocation.level, torch.tensor([[0.0, 0.0, 2.0, 2.7, -1.0]])) < 1e-6


def test_boxes_enclose_and_area_is_exact_when_turned():
    allocation = footprints(
        ((10, 20), (2, 0), (0, 3)),
        ((10, 20), *turned(45, scale=2)),
        ((10, 20), (0, 2), (-3, 0)),
        ((10, 20), (2, 0), (2, 3)),
        patch=8,
    )
    diagonal = 8 * math.sqrt(2)
    wanted = torch.tensor(
        [
            [2, 8, 18, 32],
            [10 - diagonal, 20 - diagonal, 10 + diagonal, 20 + diagonal],
            [-2, 12, 22, 28],
            [-6, 8, 26, 32],
        ]
    )
    assert worst(allocation.boxes[0], wanted) < 1e-5
    assert worst(allocation.area, torch.tensor([[6.0, 4.0, 6.0, 6.0]]) * 64) < 1e-4
    assert allocation.upright.tolist() == [[True, False, False, False]]


def test_scaled_to_another_size_it_keeps_the_share_of_the_image():
    allocation = Allocation(**fields())
    height, width = allocation.size
    larger = allocation.scaled_to((2 * height, 3 * width))
    scale = torch.tensor([3.0, 2.0])
    assert larger.size == (2 * height, 3 * width)
    for name in ("centre", "ddx", "ddy"):
        assert torch.equal(getattr(larger, name), getattr(allocation, name) * scale)
    assert allocation.scaled_to((height, width)) is allocation


def test_of_boxes_gives_the_boxes_back():
    boxes = torch.rand(2, 5, 4) * 20
    boxes[..., 2:] += boxes[..., :2] + 1
    score = torch.rand(2, 5)
    allocation = Allocation.of_boxes(boxes, (40, 50), 7, score)
    assert worst(allocation.boxes, boxes) < 1e-5
    assert torch.equal(allocation.score, score)
    assert allocation.upright.all() and allocation.valid.all() and not allocation.source.any()
    assert (allocation.size, allocation.patch, allocation.budget) == ((40, 50), 7, 5)
    assert Allocation.of_boxes(torch.tensor([[[0, 0, 4, 8]]]), (8, 8), 4).centre.tolist() == [[[2.0, 4.0]]]
    with pytest.raises(ValueError, match=r"Allocation\.of_boxes: boxes must be \(B, K, 4\), got \(5, 4\)"):
        Allocation.of_boxes(boxes[0], (40, 50), 7)
    with pytest.raises(ValueError, match=r"patch must be at least 1, got 0"):
        Allocation.of_boxes(boxes, (40, 50), 0)


def boxes_coverage(*boxes, size=(10, 20)) -> float:
    return Allocation.of_boxes(torch.tensor([boxes], dtype=torch.float32), size, 4).coverage.item()


def test_coverage_counts_the_pixel_centres_of_upright_footprints_once():
    assert boxes_coverage([0, 0, 20, 10]) == 1
    assert boxes_coverage([0, 0, 10, 10]) == 0.5
    assert boxes_coverage([0, 0, 10, 10], [0, 0, 10, 10], [5, 0, 10, 5]) == 0.5
    assert boxes_coverage([0, 0, 10, 10], [5, 0, 15, 10]) == 0.75
    assert boxes_coverage([0, 0, 0.6, 0.6]) == pytest.approx(1 / 200)
    assert boxes_coverage([0, 0, 0.4, 0.4]) == 0
    assert boxes_coverage([-50, -50, 100, 100]) == 1
    assert boxes_coverage([-10, 0, 5, 10]) == 0.25
    for outside in ([-30, 0, -10, 10], [0, -30, 20, -10], [25, 0, 60, 10], [0, 11, 20, 30]):
        assert boxes_coverage(outside) == 0


def test_coverage_of_touching_footprints_has_no_gap_where_edges_round():
    for cut in np.arange(0.5, 200):
        edges = torch.tensor([[[0, 0, cut, 1], [cut, 0, 200.1, 1]]], dtype=torch.float64)
        assert Allocation.of_boxes(edges, (1, 200), 7).coverage.item() == 1


def test_coverage_of_turned_footprints_equals_a_direct_count():
    rows = (((20, 20), *turned(30, 2)), ((30, 25), *turned(-50, 1.5)), ((2, 38), *turned(10, 1)), ((70, 9), *turned(5)))
    allocation = footprints(*rows, size=(40, 50), patch=8, unused=2)
    y, x = np.mgrid[:40, :50] + 0.5
    wanted = np.zeros((40, 50), dtype=bool)
    for centre, ddx, ddy in rows:
        u = ((x - centre[0]) * ddx[0] + (y - centre[1]) * ddx[1]) / np.dot(ddx, ddx)
        v = ((x - centre[0]) * ddy[0] + (y - centre[1]) * ddy[1]) / np.dot(ddy, ddy)
        wanted |= (abs(u) <= 4) & (abs(v) <= 4)
    assert 0.2 < wanted.mean() < 0.8
    assert allocation.coverage.item() == pytest.approx(wanted.mean(), abs=1e-6)


def test_coverage_is_for_each_image_and_counts_used_slots_only():
    boxes = torch.tensor([[[0.0, 0, 20, 10], [0, 0, 1, 1]], [[0, 0, 20, 10], [0, 0, 5, 10]]])
    allocation = Allocation.of_boxes(boxes, (10, 20), 4)
    used = dataclasses.replace(allocation, valid=torch.tensor([[True, False], [False, True]]))
    assert used.coverage.tolist() == [1.0, 0.25]
    nothing = dataclasses.replace(allocation, valid=torch.zeros(2, 2, dtype=torch.bool))
    assert nothing.coverage.tolist() == [0.0, 0.0]


def test_coverage_of_a_page_of_many_pixels_is_exactly_one():
    height, width = 6761, 6813
    whole = torch.tensor([[[0.0, 0.0, width, height]]])
    assert Allocation.of_boxes(whole, (height, width), 16).coverage.item() == 1


@pytest.mark.parametrize("axes", [((0, 0), (0, 1)), ((1, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 0), (0, 0))])
def test_a_footprint_without_area_covers_nothing(axes):
    assert footprints(((20, 20), *axes)).coverage.item() == 0


def test_allocations_move_between_devices():
    moved = Allocation(**fields()).to("meta")
    columns = (moved.centre, moved.ddx, moved.ddy, moved.score, moved.valid, moved.source)
    assert {column.device.type for column in columns} == {"meta"}
    assert (moved.size, moved.patch) == ((8, 9), 4)


def assert_same(got: Allocation, wanted: Allocation) -> None:
    """Equal in every used slot, bit for bit, and in which slots are used."""
    assert (got.size, got.patch, got.budget, got.batch) == (wanted.size, wanted.patch, wanted.budget, wanted.batch)
    assert torch.equal(got.valid, wanted.valid)
    for name in ("centre", "ddx", "ddy", "score", "source"):
        assert torch.equal(getattr(got, name)[got.valid], getattr(wanted, name)[wanted.valid]), name


def test_the_json_of_one_image_is_that_of_the_issue():
    allocation = Allocation.from_json(json.dumps(ISSUE_EXAMPLE))
    written = json.loads(allocation.to_json())
    assert written == ISSUE_EXAMPLE
    assert list(written) == ["size", "patch", "budget", "tokens"]
    assert list(written["tokens"][0]) == ["centre", "ddx", "ddy", "score", "source"]
    assert isinstance(written["tokens"][0]["source"], int)
    assert allocation.valid.tolist() == [[True, False]]
    assert_same(Allocation.from_json(ISSUE_EXAMPLE), allocation)
    assert_same(Allocation.from_json([ISSUE_EXAMPLE]), allocation)


def test_json_round_trips_every_float_exactly():
    awkward = [0.1, 1 / 3, 1e-30, 1e-42, 16777217.0, -7.25, math.pi, 3.4e38]
    rows = [((value, -value), (value, 1), (0.7, value)) for value in awkward]
    for unused in (0, 3):
        allocation = footprints(*rows, unused=unused)
        back = Allocation.from_json(allocation.to_json())
        assert_same(back, allocation)
        assert back.to_json() == allocation.to_json()
        assert len(json.loads(allocation.to_json())["tokens"]) == len(rows)


def test_json_of_a_batch_is_a_list_and_images_may_use_different_numbers_of_tokens():
    valid = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    tensors = {name: torch.randn(3, 3, 2) for name in ("centre", "ddx", "ddy")}
    source = torch.tensor([[0, 1, 2], [5, 0, 0], [0, 0, 0]])
    allocation = Allocation(**fields(**tensors, score=torch.randn(3, 3), valid=valid, source=source))
    written = json.loads(allocation.to_json())
    assert [len(image["tokens"]) for image in written] == [3, 1, 0]
    assert [token["source"] for token in written[0]["tokens"]] == [0, 1, 2]
    assert_same(Allocation.from_json(allocation.to_json()), allocation)


def test_json_never_holds_nan():
    with pytest.raises(ValueError, match="JSON"):
        footprints(((NAN, 1), (1, 0), (0, 1))).to_json()
    assert "NaN" not in footprints(((2, 1), (1, 0), (0, 1)), unused=4).to_json()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "text must be JSON"),
        ("{", "text must be JSON"),
        ("[]", "at least one image"),
        ('"abc"', "each image must have size"),
        ("[5]", "each image must have size"),
        *[(without(name), f"each image must have .*{name}") for name in ISSUE_EXAMPLE],
        (changed(size=[8]), "each image must have size"),
        (changed(size=[8, 9, 3]), "each image must have size"),
        (changed(size=None), "each image must have size"),
        (changed(size=[NAN, 9]), "each image must have size"),
        (changed(size=[0, 9]), "height must be at least 1"),
        (changed(patch=0), "patch must be at least 1"),
        (changed(patch=None), "each image must have size"),
        (changed(tokens=None), "each image must have size"),
        (changed(tokens={}), "each image must have size"),
        (changed(tokens=[5]), r"tokens\[0\] must have centre as a pair of finite numbers, got 5"),
        (changed(tokens=ISSUE_EXAMPLE["tokens"] * 3), "budget is 2, got 3 tokens"),
        (changed(tokens=[ISSUE_EXAMPLE["tokens"][0], {}]), r"tokens\[1\] must have centre as a pair"),
        (changed_token(centre=[1]), r"tokens\[0\] must have centre as a pair of finite numbers, got \[1\]"),
        (changed_token(centre=[1, "a"]), r"tokens\[0\] must have centre as a pair of finite numbers"),
        (changed_token(ddx=[NAN, 0]), r"tokens\[0\] must have ddx as a pair of finite numbers, got \[nan, 0\]"),
        (changed_token(ddy=None), r"tokens\[0\] must have ddy as a pair of finite numbers, got None"),
        (changed_token(ddy=[0, 1e300]), r"tokens\[0\] must have ddy as a pair of finite numbers"),
        (changed_token(score="1"), r"tokens\[0\] must have score as a finite number, got '1'"),
        (changed_token(score=INF), r"tokens\[0\] must have score as a finite number, got inf"),
        (changed_token(source=2**70), r"tokens\[0\] must have source as"),
        (f"[{changed()}, {changed(patch=5)}]", "a batch must share size, patch and budget"),
        (f"[{changed()}, 3]", "each image must have size"),
    ],
)
def test_bad_json_is_refused(text, match):
    with pytest.raises(ValueError, match="^Allocation.*" + match):
        Allocation.from_json(text)


@pytest.mark.parametrize("text", ["5", "null", "true"])
def test_json_that_is_no_image_and_no_list_is_refused(text):
    with pytest.raises(ValueError, match=r"^Allocation\.from_json: "):
        Allocation.from_json(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": [8.5, 9]},
        {"size": "89"},
        {"size": ["8", "9"]},
        {"size": [INF, 9]},
        {"patch": 1.5},
        {"patch": "4"},
        {"patch": INF},
        {"budget": 2.9},
        {"budget": INF},
        {"budget": -1, "tokens": []},
        {"budget": 0, "tokens": []},
        {"budget": 10**18},
        {"budget": 10**30},
    ],
)
def test_json_counts_must_be_sensible_whole_numbers(changes):
    with pytest.raises((ValueError, TypeError), match=r"^Allocation.*(size|height|width|patch|budget)"):
        Allocation.from_json(changed(**changes))


def test_json_source_must_be_a_whole_number():
    with pytest.raises(ValueError, match=r"^Allocation.*source"):
        Allocation.from_json(changed_token(source=0.7))


def test_patches_belong_to_their_allocation():
    allocation = Allocation(**fields())
    patches = Patches(torch.rand(2, 3, 5, 4, 4), allocation)
    assert patches.allocation is allocation
    with pytest.raises(ValueError, match=r"Patches: pixels must be \(B, K, C, P, P\), got \(2, 3, 5, 4\)"):
        Patches(torch.rand(2, 3, 5, 4), allocation)
    with pytest.raises(ValueError, match=r"Patches: pixels must be \(B, K, C, P, P\), got \(2, 3, 5, 4, 6\)"):
        Patches(torch.rand(2, 3, 5, 4, 6), allocation)
    with pytest.raises(ValueError, match=r"Patches: centre must be \(B, K, 2\), got \(2, 3, 2\) .*K=4 from pixels"):
        Patches(torch.rand(2, 4, 5, 4, 4), allocation)
    with pytest.raises(ValueError, match=r"Patches: pixels must be patches of 4 like the allocation, got 8"):
        Patches(torch.rand(2, 3, 5, 8, 8), allocation)
    with pytest.raises(ValueError, match=r"Patches: centre must be on meta like pixels, got cpu"):
        Patches(torch.rand(2, 3, 5, 4, 4, device="meta"), allocation)


def test_patches_hold_floating_point_pixels():
    with pytest.raises(TypeError, match=r"Patches: pixels must be floating point, got torch.uint8"):
        Patches(torch.zeros(2, 3, 5, 4, 4, dtype=torch.uint8), Allocation(**fields()))


def test_a_texture_is_shown_in_one_line():
    assert repr(Texture.open(torch.rand(2, 3, 40, 60)).mipmapped(3)) == (
        "Texture(2 × 40×60, 3 channels (red, green, blue), 3 levels, cpu)"
    )
    assert "40 channels (channel_0, channel_1, channel_2, channel_3 …)" in repr(Texture((torch.rand(1, 40, 8, 8),)))
