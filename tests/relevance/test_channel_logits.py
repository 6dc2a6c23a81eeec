"""The logits of the channel scorer: the kernels against the linear form of the features, in float64."""

import pytest
import torch

from tests.conftest import worst
from texturevlm import Texture
from texturevlm.channels.registry import CHANNELS
from texturevlm.cuda.struct import definitions
from texturevlm.relevance import channel_logits as features
from texturevlm.relevance.channel_logits import IMAGE_KINDS, ChannelForm, channel_logits
from texturevlm.relevance.maps import ImageMaps

SIZES = [((48, 64), (6, 8)), ((70, 37), (9, 5)), ((24, 24), (24, 24)), ((5, 200), (1, 25))]


def random_form() -> ChannelForm:
    form = ChannelForm().requires_grad_(False)
    form.weight.copy_(torch.randn(form.weight.shape))
    form.mean.copy_(torch.rand(form.mean.shape))
    form.spread.copy_(1 + torch.rand(form.spread.shape))
    return form


def random_case(names, size, grid, device="cpu"):
    layers = torch.rand(2, len(names), *size)
    layers[:, names.index(features.REGION_KEY)] = torch.randint(0, 9, (2, *size)).float()
    if features.MOTION_KEY in names:  # of the first image a tenth moves, of the second nearly all
        layers[0, names.index(features.MOTION_KEY)] *= torch.rand(size) < 0.1
    salience = torch.rand(2, *grid) + 0.01
    maps = ImageMaps(
        salience / salience.sum((1, 2), keepdim=True), 0.1 + 100 * torch.rand(2, *grid), torch.rand(2, *grid) < 0.5
    )
    reduce = tuple("nearest" if name == features.REGION_KEY else "mean" for name in names)
    texture = Texture((layers.to(device),), names, reduce=reduce).mipmapped()
    return texture, ImageMaps(*(one.to(device) for one in maps[:3]))


def compare(names, size, grid, device="cpu"):
    layers, maps = random_case(names, size, grid, device)
    form, kind = random_form(), torch.tensor([0, len(IMAGE_KINDS) - 1], device=device)
    got = channel_logits(form, layers, maps, kind, backend="cuda")
    exact = Texture(tuple(level.double() for level in layers.levels), layers.names, reduce=layers.reduce)
    wanted = channel_logits(form.double(), exact, ImageMaps(*(one.double() for one in maps[:2]), maps.ink), kind)
    assert worst(got, wanted) < 2e-4 * wanted.abs().max()


@pytest.mark.parametrize("size, grid", SIZES)
@pytest.mark.parametrize("also", [(), ("gaze",), ("motion", "gaze")])
def test_the_kernels_give_the_logits_of_the_features(emulated, size, grid, also):
    needless = [name for name, channel in CHANNELS.items() if not channel.needs]
    compare((*needless, *also), size, grid)
    assert emulated.launches["channel_sums"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("size, grid", [*SIZES, ((1024, 1024), (64, 64)), ((700, 500), (175, 125))])
def test_the_kernels_on_a_gpu(size, grid):
    compare(tuple(CHANNELS), size, grid, "cuda")


def test_the_kernels_use_the_same_numbers():
    known = definitions("channel_logits.cu").constants
    wanted = {"CONTEXTS": len(features.CONTEXT), "BLOCKS": len(features.BLOCKS), "MAPS": len(features.OF_MAPS)}
    wanted |= {"FLOOR": features.FLOOR, "FINEST_SCALE": features.SCALES[0], "COARSEST_SCALE": features.SCALES[1]}
    wanted |= {"MOVING": features.MOVING, "ALL_MOVES": features.ALL_MOVES}
    assert {name: known[name] for name in wanted} == wanted
