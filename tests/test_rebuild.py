"""rebuild and resized: the picture that the tokens deliver, against independent arithmetic and Pillow."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import worst
from texturevlm import Allocation, Texture, foveate, rebuild, rebuilding
from texturevlm.ops import mipmap
from texturevlm.rebuilding import median_grey, resized

PHOTO = Path(__file__).parents[1] / "examples" / "photo.jpg"
TWO_INKS = (1.0, 0.0)  # whose grey, 0.5, is neither of them, so that gaps show


def boxes(*rows, size, patch) -> Allocation:
    return Allocation.of_boxes(torch.tensor([rows], dtype=torch.float64), size, patch)


def footprint(centre, ddx, ddy, *, size, patch) -> Allocation:
    upright = boxes([0, 0, 1, 1], size=size, patch=patch)
    axes = {name: torch.tensor([[value]]).float() for name, value in (("centre", centre), ("ddx", ddx), ("ddy", ddy))}
    return dataclasses.replace(upright, **axes)


def grid(size: tuple[int, int], patch: int, scale: int = 1) -> Allocation:
    """Footprints in rows and columns over the whole image, the last ones reaching beyond its edge."""
    side = patch * scale
    corners = [(x, y) for y in range(0, size[0], side) for x in range(0, size[1], side)]
    return boxes(*[[x, y, x + side, y + side] for x, y in corners], size=size, patch=patch)


def two_inks(size: tuple[int, int]) -> Texture:
    return Texture.open(torch.tensor(TWO_INKS)[None, :, None, None].expand(1, 2, *size))


def photo(size: tuple[int, int] = (64, 80)) -> torch.Tensor:
    with Image.open(PHOTO) as image:
        pixels = np.asarray(image.convert("RGB").resize((256, 256)), dtype=np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)[None, :, 80 : 80 + size[0], 80 : 80 + size[1]]


def integral_mean(image: np.ndarray, x0: float, y0: float, x1: float, y1: float) -> float:
    """The mean over a fractional box inside the image, from its integral: bilinear in the summed-area table."""
    table = np.pad(image.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    rows, columns = np.arange(image.shape[0] + 1), np.arange(image.shape[1] + 1)

    def to(x: float, y: float) -> float:
        return float(np.interp(y, rows, [np.interp(x, columns, row) for row in table]))

    return (to(x1, y1) - to(x0, y1) - to(x1, y0) + to(x0, y0)) / ((x1 - x0) * (y1 - y0))


@pytest.mark.parametrize("size", [(1, 1), (16, 24), (17, 23), (5, 90), (61, 3)])
def test_the_full_grid_gives_back_the_image(size):
    image = torch.rand(2, 3, *size)
    allocation = grid(size, 8)
    both = dataclasses.replace(
        allocation,
        **{
            name: getattr(allocation, name).expand(2, *getattr(allocation, name).shape[1:])
            for name in ("centre", "ddx", "ddy", "score", "valid", "source")
        },
    )
    assert worst(rebuild(Texture.open(image), both), image) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_type_of_the_texture_is_kept(dtype):
    image = torch.rand(1, 3, 16, 16).to(dtype)
    rebuilt = rebuild(Texture.open(image), grid((16, 16), 8))
    assert rebuilt.dtype == dtype and worst(rebuilt, image) < (2e-3 if dtype == torch.float16 else 1e-5)


def test_gaps_are_the_median_grey():
    image = torch.zeros(1, 3, 20, 30)
    image[..., :18] = torch.tensor([0.1, 0.2, 0.6])[:, None, None]
    image[..., 18:] = 1.0
    rebuilt = rebuild(Texture.open(image), boxes([20, 4, 28, 12], size=(20, 30), patch=8))
    painted = torch.zeros(20, 30, dtype=torch.bool)
    painted[4:12, 20:28] = True
    assert worst(rebuilt[..., painted], image[..., painted]) < 1e-6
    assert worst(rebuilt[..., ~painted], torch.full((1, 3, 600 - 64), 0.3)) < 1e-6


def test_each_image_has_its_own_grey_and_its_own_footprints():
    images = torch.rand(2, 3, 20, 30) * torch.tensor([0.2, 1.0])[:, None, None, None]
    rows = torch.tensor([[[0.0, 0, 8, 8], [10, 10, 26, 18]], [[3, 3, 20, 20], [28, 0, 30, 2]]])
    together = Allocation.of_boxes(rows, (20, 30), 4)
    rebuilt = rebuild(Texture.open(images), together)
    assert abs(rebuilt[0, 0, 19, 0] - rebuilt[1, 0, 19, 29]) > 0.2
    for index in range(2):
        alone = Allocation.of_boxes(rows[index : index + 1], (20, 30), 4)
        assert worst(rebuilt[index], rebuild(Texture.open(images[index]), alone)[0]) < 1e-6


@pytest.mark.parametrize("small_first", [False, True])
def test_smaller_footprints_lie_over_larger_ones(small_first):
    image = torch.rand(1, 1, 32, 32)
    large, small = [0, 0, 32, 32], [9, 5, 17, 13]
    rows = (small, large) if small_first else (large, small)
    rebuilt = rebuild(Texture.open(image), boxes(*rows, size=(32, 32), patch=8))
    alone = rebuild(Texture.open(image), boxes(large, size=(32, 32), patch=8))
    over = torch.zeros(32, 32, dtype=torch.bool)
    over[5:13, 9:17] = True
    assert worst(rebuilt[..., over], image[..., over]) < 1e-6
    assert worst(rebuilt[..., ~over], alone[..., ~over]) < 1e-6
    assert worst(alone[..., over], image[..., over]) > 0.1


def test_unused_slots_are_not_painted():
    image = torch.rand(1, 1, 16, 16)
    allocation = boxes([0, 0, 8, 8], [8, 8, 16, 16], [0, 8, 8, 16], size=(16, 16), patch=8)
    poisoned = allocation.centre.clone()
    poisoned[:, 2] = float("nan")
    valid = torch.tensor([[True, False, False]])
    used = dataclasses.replace(allocation, centre=poisoned, ddx=poisoned * 0 + allocation.ddx, valid=valid)
    rebuilt = rebuild(Texture.open(image), used)
    assert torch.equal(rebuilt, rebuild(Texture.open(image), boxes([0, 0, 8, 8], size=(16, 16), patch=8)))


def test_a_token_carries_the_means_of_its_cells():
    """At pixels whose centre is that of a cell, nothing is interpolated: there the mean itself must stand."""
    image = torch.rand(1, 1, 30, 40, dtype=torch.float64)
    x0, y0, step_x, step_y, patch = 3.25, 2.75, 2.5, 1.5, 8
    box = [x0, y0, x0 + patch * step_x, y0 + patch * step_y]
    rebuilt = rebuild(Texture.open(image), boxes(box, size=(30, 40), patch=patch))[0, 0]
    checked = 0
    for row in range(patch):
        for column in range(patch):
            x, y = x0 + (column + 0.5) * step_x, y0 + (row + 0.5) * step_y
            if x % 1 == 0.5 and y % 1 == 0.5:
                cell = (x - step_x / 2, y - step_y / 2, x + step_x / 2, y + step_y / 2)
                assert rebuilt[int(y), int(x)].item() == pytest.approx(
                    integral_mean(image[0, 0].numpy(), *cell), abs=1e-6
                )
                checked += 1
    assert checked == 16


def keys(distance: float) -> float:
    distance = abs(distance)
    if distance <= 1:
        return 1.5 * distance**3 - 2.5 * distance**2 + 1
    return -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2 if distance < 2 else 0.0


def test_between_cells_a_token_is_bicubic():
    image = torch.rand(1, 1, 24, 24, dtype=torch.float64)
    x0, y0, step, patch = 1.3, 2.6, 2.2, 8
    means = np.array(
        [
            [integral_mean(image[0, 0].numpy(), x, y, x + step, y + step) for x in x0 + step * np.arange(patch)]
            for y in y0 + step * np.arange(patch)
        ]
    )
    side = patch * step
    rebuilt = rebuild(Texture.open(image), boxes([x0, y0, x0 + side, y0 + side], size=(24, 24), patch=patch))[0, 0]
    for row in range(3, 20):
        for column in range(2, 18):
            u, v = (column + 0.5 - x0) / step - 0.5, (row + 0.5 - y0) / step - 0.5
            wanted = sum(
                keys(u - i) * keys(v - j) * means[np.clip(j, 0, patch - 1), np.clip(i, 0, patch - 1)]
                for i in range(math.floor(u) - 1, math.floor(u) + 3)
                for j in range(math.floor(v) - 1, math.floor(v) + 3)
            )
            assert rebuilt[row, column].item() == pytest.approx(wanted, abs=1e-5)


def test_a_footprint_may_reach_beyond_the_image():
    """Cells of 3×3 pixels from (-4, -4): the second row and column have centres at 0.5 and lose a third outside."""
    image = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    rebuilt = rebuild(Texture.open(image), boxes([-4, -4, 20, 20], size=(16, 16), patch=8))[0, 0]
    assert rebuilt[0, 0].item() == pytest.approx(image[0, 0, :2, :2].mean().item(), abs=1e-6)
    assert rebuilt[3, 0].item() == pytest.approx(image[0, 0, 2:5, :2].mean().item(), abs=1e-6)
    assert rebuilt[6, 9].item() == pytest.approx(image[0, 0, 5:8, 8:11].mean().item(), abs=1e-6)
    assert rebuilt[15, 15].item() == pytest.approx(image[0, 0, 14:, 14:].mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    "box", [[-9, -9, 7, 7], [12, -3, 40, 25], [-50, 3, 80, 4.5], [5.2, 10.1, 5.9, 10.8], [-30, -30, 60, 60]]
)
def test_a_constant_image_stays_constant_wherever_a_footprint_lies(box):
    size = (20, 30)
    allocation = boxes(box, size=size, patch=8)
    rebuilt = rebuild(two_inks(size), allocation)
    painted = (rebuilt[0, 0] - 1).abs() < 1e-5
    assert torch.equal(painted, rebuilt[0, 1].abs() < 1e-5)
    assert worst(rebuilt[0, :, ~painted], torch.tensor(0.5)) == 0
    assert painted.float().mean().item() == pytest.approx(allocation.coverage.item())
    assert painted.any()


@pytest.mark.parametrize(
    "box", [[-40, 5, -10, 20], [5, -30, 20, -5], [-40, -40, -8, -8], [35, 5, 50, 20], [5, 25, 20, 40]]
)
def test_a_footprint_outside_the_image_paints_nothing(box):
    rebuilt = rebuild(two_inks((20, 30)), boxes(box, size=(20, 30), patch=8))
    assert torch.equal(rebuilt, torch.full_like(rebuilt, 0.5))


@pytest.mark.parametrize("centre", [(-20.0, 10.0), (10.0, -20.0), (60.0, 10.0)])
def test_a_turned_footprint_outside_the_image_paints_nothing(centre):
    allocation = footprint(centre, (0, 1), (-1, 0), size=(20, 30), patch=8)
    rebuilt = rebuild(two_inks((20, 30)), allocation)
    assert torch.equal(rebuilt, torch.full_like(rebuilt, 0.5))


@pytest.mark.parametrize("axes", [((0, 0), (0, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 0))])
def test_a_footprint_without_area_paints_nothing(axes):
    rebuilt = rebuild(two_inks((20, 30)), footprint((15, 10), *axes, size=(20, 30), patch=8))
    assert torch.equal(rebuilt, torch.full_like(rebuilt, 0.5))


@pytest.mark.parametrize(
    ("size", "budget", "patch"), [((512, 512), 100, 8), ((995, 1139), 256, 14), ((559, 925), 8, 14), ((41, 1001), 4, 3)]
)
def test_no_grey_shows_between_the_cells_of_a_foveated_view(size, budget, patch):
    allocation = foveate(size, fixation=(size[1] / 2, size[0] / 2), budget=budget, patch=patch)
    rebuilt = rebuild(two_inks(size), allocation)
    assert worst(rebuilt, torch.tensor(TWO_INKS)[:, None, None]) < 1e-5


@pytest.mark.parametrize(
    ("ddx", "ddy"), [((0, 1), (-1, 0)), ((-1, 0), (0, -1)), ((0, -1), (1, 0)), ((-1, 0), (0, 1)), ((0, 1), (1, 0))]
)
@pytest.mark.parametrize(("scale", "tolerance"), [(1, 1e-5), (2, 0.05), (4, 0.08)])
def test_turning_or_mirroring_a_footprint_changes_little(ddx, ddy, scale, tolerance):
    """The same square of the image, carried with its rows and columns exchanged or reversed."""
    image, size = photo(), (64, 80)
    upright = footprint((40, 32), (scale, 0), (0, scale), size=size, patch=8)
    axes = [tuple(scale * value for value in axis) for axis in (ddx, ddy)]
    wanted = rebuild(Texture.open(image), upright)
    got = rebuild(Texture.open(image), footprint((40, 32), *axes, size=size, patch=8))
    assert worst(got, wanted) < tolerance
    assert (got - wanted).abs().mean() < 0.1 * (wanted - wanted[0, 0, 0, 0]).abs().mean()


def test_a_turned_footprint_paints_its_own_pixels_only():
    size = (40, 50)
    cosine, sine = 1.5 * math.cos(0.5), 1.5 * math.sin(0.5)
    allocation = footprint((25, 20), (cosine, sine), (-sine, cosine), size=size, patch=12)
    rebuilt = rebuild(two_inks(size), allocation)
    painted = (rebuilt[0, 0] - 1).abs() < 1e-4
    assert worst(rebuilt[0, :, ~painted], torch.tensor(0.5)) == 0
    assert painted.float().mean().item() == pytest.approx(allocation.coverage.item())
    assert painted.sum() == pytest.approx(allocation.area.item(), rel=0.02)


def test_a_turned_footprint_shows_the_image_where_it_lies():
    y, x = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
    image = torch.stack([x, y])[None] / 64
    allocation = footprint((32, 30), (1.2, 0.9), (-0.9, 1.2), size=(64, 64), patch=16)
    rebuilt = rebuild(Texture.open(image), allocation)
    centre = (slice(None), slice(None), slice(24, 36), slice(26, 38))
    assert worst(rebuilt[centre], image[centre]) < 0.01


def test_the_fovea_is_sharper_than_a_resize_of_the_same_budget():
    texture = Texture.open(PHOTO)
    x, y = 150, 200
    seen = rebuild(texture, foveate(texture.size, fixation=(x, y), budget=150, patch=16, e0=0.1))
    baseline = resized(texture, budget=150, patch=16)
    near = (slice(None), slice(None), slice(y - 20, y + 20), slice(x - 20, x + 20))
    errors = [((picture - texture.levels[0])[near] ** 2).mean() for picture in (seen, baseline)]
    assert errors[0] < 0.5 * errors[1]


def test_rebuild_wants_the_full_image_and_an_allocation_for_it():
    image = torch.rand(1, 3, 32, 48)
    with pytest.raises(ValueError, match=r"rebuild: texture must hold the full image of \(48, 32\), got .*\(32, 48\)"):
        rebuild(Texture.open(image), grid((48, 32), 8))
    with pytest.raises(ValueError, match=r"rebuild: texture must hold the full image of \(32, 48\), got .*\(16, 24\)"):
        rebuild(Texture(tuple(mipmap(image)[1:]), size=(32, 48)), grid((32, 48), 8))
    with pytest.raises(ValueError, match=r"rebuild: allocation must be for 2 images, got 1"):
        rebuild(Texture.open(image.expand(2, -1, -1, -1)), grid((32, 48), 8))


def test_resized_is_the_image_where_the_budget_suffices():
    image = torch.rand(2, 3, 24, 40)
    for budget, patch in ((15, 8), (18, 8), (960, 1), (1, 64)):
        assert torch.equal(resized(Texture.open(image), budget=budget, patch=patch), image)
    assert worst(resized(Texture.open(image), budget=14, patch=8), image) > 0.05


@pytest.mark.parametrize(("factor", "budget"), [(2, 80), (4, 20)])
def test_resized_equals_pillows_box_and_bicubic(factor, budget):
    """By a whole factor; away from the edge, where Pillow cuts its kernel off and we repeat the edge cell."""
    image = torch.rand(1, 1, 128, 160)
    small = Image.fromarray(image[0, 0].numpy()).resize((160 // factor, 128 // factor), Image.Resampling.BOX)
    wanted = torch.from_numpy(np.asarray(small.resize((160, 128), Image.Resampling.BICUBIC)).copy())
    got = resized(Texture.open(image), budget=budget, patch=8)[0, 0]
    inner = (slice(2 * factor, -2 * factor),) * 2
    assert worst(got[inner], wanted[inner]) < 1e-5
    assert worst(got, wanted) < 0.1


def test_resized_keeps_the_mean_at_any_scale():
    image = photo((63, 77))
    for budget in (1, 5, 17, 60):
        got = resized(Texture.open(image), budget=budget, patch=8)
        assert got.shape == image.shape
        assert worst(got.mean((2, 3)), image.mean((2, 3))) < 0.02
        flat = resized(Texture.open(torch.full_like(image, 0.4)), budget=budget, patch=8)
        assert worst(flat, torch.tensor(0.4)) < 1e-5


@pytest.mark.parametrize("budget", [4, 4000])
def test_resized_wants_the_full_image(budget):
    coarse = Texture(tuple(mipmap(torch.rand(1, 3, 32, 48))[1:]), size=(32, 48))
    with pytest.raises(ValueError, match=r"^resized: texture must hold the full image of \(32, 48\)"):
        resized(coarse, budget=budget, patch=8)


@pytest.mark.parametrize(
    ("options", "match"), [({"budget": 0}, "budget must be at least 1"), ({"patch": 0}, "patch must be at least 1")]
)
def test_resized_refuses_nothing_to_spend(options, match):
    with pytest.raises(ValueError, match="^resized: " + match):
        resized(Texture.open(torch.rand(3, 32, 48)), **options)


@pytest.mark.parametrize("box", [(0, 0, 77, 63), (30, 20, 61, 41), (0, 5, 1, 6), (70, 0, 77, 63)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_part_is_what_the_whole_has_there(box, channels):
    texture = Texture.open(photo((63, 77))[:, :channels])
    left, top, right, bottom = box
    rows = [[0, 0, 40, 40], [40, 0, 77, 31.5], [22.5, 18.2, 50.1, 33.9], [-9, 40, 30, 80], [60, 5, 60.4, 5.2]]
    upright = boxes(*rows, size=(63, 77), patch=8)
    turned = footprint((40, 32), (1.2, 0.9), (-0.9, 1.2), size=(63, 77), patch=16)
    for allocation in (upright, turned):
        whole = rebuild(texture, allocation)[..., top:bottom, left:right]
        part = rebuild(texture, allocation, box=box, grey=median_grey(texture))
        assert worst(part, whole) < 1e-6
    for budget in (1, 7, 20, 1000):
        whole = resized(texture, budget=budget, patch=8)[..., top:bottom, left:right]
        assert worst(resized(texture, budget=budget, patch=8, box=box), whole) < 1e-6


def test_the_grey_of_the_gaps_can_be_given():
    texture = Texture.open(torch.rand(2, 1, 9, 9))
    nothing = boxes([20, 20, 30, 30], size=(9, 9), patch=8).each(lambda column: column.expand(2, *column.shape[1:]))
    assert torch.equal(rebuild(texture, nothing), rebuild(texture, nothing, grey=median_grey(texture)))
    assert rebuild(texture, nothing, grey=torch.tensor([0.25, 0.75]))[:, 0, 0, 0].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("box", [(0, 0, 49, 10), (-1, 0, 5, 5), (5, 5, 5, 9), (7, 9, 6, 12)])
def test_a_part_must_lie_inside(box):
    texture = Texture.open(torch.rand(1, 1, 32, 48))
    with pytest.raises(ValueError, match=r"^rebuild: box must be xyxy inside an image of \(32, 48\)"):
        rebuild(texture, grid((32, 48), 8), box=box)
    with pytest.raises(ValueError, match=r"^resized: box must be"):
        resized(texture, budget=2, patch=8, box=box)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_products_are_not_shared_among_threads(monkeypatch, dtype):
    """On a CPU the threads would take longer than the products; the result is that of torch."""
    parts = [torch.rand(*size, dtype=dtype) for size in ((3, 50, 70), (8, 20), (24, 8), (8, 30), (36, 8))]
    image, down_y, up_y, down_x, up_x = parts
    read, painted = image[:, 7:27, 5:35], torch.zeros(3, 30, 40, dtype=dtype)
    wanted = up_y @ (down_y @ read @ down_x.mT) @ up_x.mT
    monkeypatch.setattr(torch.Tensor, "__matmul__", None)
    rebuilding._multiply(painted[:, 2:26, 1:37], up_y, down_y, read, down_x, up_x)
    assert worst(painted[:, 2:26, 1:37], wanted) < 1e-4 * float(wanted.max()) and not painted[:, 0].any()
