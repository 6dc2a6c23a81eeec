"""One budget over items of which few are opened."""

import pytest
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import LEAST, Item, spend
from texturevlm.allocate.value import expected_value
from texturevlm.relevance import Relevance
from texturevlm.types import Texture


def item(worth, opened=None, legible=2.0):
    """An item with its mass on one cell in four; `opened` gets a note when it is opened."""

    def open_it():
        if opened is not None:
            opened.append(worth)
        mass = torch.zeros(1, 32, 32)
        mass[:, ::2, ::2] = 1
        ink = torch.ones(1, 32, 32, dtype=torch.bool)
        relevance = Relevance(mass / mass.sum(), torch.full((1, 32, 32), legible), ink, (256, 256), "scout")
        return Texture(torch.rand(1, 3, 256, 256)).mipmapped(), relevance

    return Item(open_it, worth)


def spent(items, **how):
    """The tokens of the items that get any."""
    return {index: share for index, share in enumerate(spend(items, patch=8, **how)) if share}


def test_tokens_go_to_the_items_of_most_worth_and_never_exceed_the_budget():
    tokens = spent([item(0.05), item(0.6), item(0.0), item(0.3)], budget=100, most=4)
    assert sum(tokens.values()) <= 100
    assert tokens[1] > tokens.get(3, 0) >= tokens.get(0, 0)
    assert min(tokens.values()) >= LEAST


def test_items_that_cannot_win_are_never_opened():
    opened = []
    spent([item(worth, opened) for worth in (1e-9, 0.9, 1e-9, 1e-9, 0.5)], budget=48, most=5)
    assert opened == [0.9, 0.5]


def test_at_most_so_many_are_opened():
    opened = []
    spent([item(worth, opened) for worth in (0.3, 0.2, 0.25, 0.25)], budget=400, most=2)
    assert opened == [0.3, 0.25]


def test_what_few_pages_get_is_worth_as_much_as_the_best_alone():
    items = [item(worth) for worth in (0.02, 0.5, 0.001, 0.2, 0.0005, 0.1)]

    def worth(index, share):
        texture, relevance = items[index].open()
        found = ALLOCATORS["auto"](texture, relevance, budget=share, patch=8)
        return items[index].worth * float(expected_value(relevance, found))

    full = sum(worth(*pair) for pair in spent(items, budget=160, most=6).items())
    assert full >= worth(1, 160) - 1e-6


@pytest.mark.parametrize("budget", [1, 5, 15, 16, 17])
def test_a_small_budget_goes_to_one_item(budget):
    tokens = spent([item(0.4), item(0.6)], budget=budget, most=5)
    assert list(tokens) == [1] and tokens[1] <= budget


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="spend: items must be at least one, got none"):
        spend([], budget=8, most=1)
    with pytest.raises(ValueError, match="spend: most must be at least 1, got 0"):
        spend([item(1.0)], budget=8, most=0)
