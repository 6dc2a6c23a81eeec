"""Foveation: exactly the budget, the whole image, finest at the fixation, and the patches that come of it."""

from pathlib import Path

import pytest
import torch

from tests.conftest import worst
from texturevlm import Allocation, Texture, foveate, generate_mipmaps, sample, sample_foveated
from texturevlm.ops import mipmap

PHOTO = Path(__file__).parents[1] / "examples" / "photo.jpg"
NAN, INF = float("nan"), float("inf")
# size, fixation, budget, patch, e0; none of them so small or so sharp that footprints are widened or capped
OPEN_VIEWS = [
    ((512, 512), (256, 256), 273, 16, 0.5),
    ((1754, 1240), (300.25, 400.5), 273, 16, 0.5),
    ((1000, 1000), (512, 300), 64, 4, 0.5),
    ((1000, 1000), (512, 300), 64, 1, 0.05),
    ((600, 2000), (1000, 300), 100, 4, 0.2),
    ((600, 2000), (0, 0), 100, 4, 0.2),
    ((600, 2000), (2000, 600), 100, 4, 0.2),
    ((1000, 900), (900, 0), 7, 8, 0.5),
    ((333, 777), (1, 332), 1, 16, 0.5),
]
# size, budget; all with patches of 16
AWKWARD = [
    ((1, 1), 1),
    ((1, 500), 1),
    ((1, 500), 30),
    ((1, 500), 500),
    ((500, 1), 77),
    ((2000, 10), 273),
    ((10, 2000), 20),
    ((7, 9), 63),
    ((64, 64), 273),
    ((48, 40), 1920),
    ((16, 16), 1),
    ((17, 16), 1),
    ((300, 400), 2),
    ((300, 400), 3),
]


def overlap(allocation: Allocation) -> float:
    """The area that two footprints of an image share, summed over the pairs, as a share of the image."""
    boxes = allocation.boxes[0].double()
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1).triu(1).sum()
    return float(shared / (allocation.size[0] * allocation.size[1]))


def inside(allocation: Allocation) -> bool:
    height, width = allocation.size
    low, high = allocation.boxes[..., :2], allocation.boxes[..., 2:]
    reach = 1e-3
    return bool((low >= -reach).all() and (high <= torch.tensor([width + reach, height + reach])).all())


def eccentricity(allocation: Allocation, fixation: tuple[float, float]) -> torch.Tensor:
    """(K,): from the fixation to the centres, in units of the longer image side."""
    return (allocation.centre[0].double() - torch.tensor(fixation)).norm(dim=-1) / max(allocation.size)


def contains(allocation: Allocation, point: tuple[float, float]) -> torch.Tensor:
    low, high = allocation.boxes[0, :, :2], allocation.boxes[0, :, 2:]
    at = torch.tensor(point)
    return ((low <= at + 1e-3) & (at - 1e-3 <= high)).all(-1)


@pytest.mark.parametrize(("size", "fixation", "budget", "patch", "e0"), OPEN_VIEWS)
def test_exactly_the_budget_tiles_the_image(size, fixation, budget, patch, e0):
    allocation = foveate(size, fixation=fixation, budget=budget, patch=patch, e0=e0)
    assert (allocation.size, allocation.patch) == (size, patch)
    assert allocation.centre.shape == (1, budget, 2) and allocation.valid.all() and allocation.upright.all()
    assert allocation.coverage.item() == 1
    assert inside(allocation)
    assert allocation.area.double().sum().item() == pytest.approx(size[0] * size[1], rel=1e-5)
    assert overlap(allocation) < 1e-5


@pytest.mark.parametrize(("size", "fixation", "budget", "patch", "e0"), OPEN_VIEWS)
def test_scale_follows_distance_from_the_fixation(size, fixation, budget, patch, e0):
    allocation = foveate(size, fixation=fixation, budget=budget, patch=patch, e0=e0)
    side = allocation.area[0].double().sqrt()
    uncapped = side > 1.3 * patch
    assert uncapped.sum() > 0.9 * budget
    ratio = (side / (eccentricity(allocation, fixation) + e0))[uncapped]
    assert ratio.max() / ratio.min() < 1.15


@pytest.mark.parametrize(("size", "fixation", "budget", "patch", "e0"), OPEN_VIEWS)
def test_the_finest_footprint_lies_at_the_fixation(size, fixation, budget, patch, e0):
    allocation = foveate(size, fixation=fixation, budget=budget, patch=patch, e0=e0)
    side = allocation.area[0].double().sqrt()
    here = contains(allocation, fixation)
    assert here.any()
    assert side[here].min() < 1.05 * side.min()
    assert allocation.score[0].argmax() == eccentricity(allocation, fixation).argmin()


@pytest.mark.parametrize(("size", "budget"), AWKWARD)
def test_awkward_sizes_and_every_corner_are_covered(size, budget):
    height, width = size
    for fixation in (
        (0, 0),
        (width, 0),
        (0, height),
        (width, height),
        (width / 2, height / 2),
        (width / 3, height / 7),
    ):
        allocation = foveate(size, fixation=fixation, budget=budget)
        assert allocation.budget == budget and allocation.valid.all()
        assert allocation.coverage.item() == 1
        assert inside(allocation)
        assert torch.isfinite(allocation.score).all() and (allocation.area > 0).all()


@pytest.mark.parametrize(
    ("size", "budget", "patch"),
    [
        ((995, 1139), 256, 14),
        ((559, 925), 8, 14),
        ((161, 1019), 128, 1),
        ((229, 239), 16, 7),
        ((587, 983), 16, 28),
        ((41, 1001), 4, 3),
    ],
)
def test_odd_sizes_seen_from_the_centre_have_no_gap_between_cells(size, budget, patch):
    allocation = foveate(size, fixation=(size[1] / 2, size[0] / 2), budget=budget, patch=patch)
    assert allocation.coverage.item() == 1


@pytest.mark.parametrize(
    ("size", "fixation", "budget", "patch", "e0"),
    [
        ((1000, 1000), (512, 300), 273, 16, 0.1),
        ((1000, 1000), (512, 300), 273, 16, 0.01),
        ((1000, 1400), (0, 1000), 700, 32, 0.02),
        ((520, 512), (100, 100), 1000, 16, 0.1),
        ((100, 100), (50, 50), 38, 16, 0.001),
    ],
)
def test_footprints_are_never_finer_than_the_pixels(size, fixation, budget, patch, e0):
    allocation = foveate(size, fixation=fixation, budget=budget, patch=patch, e0=e0)
    assert budget * patch**2 < size[0] * size[1]
    assert allocation.budget == budget
    assert allocation.level.min() > -1e-5
    assert allocation.coverage.item() == 1
    assert inside(allocation)
    nearest = eccentricity(allocation, fixation).argmin()
    assert allocation.level[0, nearest] < 0.5


def test_only_an_image_narrower_than_a_patch_is_sampled_finer_than_its_pixels():
    allocation = foveate((10, 2000), fixation=(300, 5), budget=20, patch=16)
    along = allocation.ddx.norm(dim=-1)
    assert along.min() >= 1 - 1e-5
    assert worst(allocation.ddy[..., 1], torch.full((1, 20), 10 / 16)) < 1e-5


@pytest.mark.parametrize(("size", "budget"), [((64, 64), 273), ((64, 64), 16), ((100, 30), 13), ((31, 57), 31 * 57)])
def test_a_small_image_is_shared_out_evenly_and_wholly(size, budget):
    """The tokens could carry every pixel, so none deserves more than another."""
    allocation = foveate(size, fixation=(3, 4), budget=budget, patch=16)
    assert budget * 16**2 >= size[0] * size[1]
    assert allocation.coverage.item() == 1
    assert allocation.area.double().sum().item() == pytest.approx(size[0] * size[1], rel=1e-5)
    assert overlap(allocation) < 1e-5
    assert (
        worst(allocation.area, torch.full((1, budget), size[0] * size[1] / budget)) < 1e-3 * size[0] * size[1] / budget
    )


def test_a_smaller_e0_is_a_sharper_fovea():
    contrasts = []
    for e0 in (0.05, 0.2, 1.0, 1e6):
        area = foveate((900, 900), fixation=(450, 450), budget=200, patch=2, e0=e0).area
        contrasts.append((area.max() / area.min()).item())
    assert contrasts == sorted(contrasts, reverse=True)
    assert contrasts[0] > 50 and contrasts[-1] < 1.01


def test_a_larger_budget_is_finer_everywhere():
    few, many = (foveate((1000, 800), fixation=(400, 300), budget=budget, patch=4) for budget in (50, 400))
    assert many.area.max() < few.area.min() * 2
    assert many.area.max() < few.area.max() and many.area.min() < few.area.min()


@pytest.mark.parametrize("M0", [1e-3, 7, 1e3])
def test_m0_changes_the_scores_and_nothing_else(M0):
    one = foveate((300, 500), fixation=(120, 80), budget=97)
    other = foveate((300, 500), fixation=(120, 80), budget=97, M0=M0)
    assert worst(other.boxes, one.boxes) < 1e-3
    assert worst(other.score / M0, one.score) < 1e-5


@pytest.mark.parametrize("extreme", [{"M0": 1e200}, {"M0": 1e-200}, {"e0": 1e200}, {"e0": 1e-200}])
def test_extreme_magnification_is_answered_or_refused_but_never_nonsense(extreme):
    try:
        allocation = foveate((200, 300), fixation=(100.5, 100.5), budget=50, **extreme)
    except ValueError as error:
        assert str(error).startswith(f"foveate: {next(iter(extreme))} must be")
    else:
        assert allocation.coverage.item() == 1
        assert torch.isfinite(allocation.score).all()


def test_a_batch_of_fixations_equals_one_by_one():
    fixations = torch.tensor([[10.0, 20.0], [300.0, 0.0], [499.5, 299.5], [250.0, 150.0]])
    together = foveate((300, 500), fixation=fixations, budget=60, patch=8)
    assert together.batch == 4
    for index, point in enumerate(fixations.tolist()):
        for alone in (
            foveate((300, 500), fixation=tuple(point), budget=60, patch=8),
            foveate((300, 500), fixation=fixations[index], budget=60, patch=8),
        ):
            assert alone.batch == 1
            assert worst(together.boxes[index], alone.boxes[0]) < 1e-3
            assert worst(together.score[index], alone.score[0]) < 1e-5


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": 0}, ValueError, r"budget must be between 1 and 60000, got 0"),
        ({"budget": -5}, ValueError, r"budget must be between 1 and 60000, got -5"),
        ({"budget": 60001}, ValueError, r"budget must be between 1 and 60000, got 60001"),
        ({"budget": 2.5}, TypeError, r"budget must be a whole number, got 2.5"),
        ({"patch": 0}, ValueError, r"patch must be at least 1, got 0"),
        ({"patch": 1.5}, TypeError, r"patch must be a whole number, got 1.5"),
        ({"e0": 0}, ValueError, r"e0 must be a positive number, got 0"),
        ({"e0": -1}, ValueError, r"e0 must be a positive number, got -1"),
        ({"e0": NAN}, ValueError, r"e0 must be a positive number, got nan"),
        ({"e0": INF}, ValueError, r"e0 must be a positive number, got inf"),
        ({"M0": 0}, ValueError, r"M0 must be a positive number, got 0"),
        ({"M0": NAN}, ValueError, r"M0 must be a positive number, got nan"),
        *[
            ({"fixation": point}, ValueError, r"fixation must lie in the image, 0 … 300 × 0 … 200, got")
            for point in ((-1, 5), (301, 5), (5, -0.5), (5, 200.5), (NAN, 5), (5, INF))
        ],
        *[
            ({"fixation": point}, ValueError, r"fixation must be \(x, y\), got")
            for point in ((5,), (1, 2, 3), "ab", None)
        ],
        ({"fixation": torch.rand(3)}, ValueError, r"fixation must be \(x, y\) or \(B, 2\), got \(3,\)"),
        ({"fixation": torch.rand(2, 2, 2)}, ValueError, r"fixation must be \(x, y\) or \(B, 2\), got \(2, 2, 2\)"),
    ],
)
def test_bad_input_is_named(options, error, match):
    with pytest.raises(error, match="^foveate: " + match):
        foveate((200, 300), **{"fixation": (5, 5), "budget": 50} | options)


@pytest.mark.parametrize("point", [(NAN, 5.0), (5.0, INF), (-50.0, 5.0), (5.0, 201.0)])
def test_a_fixation_outside_the_image_is_refused_in_a_tensor_too(point):
    with pytest.raises(ValueError, match=r"^foveate: fixation must lie in the image"):
        foveate((200, 300), fixation=torch.tensor([[5.0, 5.0], point]), budget=50)


@pytest.mark.parametrize("size", [(0, 300), (200, 0), (-200, -300), (200.5, 300), (200,)])
def test_a_bad_size_is_named(size):
    with pytest.raises((ValueError, TypeError), match=r"^foveate: (size|height|width) must "):
        foveate(size, fixation=(0, 0), budget=1)


def test_the_photo_is_sampled_end_to_end():
    texture = Texture.open(PHOTO)
    patches = sample_foveated(texture, fixation=(200, 300), budget=273, patch=16, M0=1.0, e0=0.5)
    assert patches.pixels.shape == (1, 273, 3, 16, 16)
    assert patches.allocation.coverage.item() == 1
    assert patches.pixels.min() >= 0 and patches.pixels.max() <= 1
    weight = patches.allocation.area[0] / patches.allocation.area.sum()
    mean = (patches.pixels[0].mean((-1, -2)) * weight[:, None]).sum(0)
    assert worst(mean, texture.levels[0].mean((0, 2, 3))) < 0.01
    again = sample(texture.mipmapped(), patches.allocation)
    assert torch.equal(again.pixels, patches.pixels)


@pytest.mark.parametrize("size", [(1, 1), (9, 7), (37, 300), (128, 128)])
def test_a_constant_image_gives_constant_patches(size):
    image = torch.tensor([0.3, 0.6, 0.9])[None, :, None, None].expand(2, 3, *size)
    budget = min(40, size[0] * size[1])
    pixels = sample_foveated(Texture.open(image), fixation=(0.5, 0.5), budget=budget, patch=8).pixels
    assert pixels.shape == (2, budget, 3, 8, 8)
    assert worst(pixels, torch.tensor([0.3, 0.6, 0.9])[:, None, None].expand_as(pixels)) < 1e-6


def test_patches_of_a_ramp_hold_the_positions_that_they_look_at():
    y, x = torch.meshgrid(torch.arange(256) + 0.5, torch.arange(256) + 0.5, indexing="ij")
    patches = sample_foveated(Texture.open(torch.stack([x, y])), fixation=(100, 90), budget=80, patch=8)
    allocation = patches.allocation
    steps = torch.arange(8) - 3.5
    wanted_x = allocation.centre[..., 0, None] + steps * allocation.ddx[..., 0, None]
    wanted_y = allocation.centre[..., 1, None] + steps * allocation.ddy[..., 1, None]
    reach = 2 * torch.maximum(allocation.ddx[..., 0], allocation.ddy[..., 1])[..., None]
    interior = ((allocation.boxes > reach) & (allocation.boxes < 256 - reach)).all(-1)
    assert interior.sum() > 20
    assert worst(patches.pixels[:, :, 0][interior], wanted_x[:, :, None].expand(-1, -1, 8, -1)[interior]) < 1e-3
    assert worst(patches.pixels[:, :, 1][interior], wanted_y[..., None].expand(-1, -1, -1, 8)[interior]) < 1e-3


def test_one_fixation_serves_a_batch_and_each_image_may_have_its_own():
    texture = Texture.open(torch.rand(3, 2, 60, 80)).mipmapped()
    shared = sample_foveated(texture, fixation=(20, 30), budget=25, patch=4)
    points = torch.tensor([[20.0, 30.0], [0.0, 0.0], [79.0, 59.0]])
    own = sample_foveated(texture, fixation=points, budget=25, patch=4)
    for index in range(3):
        alone = Texture.open(texture.levels[0][index])
        one = sample_foveated(alone, fixation=(20, 30), budget=25, patch=4)
        assert worst(shared.pixels[index], one.pixels[0]) < 1e-6
        one = sample_foveated(alone, fixation=tuple(points[index].tolist()), budget=25, patch=4)
        assert worst(own.pixels[index], one.pixels[0]) < 1e-4
    with pytest.raises(ValueError, match=r"sample: allocation must be for 3 images like the texture, got 2"):
        sample_foveated(texture, fixation=points[:2], budget=25)


def test_sample_wants_an_allocation_for_this_image():
    texture = Texture.open(torch.rand(3, 60, 80)).mipmapped()
    with pytest.raises(ValueError, match=r"sample: allocation must be for an image of \(60, 80\) .* got \(80, 60\)"):
        sample(texture, foveate((80, 60), fixation=(1, 1), budget=5))
    with pytest.raises(ValueError, match=r"sample: allocation must be for 1 images like the texture, got 2"):
        sample(texture, foveate((60, 80), fixation=torch.ones(2, 2), budget=5))
    with pytest.raises(ValueError, match=r"backend must be one of auto, cuda, texture, reference, got 'opengl'"):
        sample(texture, foveate((60, 80), fixation=(1, 1), budget=5), backend="opengl")
    with pytest.raises(ValueError, match=r"backend 'texture' cannot run here: the tensor is on cpu"):
        sample(texture, foveate((60, 80), fixation=(1, 1), budget=5), backend="texture")


def test_a_texture_that_starts_coarser_is_sampled_at_the_same_places():
    image = torch.rand(1, 2, 64, 96)
    levels = tuple(mipmap(image))
    boxes = torch.tensor([[[0.0, 0, 32, 32], [40, 10, 88, 58], [60.5, 3.25, 92.5, 35.25]]])
    allocation = Allocation.of_boxes(boxes, (64, 96), 8)
    full = sample(Texture(levels), allocation)
    coarse = sample(Texture(levels[1:], size=(64, 96)), allocation)
    assert allocation.level.min() >= 2
    assert worst(coarse.pixels, full.pixels) < 1e-5


def test_names_are_fetched_and_never_blended():
    names = torch.randint(0, 50, (1, 1, 40, 60)).float()
    texture = Texture(names, reduce="nearest").mipmapped()
    pixels = sample_foveated(texture, fixation=(31, 17), budget=30, patch=4).pixels
    assert torch.equal(pixels, pixels.round())


def test_generate_mipmaps_takes_a_tensor_or_a_list_of_any_sizes():
    image = torch.rand(2, 3, 20, 30)
    for level, wanted in zip(generate_mipmaps(image).levels, mipmap(image), strict=True):
        assert torch.equal(level, wanted)
    assert len(generate_mipmaps(image, levels=2).levels) == 2
    several = [torch.rand(3, 20, 30), torch.rand(3, 5, 7), torch.randint(0, 256, (1, 9, 1), dtype=torch.uint8)]
    textures = generate_mipmaps(several)
    assert [texture.size for texture in textures] == [(20, 30), (5, 7), (9, 1)]
    assert [len(texture.levels) for texture in textures] == [5, 3, 4]
    assert torch.equal(textures[2].levels[0], several[2][None] / 255)
    assert [len(texture.levels) for texture in generate_mipmaps(tuple(several), levels=2)] == [2, 2, 2]
    assert generate_mipmaps([]) == []
    with pytest.raises(ValueError, match=r"Texture\.open: image must be finite"):
        generate_mipmaps([torch.rand(3, 4, 4), torch.full((3, 4, 4), NAN)])


def test_gradients_reach_the_image():
    image = torch.rand(1, 1, 24, 24, requires_grad=True)
    sample_foveated(generate_mipmaps(image), fixation=(12, 12), budget=9, patch=4).pixels.sum().backward()
    assert image.grad is not None and (image.grad > 0).all()
    assert image.grad.sum().item() == pytest.approx(9 * 16, rel=1e-4)


def test_a_list_of_textures_of_different_sizes_gives_a_list():
    textures = generate_mipmaps([torch.rand(3, 40, 60), torch.rand(3, 90, 31)])
    points = [(10, 20), (30, 80)]
    patches = sample_foveated(textures, fixation=points, budget=20, patch=4)
    for texture, point, one in zip(textures, points, patches, strict=True):
        alone = sample_foveated(texture, fixation=point, budget=20, patch=4)
        assert torch.equal(one.pixels, alone.pixels)
    with pytest.raises(ValueError, match=r"sample_foveated: fixation must be one per texture \(2\), got 1"):
        sample_foveated(textures, fixation=points[:1])


def test_images_of_any_kind_are_sampled_and_missing_levels_are_made():
    image = torch.rand(3, 90, 120)
    wanted = sample_foveated(Texture.open(image).mipmapped(), fixation=(30, 40), budget=12, patch=8)
    for got in (
        sample_foveated(image, fixation=(30, 40), budget=12, patch=8),
        sample_foveated([image], fixation=[(30, 40)], budget=12, patch=8)[0],
        Texture(image).sample_foveated(fixation=(30, 40), budget=12, patch=8),
        Texture(image).generate_mipmaps().sample_foveated(fixation=(30, 40), budget=12, patch=8),
    ):
        assert torch.equal(got.pixels, wanted.pixels)


def test_cortical_magnification_takes_the_place_of_M0_and_e0():
    given = {"fixation": (100, 50), "budget": 40, "patch": 8}
    usual = foveate((200, 300), e0=0.1, **given)
    same = foveate((200, 300), cortical_magnification=lambda e: 1.0 / (e + 0.1), **given)
    assert torch.equal(same.centre, usual.centre) and torch.equal(same.score, usual.score)
    even = foveate((200, 300), cortical_magnification=torch.ones_like, **given)
    assert even.area.max() / even.area.min() < 2.1 < usual.area.max() / usual.area.min()
    patches = sample_foveated(torch.rand(3, 200, 300), cortical_magnification=torch.ones_like, **given)
    assert torch.equal(patches.allocation.centre, even.centre)


@pytest.mark.parametrize(
    ("magnification", "error", "words"),
    [
        (2.0, TypeError, "must be a function of the eccentricity, got 2.0"),
        (lambda e: 1.0, ValueError, "must return .* got float"),
        (lambda e: e.sum(), ValueError, r"must return .* got \(\)"),
        (lambda e: e - e, ValueError, "must be finite and above 0"),
        (lambda e: 1 / (e - e), ValueError, "must be finite and above 0"),
    ],
)
def test_a_bad_cortical_magnification_is_named(magnification, error, words):
    with pytest.raises(error, match=f"foveate: cortical_magnification {words}"):
        foveate((60, 80), fixation=(1, 2), budget=4, cortical_magnification=magnification)
