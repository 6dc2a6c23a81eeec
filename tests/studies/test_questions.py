"""The experiments name allocators that exist and options that they take, and whole levels are whole."""

import pytest
import torch

from studies.questions import experiments, main, whole_levels
from texturevlm.allocate import ALLOCATORS
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture


@pytest.fixture(scope="module")
def page():
    image = torch.ones(3, 320, 256)
    for top in range(16, 300, 24):
        image[:, top : top + 10, 16:240] = (torch.arange(224) // 2 % 2).float()
    return Texture.open(image)


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name, one in experiments().items() for variant in one.variants]
)
def test_every_variant_runs(page, name, variant):
    relevance = find_relevance(page, patch=16, relevance="none")
    allocation = experiments()[name].variants[variant](page, relevance, budget=20, patch=16)
    assert 1 <= allocation.valid.sum() <= 20 and allocation.size == page.size


def test_all_but_the_baselines_are_compared():
    assert set(experiments()["allocators"].variants) == set(ALLOCATORS) - {"resize", "grid", "auto", "density"}


def test_whole_levels_are_whole(page):
    relevance = find_relevance(page, patch=16, relevance="none")
    coarsest = whole_levels(page, relevance, budget=20, patch=16).level.max()
    assert coarsest == coarsest.round()


def test_an_unknown_experiment_lists_the_known(tmp_path, capsys):
    assert main([str(tmp_path), "--out", str(tmp_path), "--only", "colours"]) == 2
    assert "--only must be one of allocators, question" in capsys.readouterr().err
