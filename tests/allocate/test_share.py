"""One budget for several images: the sum is kept, bounds hold, and no other split is worth more."""

from functools import partial
from itertools import product

import pytest
import torch

from texturevlm.allocate.layers import layers
from texturevlm.allocate.plain import resize
from texturevlm.allocate.share import Item, as_batch, envelope, hand_out, spend
from texturevlm.allocate.value import expected_value
from texturevlm.relevance import Relevance
from texturevlm.types import Texture


def an_image(
    size: tuple[int, int], legible_scale: float, spread: float = 1.0, seed: int = 0
) -> tuple[Texture, Relevance]:
    """spread: the share of the image, from the top, that holds something."""
    generator = torch.Generator().manual_seed(seed)
    grid = (size[0] // 8, size[1] // 8)
    ink = torch.zeros(1, *grid, dtype=torch.bool)
    ink[:, : max(1, round(spread * grid[0]))] = True
    mass = ink / ink.sum()
    return (
        Texture.open(torch.rand(1, 1, *size, generator=generator)),
        Relevance(mass, torch.full((1, *grid), legible_scale), ink, size),
    )


CARD = an_image((320, 480), legible_scale=4.0, spread=0.2)
PAGE = an_image((640, 480), legible_scale=2.0)


def split(total: int, *, floors=(1, 1), ceilings=(None, None), worths=(1.0, 1.0), **options) -> list[int]:
    """The shares of the card and the page."""
    images = [lambda image=image: image for image in (CARD, PAGE)]
    items = [Item(*item) for item in zip(images, worths, floors, ceilings)]
    return spend(items, budget=total, patch=16, **options)


@pytest.mark.parametrize("total", [2, 3, 17, 64, 200, 501])
def test_the_total_is_kept(total):
    assert sum(split(total)) == total


def test_the_page_gets_more_than_the_card():
    card, page = split(200)
    assert page > 2 * card


def test_floor_and_ceiling_hold():
    assert split(100, floors=(40, 40))[0] >= 40
    assert split(100, ceilings=(60, 60)) == [40, 60]
    assert split(100, floors=(10, 5), ceilings=(20, 30)) == [20, 30]  # less than the total: the ceilings
    assert split(50, floors=(30, 20)) == [30, 20]


def test_a_weight_draws_tokens():
    assert split(60, worths=(50, 1))[0] > split(60)[0]
    # A page of no weight keeps its floor, but tokens that the other has no use for are not thrown away.
    assert sum(split(60, worths=(1, 0), floors=(4, 4))) == 60


def test_allocations_become_one_batch_with_the_slots_of_the_largest():
    images = (
        an_image((320, 480), legible_scale=2.0, seed=1),
        an_image((320, 480), legible_scale=4.0, spread=0.2, seed=2),
    )
    found = [layers(*image, budget=budget, patch=16) for image, budget in zip(images, (30, 10))]
    batch = as_batch(found)
    assert batch.budget == 30 and batch.valid.sum() <= 40
    for index, each in enumerate(found):
        assert torch.equal(batch.boxes[index][batch.valid[index]], each.boxes[0][each.valid[0]])


def test_an_allocator_is_a_name_with_its_options():
    assert split(50, allocator="layers", overview=0.3) == split(50, allocator=partial(layers, overview=0.3))
    with pytest.raises(ValueError, match="spend: allocator must be one of"):
        split(50, allocator="best")


def test_shared_is_worth_no_less_than_the_same_for_each():
    textures, relevances = [CARD[0], PAGE[0]], [CARD[1], PAGE[1]]
    value = {
        name: sum(
            float(expected_value(relevance, resize(texture, relevance, budget=budget, patch=16)))
            for texture, relevance, budget in zip(textures, relevances, budgets)
        )
        for name, budgets in {
            "shared": split(160, allocator=resize),
            "equal": [80, 80],
        }.items()
    }
    assert value["shared"] > value["equal"]


def test_no_other_split_of_concave_curves_is_worth_more():
    generator = torch.Generator().manual_seed(3)
    curves = []
    for _ in range(3):
        gains = torch.rand(7, generator=generator).sort(descending=True).values
        curves.append(list(enumerate([0.0, *gains.cumsum(0).tolist()], 1)))
    for total in range(3, 25):
        budgets = list(hand_out(dict(enumerate(curves)), dict.fromkeys(range(3), 8), total).values())
        best = max(
            sum(curve[k - 1][1] for curve, k in zip(curves, tried))
            for tried in product(range(1, 9), repeat=3)
            if sum(tried) <= total
        )
        assert sum(budgets) == total
        assert sum(curve[k - 1][1] for curve, k in zip(curves, budgets)) == pytest.approx(best)


def test_the_envelope_is_concave_and_above_the_points():
    curve = [(1, 0.0), (2, 0.0), (4, 0.5), (8, 0.4), (16, 0.6)]
    hull = envelope(curve)
    assert hull == [(1, 0.0), (4, 0.5), (16, 0.6)]
