"""Relaxed cuts of a hierarchy."""

import pytest
import torch

from texturevlm.allocate.quadtree import Forest
from texturevlm_lab.train.soft_cut import generations, relaxed_cut

# Three roots with four children each; the children of the first two have four children each.
PARENT = torch.tensor([-1] * 3 + [0] * 4 + [1] * 4 + [2] * 4 + [node for node in range(3, 11) for _ in range(4)])
LEAVES = 4 + 8 * 4


def gains(seed=0):
    """Random, and no child's is above its parent's: as of masses."""
    found = torch.rand(len(PARENT), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for node in range(3, len(PARENT)):
        found[node] *= found[PARENT[node]]
    return found.log()


def path_sums(weights):
    """The weights from each leaf up to its root."""
    found = []
    for leaf in set(range(len(PARENT))) - set(PARENT.tolist()):
        total, node = 0.0, leaf
        while node >= 0:
            total, node = total + float(weights[node]), int(PARENT[node])
        found.append(total)
    return found


@pytest.mark.parametrize("budget", [4, 9, 20, 35])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_paths_sum_to_one_and_all_to_the_budget(budget, temperature):
    weights = relaxed_cut(gains(), PARENT, budget, temperature)
    assert float(weights.sum()) == pytest.approx(budget, abs=1e-3)
    assert path_sums(weights) == pytest.approx([1.0] * LEAVES) and (weights >= 0).all()


def test_beyond_its_roots_and_leaves_a_cut_is_those():
    assert [len(one) for one in generations(PARENT)] == [3, 12, 32]
    assert relaxed_cut(gains(), PARENT, 2).nonzero()[:, 0].tolist() == [0, 1, 2]
    leaves = relaxed_cut(gains(), PARENT, 99)
    assert int(leaves.sum()) == LEAVES and leaves.unique().tolist() == [0, 1]


def test_sharp_cuts_are_those_of_the_forest():
    """If a split gains the mass of its node: errors are the mass times the generations below."""
    mass = torch.rand(len(PARENT), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    below = torch.zeros(len(PARENT), dtype=torch.float64)
    for nodes in generations(PARENT)[:0:-1]:
        for parent in PARENT[nodes].unique().tolist():
            children = nodes[PARENT[nodes] == parent]
            mass[parent], below[parent] = mass[children].sum(), below[children].max() + 1
    hard = Forest(PARENT.numpy(), torch.ones(len(PARENT)).numpy(), (mass * below).numpy()).cut(12)
    soft = relaxed_cut(mass.log(), PARENT, 12, temperature=1e-4)
    assert (soft > 0.5).nonzero()[:, 0].tolist() == sorted(hard.tolist())


def test_gradients_are_those_of_differences_and_keep_the_budget():
    gain = gains(1).requires_grad_()
    towards = torch.rand(len(PARENT), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda own: (relaxed_cut(own, PARENT, 12) * towards).sum(), gain, eps=1e-3, atol=1e-5
    )
    (grown,) = torch.autograd.grad(relaxed_cut(gain, PARENT, 12).sum(), gain)
    assert grown.abs().max() < 1e-9  # a part of the page can only gain what others lose


@pytest.mark.gpu
def test_a_gpu_cuts_alike():
    gain = gains(2)
    found = relaxed_cut(gain.cuda(), PARENT.cuda(), 12)
    assert torch.allclose(found.cpu(), relaxed_cut(gain, PARENT, 12), atol=1e-9)
