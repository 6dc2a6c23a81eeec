"""saliency: what changes in both directions stands out; edges, gradients and blank pages do not."""

import pytest
import torch

from texturevlm.channels.structure import SALIENCY_REACH, centre_prior, opponents, saliency
from texturevlm.ops import mipmap


def salient(image: torch.Tensor, **options: bool) -> torch.Tensor:
    return saliency(image, mipmap(image), **options)


def blank(height: int = 320, width: int = 480) -> torch.Tensor:
    return torch.full((1, 3, height, width), 0.5)


def test_an_object_stands_out():
    image = blank()
    image[:, :, 100:148, 200:248] = 1.0
    found = salient(image)[0]
    assert found[110:138, 210:238].min() > 0.5
    assert found[250:, :].max() == 0 and found[:, :80].max() == 0


def test_an_edge_does_not_however_strong():
    image = blank()
    image[:, :, :, 236:] = 1.0
    assert salient(image).max() < 1e-4
    ramp = torch.linspace(0, 1, 480).expand(1, 3, 320, 480).contiguous()
    assert salient(ramp).max() < 1e-4


def test_colour_alone_is_enough():
    image = blank()
    image[:, 0, 100:148, 200:248] = 0.75
    image[:, 1, 100:148, 200:248] = 0.25  # the same mean
    assert torch.allclose(opponents(image)[:, 0], opponents(blank())[:, 0])
    assert salient(image)[0, 110:138, 210:238].min() > 0.5


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_image_has_nothing_salient(value):
    assert salient(torch.full((1, 3, 77, 190), value)).max() < 1e-6


def test_faint_noise_is_silent():
    assert salient((128 + torch.randn(1, 3, 256, 256)).round() / 255).max() < 0.01


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (5, 3), (40, 400), (3, 700), (37, 53)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_any_size_stays_within_0_and_1(size, dtype):
    found = salient((torch.rand(2, 3, *size) > 0.5).to(dtype))
    assert found.shape == (2, *size) and found.dtype == dtype
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize("size", [(512, 512), (511, 575), (255, 1023)])
@pytest.mark.parametrize("where", [(0.5, 0.5), (0.0, 0.0), (0.02, 0.97)])
def test_a_pixel_acts_no_further_than_declared(size, where):
    image = torch.rand(1, 3, *size)
    y, x = (int(share * extent) for share, extent in zip(where, size))
    changed = image.clone()
    changed[:, :, y, x] = (changed[:, :, y, x] + 0.5) % 1
    different = (salient(image) != salient(changed))[0].nonzero()
    distance = (different - torch.tensor([y, x])).abs().max()
    assert 0 < distance <= SALIENCY_REACH


def test_the_centre_prior_is_even():
    image = torch.rand(1, 3, 64, 96, dtype=torch.float64)
    prior = centre_prior(image)
    assert torch.allclose(prior, prior.flip(0, 1)) and prior.max() == prior[31:33, 47:49].max()


def test_gradients():
    image = torch.rand(1, 3, 40, 33, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(salient, image, fast_mode=True)


def test_bad_input_is_named():
    image = torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"saliency: image must be \(B, 3, H, W\), got \(3, 8, 8\)"):
        saliency(image[0], mipmap(image))
