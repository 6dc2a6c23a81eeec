"""What an image says of its cells: blank paper, fineness, and the kernels against the reference in float64."""

import pytest
import torch

from tests.channels.test_fused import picture
from tests.conftest import poison, worst
from texturevlm import Texture
from texturevlm.channels.structure import CENTRE, colour_levels
from texturevlm.cuda.struct import definitions
from texturevlm.relevance import information
from texturevlm.relevance import information as salience
from texturevlm.relevance.information import cell_maps

SIZES = [((64, 64), 1), ((130, 70), 1), ((97, 203), 2), ((301, 77), 3), ((3, 400), 1), ((400, 5), 5)]
LARGE = [*SIZES, ((1024, 1024), 2), ((2200, 1700), 3), ((1080, 1920), 3), ((513, 611), 4)]


def image_of(kind: str, batch: int, size: tuple[int, int]) -> torch.Tensor:
    image = torch.rand(batch, 3, *size) if kind == "noise" else picture(batch, *size)
    if kind == "page":  # the upper half is paper
        image[..., : size[0] // 2, :] = 0.95 + 0.003 * torch.randn(batch, 3, size[0] // 2, size[1])
    return image


def test_paper_is_blank_and_fine_print_is_finer():
    image = torch.ones(1, 3, 512, 512)
    image[..., 20:200, 20:200] = (torch.arange(180) // 2 % 2).float()
    image[..., 300:480, 20:200] = (torch.arange(180) // 20 % 2).float()
    _, half, ink, photograph = cell_maps(Texture.open(image).mipmapped(), 2)
    assert not ink[0, :, 70:].any() and ink[0, 10:40, 10:40].all() and not photograph
    assert half[0, 10:40, 10:40].median() * 3 < half[0, 80:110, 10:40].median()


def test_small_images_have_ink_too():
    image = torch.ones(1, 3, 64, 64)
    image[..., 10:30, 10:30] = torch.rand(1, 3, 20, 20)
    _, _, ink, _ = cell_maps(Texture.open(image).mipmapped(), 0)
    assert ink[0, 12:28, 12:28].float().mean() > 0.9 and not ink[0, 40:].any()


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.006, 0.009, 0.05])
def test_noise_is_told_in_steps(noise):
    deviation = noise * (1 + 0.1 * torch.rand(2, 50, 60))
    exact = deviation.flatten(1).sort(1).values[:, int(0.2 * 2999)].clamp(0.004, 0.01)
    assert worst(information._quiet(deviation), exact) < 0.006 / information.QUIET_STEPS


def test_colours_are_found_by_name():
    image = torch.rand(1, 4, 8, 8)
    shuffled = Texture((image,), ("blue", "depth", "red", "green"))
    assert torch.equal(colour_levels(shuffled)[0], image[:, [2, 3, 0]])
    assert torch.equal(colour_levels(Texture((image,), ("red", "green", "blue", "depth")))[0], image[:, :3])
    assert colour_levels(Texture((image[:, :1],)))[0].shape == (1, 3, 8, 8)


def compare(image: torch.Tensor, cell: int) -> None:
    """Where an image is blank, its fineness is that of rounding, and means nothing."""
    mass, half, ink, photograph = cell_maps(Texture((image,)).mipmapped(), cell, backend="cuda")
    wanted = cell_maps(Texture((image.double(),)).mipmapped(), cell, backend="reference")
    assert torch.equal(photograph, wanted[3])
    assert (ink == wanted[2]).float().mean() > 0.999
    both = ink & wanted[2]
    assert worst(half[both].log2(), wanted[1][both].log2()) < 2e-3
    assert worst(mass / wanted[0].max(), wanted[0] / wanted[0].max()) < 2e-3
    assert worst(mass.sum((1, 2)), torch.ones(len(image))) < 1e-5


@pytest.mark.parametrize("size, cell", SIZES)
@pytest.mark.parametrize("kind", ["noise", "picture", "page"])
def test_the_kernels_give_the_references_maps(emulated, size, cell, kind):
    compare(image_of(kind, 2, size), cell)


def test_where_the_kernels_cannot_the_reference_does(emulated):
    texture = Texture.open(torch.rand(3, 40, 50)).mipmapped()
    assert cell_maps(texture, 0)[0].shape == (1, 40, 50)
    with pytest.raises(ValueError, match=r"cell_maps: backend 'cuda' cannot run here: the kernels take cells that"):
        cell_maps(texture, 0, backend="cuda")
    image = torch.rand(1, 3, 40, 50, requires_grad=True)
    assert cell_maps(Texture((image,)).mipmapped(), 1)[0].requires_grad


def test_the_kernels_constants_are_the_references():
    known = definitions("information.cu").constants
    wanted = {name: getattr(information, name) for name in ("COARSEST", "WINDOW", "LOST", "NOISE_TIMES")}
    wanted |= {name: getattr(salience, name) for name in ("STANDING_OUT", "ANYTHING", "WRITTEN", "MOST_CELL")}
    wanted |= {
        "STEPS": salience.STEPS,
        "GROUND": salience.GROUND,
        "CENTRE": CENTRE,
        "BINS": information.QUIET_STEPS + 1,
    }
    wanted |= dict(zip(("BLANK_LOW", "BLANK_HIGH"), information.BLANK))
    assert {name: known[name] for name in wanted} == pytest.approx(wanted)
    assert information.COUNTS == information.QUIET_STEPS + 1 + salience.STEPS


@pytest.mark.gpu
@pytest.mark.parametrize("size, cell", LARGE)
@pytest.mark.parametrize("kind", ["noise", "picture", "page"])
def test_on_the_gpu(size, cell, kind):
    poison()
    compare(image_of(kind, 2 if size[0] * size[1] < 1 << 20 else 1, size).cuda(), cell)
