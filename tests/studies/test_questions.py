"""The experiments name allocators that exist and options that they take, and whole levels are whole."""

import pytest
import torch

from tests.allocate.test_cascade import relevance_of
from texturevlm.allocate import ALLOCATORS
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture
from texturevlm_lab.studies.questions import (
    clustered,
    culled,
    experiments,
    in_best_clusters,
    main,
    near_relevant,
    whole_levels,
)


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


def test_clusters_are_scored_first():
    texture = Texture.open(torch.rand(3, 4, 4).repeat_interleave(100, 1).repeat_interleave(100, 2))
    relevance = relevance_of((400, 400), at=(20, 20))
    kept = in_best_clusters(texture, relevance)
    assert 0.1 < kept.float().mean() < 0.5 and (relevance.mass * kept).sum() > 0.9
    found = clustered(texture, relevance, budget=50, patch=16)
    assert found.coverage.item() == 1
    outside = ALLOCATORS["cascade"](texture, relevance_of((400, 400)), budget=50, patch=16)
    assert found.level.min() <= outside.level.min()


def test_culling_leaves_what_is_far_from_relevant_coarse():
    relevance = relevance_of((800, 800), at=(20, 20))
    near = near_relevant(relevance, 60)
    assert near[0, 20, 20] and not near[0, 190, 20]
    found = culled(Texture.open(torch.zeros(3, 800, 800)), relevance, budget=64, patch=16, reach=60)
    fine = found.centre[0][found.valid[0] & (found.level[0] < found.level[0].max() - 0.5)]
    assert (fine[:, 1] < 500).all() and found.coverage.item() == 1


def test_an_unknown_experiment_lists_the_known(tmp_path, capsys):
    assert main([str(tmp_path), "--out", str(tmp_path), "--only", "colours"]) == 2
    assert "--only must be one of allocators, question" in capsys.readouterr().err
