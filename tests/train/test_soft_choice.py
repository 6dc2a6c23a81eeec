"""Relaxed choices and cuts, drawn choices, and the curriculum: sums, gradients and chances."""

from itertools import permutations

import pytest
import torch

from texturevlm.allocate.quadtree import Forest
from texturevlm_lab.train.fit import draw_questions
from texturevlm_lab.train.soft_choice import (
    draw_top_k,
    generations,
    leave_one_out,
    log_chance,
    relaxed_cut,
    relaxed_top_k,
)

# Three roots with four children each; the children of the first two have four children each.
PARENT = torch.tensor([-1] * 3 + [0] * 4 + [1] * 4 + [2] * 4 + [node for node in range(3, 11) for _ in range(4)])
LEAVES = 4 + 8 * 4


def test_a_relaxed_choice_sums_to_k_and_sharpens():
    scores = torch.randn(50, dtype=torch.float64)
    for temperature in (3.0, 1.0, 0.01):
        weight = relaxed_top_k(scores, 12, temperature)
        assert float(weight.sum()) == pytest.approx(12, abs=1e-6) and weight.min() >= 0 and weight.max() <= 1
    assert set(weight.round().nonzero()[:, 0].tolist()) == set(scores.topk(12).indices.tolist())
    assert torch.equal(relaxed_top_k(scores, 50), torch.ones(50, dtype=torch.float64))


def test_its_gradient_is_that_of_the_whole_choice():
    scores = torch.randn(9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: relaxed_top_k(given, 3, 0.7), [scores], atol=1e-5)
    relaxed_top_k(scores, 3, 0.7).sum().backward()
    assert float(scores.grad.abs().max()) < 1e-6  # the sum cannot change


def test_chances_of_all_orders_sum_to_one_and_draws_follow_them():
    scores = torch.tensor([2.0, 0.0, 1.0, -1.0])
    chance = {order: float(log_chance(scores, torch.tensor(order)).exp()) for order in permutations(range(4), 2)}
    assert sum(chance.values()) == pytest.approx(1, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    drawn = [tuple(draw_top_k(scores, 2, generator=generator).tolist()) for _ in range(4000)]
    for order in ((0, 2), (2, 0), (0, 1)):
        assert drawn.count(order) / 4000 == pytest.approx(chance[order], abs=0.03)
    assert float(log_chance(scores, torch.arange(4))) < 0  # all of them: no one is left


def test_rewards_count_against_the_other_draws():
    assert leave_one_out(torch.tensor([1.0, 0.0, 0.5])).tolist() == pytest.approx([0.75, -0.75, 0.0])
    with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
        leave_one_out(torch.ones(1))


def test_a_curriculum_begins_with_the_first_set():
    early = [one for step in range(5) for one in draw_questions([10, 90], 20, seed=1, step=step, steps=10_000)]
    late = [one for step in range(50) for one in draw_questions([10, 90], 20, seed=1, step=step, steps=1)]
    assert max(early) < 10 and min(late) < 10 and 10 <= max(late) < 100
    assert sum(one < 10 for one in late[20:]) / len(late[20:]) == pytest.approx(0.5, abs=0.08)
    assert draw_questions([5, 5], 4, seed=1, step=3, steps=2) == draw_questions([5, 5], 4, seed=1, step=3, steps=2)


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
