"""The spotter and its layers: shapes for any image, and the folded network is the trained one."""

import math

import pytest
import torch
from torch import nn

from tests.conftest import worst
from tests.scout.networks import lively, shipped
from texturevlm.scout.question import letter_codes, letter_features
from texturevlm.scout.spotter import (
    EMBEDDING,
    PIXELS,
    SPOT,
    ConvLayer,
    FoldedConv,
    ResidualBlock,
    Spotter,
    folded,
    input_size,
    keep_page,
)
from texturevlm.text.strings import KINDS


@pytest.mark.parametrize("size", [(1100, 850), (2200, 1700), (4400, 3400), (17, 600), (999, 1001), (601, 333)])
def test_an_image_keeps_its_shape_and_is_not_enlarged_by_more_than_a_spot(size):
    height, width = input_size(size)
    assert height % (2 * SPOT) == 0 and width % (2 * SPOT) == 0
    assert height <= size[0] + SPOT and width <= size[1] + SPOT
    assert height * width <= 1.05 * PIXELS
    scale = min(1, math.sqrt(PIXELS / (size[0] * size[1])))
    assert abs(height - size[0] * scale) <= SPOT and abs(width - size[1] * scale) <= SPOT


@pytest.mark.parametrize(("size", "seen"), [((1, 1), (16, 16)), ((15, 24), (16, 32)), ((2200, 1700), (1104, 848))])
def test_known_sizes(size, seen):
    assert input_size(size) == seen


@pytest.mark.parametrize("size", [(1, 10**6), (10**7, 1), (3, 10**8), (10**6, 10**6), (40, 10**6)])
def test_no_image_costs_more_than_a_page(size):
    height, width = input_size(size)
    assert height >= 16 and width >= 16 and height * width <= 1.3 * PIXELS


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 4)])
def test_a_folded_layer_is_the_layer(stride, dilation):
    layer = lively(ConvLayer(5, 7, stride=stride, dilation=dilation))
    values = torch.randn(2, 5, 12, 17)
    made = layer(values)
    added = torch.randn_like(made)
    small = FoldedConv(layer)
    assert worst(small(values), made) < 1e-5 and worst(small(values, added), layer(values, added)) < 1e-5
    assert made.shape[2:] == (-(-12 // stride), -(-17 // stride)) and made.min() == 0
    assert not any(parameter.requires_grad for parameter in small.parameters())


def test_folding_reaches_every_layer_and_leaves_what_is_given_alone():
    spotter = lively(Spotter())
    image = torch.rand(1, 1, 48, 80)
    before = spotter(image)
    kept = image.clone()
    after = folded(spotter)(image)
    assert not any(isinstance(part, (ConvLayer, nn.BatchNorm2d)) for part in spotter.modules())
    assert all(worst(one, other) < 1e-4 for one, other in zip(after, before)) and torch.equal(image, kept)


def test_a_block_keeps_what_lies_beyond_the_page_empty():
    block = lively(ResidualBlock(6, (1, 2)))
    values, page = torch.rand(2, 6, 8, 10), torch.zeros(2, 1, 8, 10)
    page[:, :, :6, :8] = 1
    made = block(values * page, page)
    assert made[:, :, 6:].eq(0).all() and made[..., 8:].eq(0).all()
    assert worst(made[:, :, :6, :8], block(values[:, :, :6, :8])) < 1e-5
    assert keep_page(values, None) is values


def test_shapes():
    with torch.no_grad():
        spots = lively(Spotter())(torch.rand(2, 1, 32, 80))
    assert spots.words.shape == (2, EMBEDDING, 4, 10) and spots.kinds.shape == (2, len(KINDS), 4, 10)
    assert spots.text.shape == spots.height.shape == (2, 4, 10)
    torch.testing.assert_close(spots.words.norm(dim=1), torch.ones(2, 4, 10))


def test_embeddings_have_length_one_and_near_words_are_near():
    spotter = shipped().spotter
    one, near, other = spotter.embed(letter_features(letter_codes(["invoice", "invoices", "chairman"])))
    assert one.norm().item() == pytest.approx(1, abs=1e-5)
    assert one @ near > 0.3 + one @ other
    hits = spotter.hits(torch.tensor([1.0, 0.0]))
    assert hits[0] > 0 > hits[1]  # the same word is found, another is not
