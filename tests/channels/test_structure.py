"""edges, edges_inverted, high_pass, low_pass: the right polarity at any contrast, silence on noise, a kept reach."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from texturevlm.channels import structure
from texturevlm.channels.structure import box_mean, centre_surround, high_pass, low_pass
from texturevlm.ops import mipmap


def edges(image: torch.Tensor, levels) -> torch.Tensor:
    return centre_surround(image).clamp(min=0)


def edges_inverted(image: torch.Tensor, levels) -> torch.Tensor:
    return (-centre_surround(image)).clamp(min=0)


CHANNELS = {
    "edges": (edges, structure.EDGES_REACH),
    "edges_inverted": (edges_inverted, structure.EDGES_REACH),
    "high_pass": (high_pass, structure.HIGH_PASS_REACH),
    "low_pass": (low_pass, structure.LOW_PASS_REACH),
}
SIZES = [(1, 1), (1, 9), (9, 1), (5, 3), (2, 2), (37, 53), (40, 400), (3, 700)]
INKS = [(0, 255), (255, 0), (255, 128), (0, 128), (140, 128), (116, 128), (190, 200), (52, 40)]


def by_name(function, image: torch.Tensor) -> torch.Tensor:
    return function(image, mipmap(image))


def written(ink: int, paper: int, height: int, noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two lines of text: the image, which pixels are all ink, and which have none."""
    page, cover = Image.new("L", (320, 120), paper), Image.new("L", (320, 120), 0)
    font = ImageFont.load_default(height)
    for canvas, fill in ((page, ink), (cover, 255)):
        ImageDraw.Draw(canvas).text((20, 20), "Total 1,234.50\nbrown fox", fill=fill, font=font)
    pixels = torch.from_numpy(np.array(page)).float()
    pixels = (pixels + noise * torch.randn_like(pixels)).round().clamp(0, 255) / 255
    strokes = torch.from_numpy(np.array(cover))
    return pixels.expand(1, 3, -1, -1).contiguous(), strokes > 200, strokes == 0


@pytest.mark.parametrize("ink, paper", INKS)
@pytest.mark.parametrize("height", [12, 20, 36])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_strokes_are_found_by_the_channel_of_their_polarity(ink, paper, height, noise):
    image, strokes, blank = written(ink, paper, height, noise)
    right, wrong = (by_name(channel, image)[0] for channel in (edges, edges_inverted))
    if ink > paper:
        right, wrong = wrong, right
    assert right[strokes].mean() > 0.3
    assert wrong[strokes].mean() < 0.02
    assert right[strokes].mean() > 10 * right[blank].mean()


def test_the_paper_between_strokes_is_not_the_other_polarity():
    image, strokes, blank = written(0, 255, 20)
    dark, light = by_name(edges, image)[0], by_name(edges_inverted, image)[0]
    assert light[blank].max() < 0.6 and light[blank].mean() < 0.1
    assert dark[strokes].median() > 0.75


def test_contrast_hardly_matters():
    strong, strokes, _ = written(0, 255, 20)
    weak, _, _ = written(96, 128, 20)
    assert by_name(edges, weak)[0][strokes].mean() > 0.85 * by_name(edges, strong)[0][strokes].mean()


def test_the_negative_swaps_the_two_channels():
    image = torch.rand(2, 3, 41, 30, dtype=torch.float64)
    assert torch.allclose(by_name(edges, 1 - image), by_name(edges_inverted, image), atol=1e-12)
    assert torch.equal(by_name(edges, image) - by_name(edges_inverted, image), centre_surround(image))


def test_two_tones_answer_with_each_others_share():
    image = torch.zeros(1, 3, 60, 60, dtype=torch.float64)
    image[..., ::4] = 1.0  # one column in four is light; 17 columns hold 4 or 5 of them
    dark, light = by_name(edges, image)[0, 30], by_name(edges_inverted, image)[0, 30]
    assert (light[20:40:4] - 12 / 17).abs().max() < 0.02 and (dark[22:40:4] - 4 / 17).abs().max() < 0.02
    assert dark[20:40:4].max() == 0 and light[22:40:4].max() == 0


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_image_has_no_structure(name, value):
    image = torch.full((1, 3, 77, 90), value)
    assert by_name(CHANNELS[name][0], image).max() <= 1e-6


@pytest.mark.parametrize("name", CHANNELS)
def test_faint_noise_is_silent(name):
    image = (128 + torch.randn(1, 3, 120, 120)).round() / 255
    assert by_name(CHANNELS[name][0], image).mean() < 0.005


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_any_size_stays_within_0_and_1(name, size, dtype):
    image = (torch.rand(2, 3, *size) > 0.5).to(dtype)
    found = by_name(CHANNELS[name][0], image)
    assert found.shape == (2, *size) and found.dtype == dtype
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("size", [(256, 256), (255, 511), (190, 333)])
@pytest.mark.parametrize("where", [(0.5, 0.5), (0.0, 0.0), (0.02, 0.97)])
def test_a_pixel_acts_no_further_than_declared(name, size, where):
    function, reach = CHANNELS[name]
    image = torch.rand(1, 3, *size)
    y, x = (int(share * extent) for share, extent in zip(where, size))
    changed = image.clone()
    changed[:, :, y, x] = (changed[:, :, y, x] + 0.5) % 1
    different = (by_name(function, image) != by_name(function, changed))[0].nonzero()
    distance = (different - torch.tensor([y, x])).abs().max()
    assert 0 < distance <= reach


def test_high_pass_hears_detail_and_low_pass_shapes():
    detail = (torch.rand(1, 1, 128, 128) > 0.5).float().expand(1, 3, -1, -1)
    shape = torch.zeros(1, 3, 128, 128)
    shape[..., 40:80, 40:80] = 1.0
    assert by_name(high_pass, detail).mean() > 0.4 > 0.1 > by_name(low_pass, detail).mean()
    inside = (..., slice(46, 74), slice(46, 74))
    assert by_name(low_pass, shape)[inside].mean() > 0.15 and by_name(high_pass, shape)[inside].max() == 0


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (20, 31)])
@pytest.mark.parametrize("window", [(1, 1), (3, 1), (5, 7), (17, 17)])
def test_windows_equal_a_plain_loop(size, window):
    texels = torch.rand(1, 2, *size, dtype=torch.float64)
    means, most, least = (f(texels, *window) for f in (box_mean, structure.highest, structure.lowest))
    height, width = size
    for y in range(height):
        rows = torch.arange(y - window[0] // 2, y + window[0] // 2 + 1).clamp(0, height - 1)
        for x in range(width):
            columns = torch.arange(x - window[1] // 2, x + window[1] // 2 + 1).clamp(0, width - 1)
            around = texels[..., rows[:, None], columns].flatten(2)
            assert torch.allclose(means[..., y, x], around.mean(-1), atol=1e-14)
            assert torch.equal(most[..., y, x], around.amax(-1)) and torch.equal(least[..., y, x], around.amin(-1))


@pytest.mark.parametrize("name", CHANNELS)
def test_gradients(name):
    image = torch.rand(1, 3, 9, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: by_name(CHANNELS[name][0], x), image)


def test_bad_input_is_named():
    image = torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"centre_surround: image must be \(B, 3, H, W\), got \(1, 1, 8, 8\)"):
        centre_surround(image[:, :1])
    with pytest.raises(ValueError, match=r"high_pass: image must be \(B, 3, H, W\), got \(3, 8, 8\)"):
        high_pass(image[0], mipmap(image))
    with pytest.raises(ValueError, match=r"high_pass: levels must be \(B, 3, H, W\), got \(1, 3, 4, 4\)"):
        high_pass(image, mipmap(image)[1:])
    with pytest.raises(TypeError, match=r"low_pass: image must be floating point, got torch.uint8"):
        low_pass(image.byte(), mipmap(image))
