"""The question's picture: the close-up lies where it matters, the heat is where the mass is."""

import numpy as np
import pytest
import torch
from PIL import Image

from texturevlm import draw
from texturevlm.draw import PANEL, heat, question_picture, stacked, weightiest
from texturevlm.placement import choose_tokens
from texturevlm.rebuilding import resized
from texturevlm.relevance import Relevance
from texturevlm.types import Texture


def relevance(size, cell, spot):
    """All mass in one cell (row, column)."""
    mass = torch.zeros(1, size[0] // cell, size[1] // cell)
    mass[0, spot[0], spot[1]] = 1
    return Relevance(mass, torch.ones_like(mass), torch.ones_like(mass, dtype=torch.bool), size)


def test_heat_is_darkest_and_reddest_where_the_mass_is():
    picture = np.asarray(heat(Image.new("RGB", (80, 60), "white"), relevance((60, 80), 10, (4, 1)))).astype(int)
    assert np.unravel_index(picture.sum(-1).argmin(), (60, 80)) == pytest.approx((44.5, 14.5), abs=1)
    assert (picture[5, 70] == 255).all()


def test_heat_of_nothing_is_the_image_faded():
    nothing = relevance((60, 80), 10, (0, 0))
    nothing.mass.zero_()
    assert np.asarray(heat(Image.new("RGB", (80, 60), "white"), nothing)).min() == 255


@pytest.mark.parametrize("spot", [(0, 0), (5, 7), (59, 79)])
def test_the_close_up_lies_where_the_mass_is(spot):
    x, y = weightiest(relevance((600, 800), 10, spot), (200, 100))
    assert abs(x - spot[1] * 10 - 5) <= 105 and abs(y - spot[0] * 10 - 5) <= 55


@pytest.mark.parametrize("size", [(40, 300), (300, 40), (1, 1)])
def test_a_picture_of_any_shape(size):
    texture = Texture.open(torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))).mipmapped()
    maps = Relevance(torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool), size)
    allocation = choose_tokens(texture, budget=6, relevance=maps, allocator="resize")
    plain, asked = (question_picture(texture, allocation, maps, text) for text in ("", "why? " * 200))
    assert plain.width == asked.width > 3 * PANEL and asked.height > plain.height
    assert asked.width * asked.height < 16_000_000


def test_a_relevance_of_any_scorer_can_be_drawn():
    texture = Texture.open(torch.rand(1, 3, 60, 80, generator=torch.Generator().manual_seed(0))).mipmapped()
    one = torch.ones(1, 1, 1)
    for scorer in ("none", "scout", "somebody's own"):
        maps = Relevance(one, one, one.bool(), (60, 80), scorer)
        allocation = choose_tokens(texture, budget=6, relevance=maps, allocator="resize")
        assert question_picture(texture, allocation, maps).width > 3 * PANEL


def test_stacked_pictures_stand_below_one_another():
    both = stacked([Image.new("RGB", (30, 10), "red"), Image.new("RGB", (20, 5), "blue")])
    assert both.size == (30, 15) and both.getpixel((0, 12)) == (0, 0, 255)


def test_only_the_close_up_of_the_plain_resize_is_made(monkeypatch):
    """And it is that of the whole one."""
    texture = Texture.open(torch.rand(3, 600, 900, generator=torch.Generator().manual_seed(0)))
    allocation, made = choose_tokens(texture, budget=20, relevance="none"), []
    monkeypatch.setattr(
        draw, "resized", lambda *given, **how: made.append((how, resized(*given, **how))) or made[-1][1]
    )
    question_picture(texture, allocation, relevance((600, 900), 10, (40, 20)))
    ((how, part),) = made
    left, top, right, bottom = how.pop("box")
    assert (right - left) * (bottom - top) < 600 * 900 / 4 and left < 205 < right and top < 405 < bottom
    assert (resized(texture, **how)[..., top:bottom, left:right] - part).abs().max() < 1e-5
