"""The benchmark's pictures are what it says, and the PyTorch that it is compared with does the same work."""

import torch

from tests.conftest import worst
from texturevlm.bench.allocate import paper, picture
from texturevlm.bench.baselines import grid_sampled
from texturevlm.bench.vectorised import Vectorised, gathered, plain_pytorch
from texturevlm.channels.structure import box_mean, highest, lowest
from texturevlm.ops import mipmap
from texturevlm.pipeline import choose_tokens
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture


def test_paper_is_a_page_and_a_picture_is_not():
    for make, scene in ((paper, False), (picture, True)):
        for size in ((512, 512), (700, 500)):
            assert find_relevance(Texture.open(make(1, *size)), relevance="none").photograph.item() is scene


def test_plain_pytorch_makes_the_same_tokens():
    image = picture(1, 320, 256)
    wanted = choose_tokens(Texture.open(image), budget=40, patch=16, allocator="cascade", relevance="none")
    with plain_pytorch(), torch.no_grad():
        baseline = Vectorised(image, budget=40, patch=16)
        levels = baseline.shrunk(image)
        half, ink, scene = baseline.informed(levels, baseline.cell)
        tokens = baseline._search(
            baseline.summed(baseline.standing(levels, baseline.cell, half, ink, scene), half, ink)
        )
        assert baseline(image).shape == (1, 40, 3, 16, 16) and baseline.eager == {}
    assert (tokens.centre - wanted.centre).abs().amax(-1).lt(1e-3).float().mean() > 0.9


def test_gathered_samples_are_those_of_every_level():
    levels = mipmap(torch.rand(1, 3, 70, 90))
    scale = torch.rand(1, 20) * 6 + 0.5
    centre, zero = torch.rand(1, 20, 2) * 70, torch.zeros_like(scale)
    got = gathered(levels, centre, torch.stack([scale, zero], -1), torch.stack([zero, scale], -1), 8)
    assert worst(got, grid_sampled(levels, centre, scale, 8)) < 1e-4


def test_pooled_windows_are_the_usual_ones():
    texels = torch.rand(2, 3, 20, 31)
    for function in (box_mean, highest, lowest):
        wanted = function(texels, 5, 9)
        with plain_pytorch():
            assert worst(function(texels, 5, 9), wanted) < 1e-6
