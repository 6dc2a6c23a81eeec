"""Frequency: bands are found by orientation and octave, footprints are stretched accordingly, all is covered."""

import math

import pytest
import torch

from texturevlm.allocate.value import delivered_scale, stretch_cost
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.frequency import (
    RATIOS,
    SQUARE,
    band_energy,
    bias_of,
    frequency,
    shape_worth,
    shapes,
    stretch_gain,
)

SIZE = (384, 512)


def even(size=SIZE, *, cell=8, batch=1, legible_scale=3.0, scorer="none") -> Relevance:
    rows, columns = max(1, size[0] // cell), max(1, size[1] // cell)
    mass = torch.full((batch, rows, columns), 1 / (rows * columns))
    return Relevance(mass, torch.full_like(mass, legible_scale), torch.ones_like(mass, dtype=torch.bool), size, scorer)


def stripes(period: float, angle: float, size=SIZE) -> Texture:
    """angle: of the direction in which they change, 0 for upright stripes."""
    y, x = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    phase = (x * math.cos(math.radians(angle)) + y * math.sin(math.radians(angle))) * (2 * math.pi / period)
    return Texture.open((0.5 + 0.5 * torch.sin(phase))[None, None].float())


def building() -> Texture:
    """Narrow upright windows."""
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    return Texture.open(((x % 12 < 5) & (y % 120 < 110))[None, None].float())


def page() -> Texture:
    """Lines of ink across the page, with gaps between words."""
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    return Texture.open((1.0 - ((y % 16 < 6) & (x % 90 < 80)).float())[None, None])


def band_shares(texture: Texture) -> torch.Tensor:
    """(orientations, octaves): each band's share of the image's energy."""
    energy = band_energy(texture, even().grid)[0].mean((2, 3))
    return energy / energy.sum()


def ratios(allocation: Allocation) -> torch.Tensor:
    return (allocation.ddx[0, :, 0] / allocation.ddy[0, :, 1])[allocation.valid[0]]


@pytest.mark.parametrize(("angle", "band"), [(0, 0), (45, 1), (90, 2), (135, 3)])
def test_the_bands_find_the_orientation(angle, band):
    by_orientation = band_shares(stripes(8, angle)).sum(1)
    assert int(by_orientation.argmax()) == band and float(by_orientation[band]) > 0.6


@pytest.mark.parametrize(("period", "octave"), [(4, 0), (8, 1), (16, 2), (32, 3)])
def test_the_bands_find_the_octave(period, octave):
    by_octave = band_shares(stripes(period, 0)).sum(0)
    assert int(by_octave.argmax()) == octave and float(by_octave[octave]) > 0.8


def test_a_page_changes_down_and_a_building_across():
    on_page, on_building = band_shares(page()).sum(1), band_shares(building()).sum(1)
    assert on_page[2] > 0.5 > on_page[0]  # from line to line
    assert on_building[0] > 0.5 > on_building[2]  # from pillar to pillar


def test_energy_is_found_where_it_is():
    both = torch.cat([stripes(8, 0).levels[0][..., :256], stripes(8, 90).levels[0][..., :256]], 3)
    energy = band_energy(Texture.open(both), even().grid)[0].sum(1)
    for columns, band in ((slice(4, 24), 0), (slice(40, 60), 2)):
        assert int(energy[..., columns].sum((1, 2)).argmax()) == band


def test_samples_may_be_long_where_nothing_changes():
    maps = even()
    gain = stretch_gain(band_energy(stripes(16, 0), maps.grid)).mean((0, 2, 3))
    assert (gain[:-1] > gain[1:]).all() and gain[0] > 1.25  # the taller the better
    turned = stretch_gain(band_energy(stripes(16, 90), maps.grid)).mean((0, 2, 3))
    torch.testing.assert_close(turned, gain.flip(0), rtol=0.02, atol=0.02)
    noise = torch.rand(1, 1, *SIZE, generator=torch.Generator().manual_seed(0))
    even_gain = stretch_gain(band_energy(Texture.open(noise), maps.grid)).mean((0, 2, 3))
    assert int(even_gain.argmax()) == SQUARE


def test_footprints_are_stretched_in_either_direction():
    tall = ratios(frequency(stripes(16, 0), even(), budget=48, patch=16, bias="none"))
    wide = ratios(frequency(stripes(16, 90), even(), budget=48, patch=16, bias="none"))
    assert float(tall.median()) < 0.6 and float(wide.median()) > 1.7
    assert float(tall.min()) >= 0.1 and float(wide.max()) <= 4.1


def test_each_part_has_its_own_shape():
    both = Texture.open(torch.cat([stripes(16, 0).levels[0][..., :256], stripes(16, 90).levels[0][..., :256]], 3))
    shape, _ = shapes(both, even(), bias="none")
    assert (shape[0, :, 8:24] < SQUARE).all() and (shape[0, :, 40:56] > SQUARE).all()


def test_reading_keeps_detail_across():
    free, _ = shapes(page(), even(), bias="none")
    reading, _ = shapes(page(), even(), bias="reading")
    assert (free > SQUARE).mean() > 0.5  # the bands alone would take it from where it is read
    assert reading.mean() < free.mean()
    cost = stretch_cost(torch.tensor(RATIOS))
    assert bias_of("auto", even()).tolist() == [1.0] and cost[SQUARE] == 1
    assert bias_of("auto", Relevance(*vars_of(even()), photograph=torch.tensor([True]))).tolist() == [0.0]
    for scorer in ("words", "scout", "mine"):  # whoever was asked
        asked = Relevance(*vars_of(even())[:4], scorer, torch.tensor([True]))
        assert bias_of("auto", asked).tolist() == [1.0]


def test_a_bias_changes_what_shapes_are_worth():
    reading, none, standing = shape_worth(torch.tensor([1.0, 0.0, -1.0]))
    assert (none == 1).all() and torch.allclose(standing, reading.flip(0)) and reading[0] > reading[-1]


@pytest.mark.parametrize("scorer", ["words", "scout", "embedding", "attention"])
def test_any_question_about_a_photograph_is_read(scorer):
    """Bug 6: the bias was "reading" for the scorer "words" alone."""
    photograph = torch.tensor([True])
    asked = Relevance(*vars_of(even(scorer=scorer)), photograph=photograph)
    assert bias_of("auto", asked).tolist() == [1.0]


def vars_of(maps: Relevance) -> tuple:
    return maps.mass, maps.legible_scale, maps.ink, maps.size, maps.scorer


@pytest.mark.parametrize("budget", [1, 2, 9, 64, 200])
@pytest.mark.parametrize("texture", [page(), building()], ids=["page", "building"])
def test_the_budget_is_used_and_everything_is_covered(texture, budget):
    maps = even()
    allocation = frequency(texture, maps, budget=budget, patch=16, bias="none")
    assert int(allocation.valid.sum()) == budget
    assert not bool(torch.isinf(delivered_scale(allocation, maps.grid)).any())
    assert bool(allocation.upright[allocation.valid].all()) and float(allocation.level.min()) > -1e-3


def test_tokens_follow_the_relevance():
    maps = even()
    for columns in (slice(2, 12), slice(50, 60)):
        mass = torch.full_like(maps.mass, 1e-6)
        mass[:, 10:30, columns] = 1.0
        pointed = Relevance(mass / mass.sum(), maps.legible_scale, maps.ink, SIZE)
        scale = delivered_scale(frequency(page(), pointed, budget=30, patch=16), maps.grid)[0]
        assert float(scale[10:30, columns].mean()) < 0.5 * float(scale.median())


def test_coarse_content_spares_tokens():
    maps = even(legible_scale=1.5)
    maps.legible_scale[:, :, 32:] = 12.0  # the right half could be read from afar
    allocation = frequency(page(), maps, budget=350, patch=16, bias="reading")
    scale = delivered_scale(allocation, maps.grid)[0]
    assert float(scale[:, 34:].mean()) > 1.5 * float(scale[:, :30].mean())


def test_a_batch_is_its_images():
    texture = Texture.open(torch.cat([page().levels[0], building().levels[0]]))
    together = frequency(texture, even(batch=2), budget=40, patch=16)
    for image, alone in enumerate((page(), building())):
        assert torch.equal(together.boxes[image], frequency(alone, even(), budget=40, patch=16).boxes[0])


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (5, 400), (64, 64), (37, 411)])
@pytest.mark.parametrize("budget", [1, 5, 40, 5000])
def test_awkward_sizes(size, budget):
    maps = even(size, cell=4)
    texture = Texture.open(torch.rand(1, 1, *size, generator=torch.Generator().manual_seed(0)))
    allocation = frequency(texture, maps, budget=budget, patch=8)
    assert int(allocation.valid.sum()) >= min(budget, math.ceil(size[0] / 8) * math.ceil(size[1] / 8))
    assert not bool(torch.isinf(delivered_scale(allocation, maps.grid)).any())


def test_a_blank_image_is_covered():
    maps = even()
    maps.ink.zero_()
    allocation = frequency(Texture.open(torch.ones(1, 1, *SIZE)), maps, budget=20, patch=16)
    assert int(allocation.valid.sum()) == 20 and float(allocation.coverage) == 1


def test_rectangles_cover_as_squares_do():
    mask = torch.rand(40, 60, generator=torch.Generator().manual_seed(0)) > 0.8
    assert cover(rows_of(mask), (3, 3), 10_000) == cover(rows_of(mask), 3, 10_000)
    covered = torch.zeros_like(mask)
    for row, column in cover(rows_of(mask), (2, 7), 10_000):
        covered[row : row + 2, column : column + 7] = True
    assert bool(covered[mask].all())
    assert len(cover(rows_of(mask), (2, 7), 5)) == 6


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="frequency: bias must be a number or one of auto, none, reading, standing"):
        frequency(page(), even(), patch=8, bias="sideways")
    with pytest.raises(ValueError, match="frequency: bias must be between -1 and 1, got 3"):
        frequency(page(), even(), patch=8, bias=3)
    with pytest.raises(ValueError, match="frequency: overview must be above 0 and at most 1, got 0"):
        frequency(page(), even(), overview=0)
