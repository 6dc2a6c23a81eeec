"""auto: one allocator per kind of image, and options that do not depend on the image."""

import pickle
from dataclasses import replace

import pytest
import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.auto import auto
from texturevlm.allocate.density import density
from texturevlm.allocate.layers import layers

KINDS = {"unknown": None, "page": [False], "photograph": [True]}


def of_kind(kind: str, scorer: str = "none"):
    known = KINDS[kind]
    return replace(relevance_at((20, 30)), photograph=None if known is None else torch.tensor(known), scorer=scorer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scorer", ["none", "words"])
def test_options_are_accepted_or_refused_by_name_whatever_is_in_the_image(kind, scorer):
    """Bug 4: `overview` was refused for photographs, `even` for pages."""
    relevance = of_kind(kind, scorer)
    found = auto(photo(), relevance, budget=40, patch=16, overview=0.4, even=1.0)
    wanted = density if kind == "photograph" and scorer == "none" else layers
    options = {"even": 1.0} if wanted is density else {"overview": 0.4}
    assert torch.equal(found.boxes, wanted(photo(), relevance, budget=40, patch=16, **options).boxes)
    with pytest.raises(TypeError, match="auto: options are overview, even, backend, got 'looks'"):
        auto(photo(), relevance, budget=40, looks=3)
    for name, bad in (("overview", 0.0), ("even", 0.0)):
        with pytest.raises(ValueError, match=f"auto: {name} must be above 0"):
            auto(photo(), relevance, budget=40, **{name: bad})


def test_each_image_of_a_mixed_batch_has_its_own():
    both = replace(relevance_at((20, 30), (50, 40)), photograph=torch.tensor([True, False]))
    found = auto(photo(batch=2), both, budget=40, patch=16)
    for image, wanted in enumerate((density, layers)):
        assert torch.equal(found.boxes[image], wanted(photo(batch=2), both, budget=40, patch=16).boxes[image])


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_declares_its_options_and_refuses_others(name):
    one = ALLOCATORS[name]
    assert one.__name__ == name and one.capture in ("always", "kernels", "never") and one.__doc__
    assert pickle.loads(pickle.dumps(one)) is one
    with pytest.raises(TypeError, match=f"{name}: .*got 'nonsense'"):
        one(photo(), relevance_at(), nonsense=1)
    with pytest.raises(ValueError, match=f"{name}: budget must be at least 1, got 0"):
        one(photo(), relevance_at(), budget=0)


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("size", [(1, 1), (333, 7), (90, 100)])
def test_every_allocator_keeps_the_budget_at_any_size(name, size):
    for budget in (1, 6):
        found = ALLOCATORS[name](photo(size, batch=2), relevance_at((0, 0), (0, 0), size=size, cell=4), budget=budget)
        used = found.valid.sum(1)
        assert found.valid.shape == (2, budget) and used.min() >= 1
        assert (found.valid.long().diff() <= 0).all(), "used slots come first"
        assert found.boxes.isfinite().all()
