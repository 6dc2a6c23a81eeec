"""Shares of the children of merged tokens."""

from dataclasses import replace

import pytest
import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.types import Allocation
from texturevlm_lab.allocators.dag import dag
from texturevlm_lab.rivals.hooks.merge import child_shares

RELEVANCE = relevance_at((20, 30))


@pytest.mark.parametrize("patches", [1, 2])
def test_the_children_of_a_patch_share_one_and_legible_tokens_have_none(patches):
    allocation = dag(photo(), RELEVANCE, budget=40, patch=16)
    shares = child_shares(allocation, RELEVANCE, patches)
    assert shares.shape == (1, 40, 2 * patches, 2 * patches) and (shares >= 0).all()
    sums = shares.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2))  # of the four children of each patch
    scale = allocation.ddx[..., 0]
    parents = scale > 2.5  # the legible scale of every cell
    assert 0 < int(parents.sum()) < 40
    assert torch.allclose(sums, parents[..., None, None].float().expand_as(sums), atol=1e-6)


def test_a_child_counts_by_the_mass_of_its_area():
    """A token over one cell of mass, which lies in one of its children; cells are 8 pixels wide, so are children."""
    mass = torch.zeros(1, 80, 60)
    mass[0, 5, 7] = 1.0
    relevance = replace(RELEVANCE, mass=mass)
    token = Allocation.of_boxes(
        torch.tensor([[[48.0, 32.0, 80.0, 64.0]]]), (640, 480), 4
    )  # columns 6 to 9, rows 4 to 7
    (found,) = child_shares(token, relevance, 2)[0]
    assert found[1, 1] > 0.7 and found[:2, :2].sum() == pytest.approx(1)
    assert torch.allclose(found[2:], torch.full((2, 4), 0.25))  # no mass: all alike
    moved = replace(token, centre=token.centre + torch.tensor([4.0, 0.0]))  # the cell is half in each of two children
    (other,) = child_shares(moved, relevance, 2)[0]
    assert other[1, 0] == pytest.approx(float(other[1, 1]), abs=1e-6) and other[1, 0] > 0.35


def test_tokens_at_the_image_s_own_resolution_and_unused_ones_have_no_children():
    native = Allocation.of_boxes(torch.tensor([[[48.0, 32.0, 64.0, 48.0], [0.0, 0.0, 160.0, 160.0]]]), (640, 480), 16)
    tiny = replace(RELEVANCE, legible_scale=torch.full_like(RELEVANCE.legible_scale, 0.01))  # nothing is legible
    assert child_shares(native, tiny, 2)[0].sum((1, 2)).tolist() == pytest.approx([0, 4])
    unused = replace(native, valid=torch.tensor([[True, False]]))
    assert not child_shares(unused, tiny, 2).any()


@pytest.mark.gpu
def test_a_gpu_shares_alike():
    allocation = dag(photo(), RELEVANCE, budget=40, patch=16)
    maps = [getattr(RELEVANCE, name).cuda() for name in ("mass", "legible_scale", "ink")]
    on_gpu = replace(RELEVANCE, mass=maps[0], legible_scale=maps[1], ink=maps[2])
    found = child_shares(allocation.to("cuda"), on_gpu, 2)
    assert torch.allclose(found.cpu(), child_shares(allocation, RELEVANCE, 2), atol=1e-6)
