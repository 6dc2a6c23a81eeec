"""The benchmark's pictures are what it says, and the PyTorch that it is compared with does the same work."""

import torch

from tests.conftest import worst
from texturevlm.channels.structure import box_mean, highest, lowest
from texturevlm.ops import mipmap, sample_patches
from texturevlm.placement import choose_tokens
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm_lab.bench.baselines import grid_sampled, plain_cascade, plain_pytorch
from texturevlm_lab.bench.pictures import page, photograph


def test_a_page_is_a_page_and_a_photograph_is_not():
    for make, scene in ((page, False), (photograph, True)):
        for size in ((512, 512), (700, 500)):
            assert find_relevance(Texture.open(make(1, *size)), relevance="none").photograph.item() is scene


def test_a_page_has_words_on_white_paper():
    found = page(1, 700, 500)
    assert found.shape == (1, 3, 700, 500) and float(found.min()) >= 0 and float(found.max()) == 1
    assert 0.05 < float((found < 0.5).float().mean()) < 0.4
    assert float(found[:, :, :58].min()) == 1


def test_plain_pytorch_makes_the_same_tokens():
    texture = Texture.open(photograph(1, 320, 256)).mipmapped()
    wanted = choose_tokens(texture, budget=40, patch=16, allocator="cascade", relevance="none")
    with plain_pytorch(), torch.no_grad():
        tokens, pixels = plain_cascade((320, 256), budget=40, patch=16)(texture.levels[0])
    same = (tokens.centre - wanted.centre).abs().amax(-1).lt(1e-3)
    assert same.float().mean() > 0.9 and pixels.shape == (1, 40, 3, 16, 16)
    off = (pixels - sample(texture, wanted).pixels)[same].abs().mean((1, 2, 3))
    assert off.median() < 0.05  # where a footprint is longer than wide our sampler takes several probes


def test_samples_of_every_level_are_those_of_patches():
    levels = mipmap(torch.rand(1, 3, 70, 90))
    scale, centre = torch.rand(1, 20, 1) * 6 + 0.5, torch.rand(1, 20, 2) * 70
    zero = torch.zeros_like(scale)
    wanted = sample_patches(levels, centre, torch.cat([scale, zero], -1), torch.cat([zero, scale], -1), patch=8)
    for given in (scale, scale.expand(-1, -1, 2)):
        assert worst(grid_sampled(levels, centre, given, 8), wanted) < 1e-4


def test_pooled_windows_are_the_usual_ones():
    texels = torch.rand(2, 3, 20, 31)
    for function in (box_mean, highest, lowest):
        wanted = function(texels, 5, 9)
        with plain_pytorch():
            assert worst(function(texels, 5, 9), wanted) < 1e-6
