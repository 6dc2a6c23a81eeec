"""Relaxed and drawn choices, and the curriculum: sums, gradients and chances."""

from itertools import permutations

import pytest
import torch

from texturevlm_lab.train.curriculum import draw_questions, set_chances
from texturevlm_lab.train.soft_choice import draw_top_k, leave_one_out, log_chance, relaxed_top_k


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
    assert set_chances(3, 0, 100) == [1, 0, 0]
    assert set_chances(3, 50, 100) == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert set_chances(3, 400, 100) == set_chances(3, 0, 0) == pytest.approx([1 / 3] * 3)
    early = [one for step in range(5) for one in draw_questions([10, 90], 20, seed=1, step=step, steps=10_000)]
    late = [one for step in range(50) for one in draw_questions([10, 90], 20, seed=1, step=step, steps=1)]
    assert max(early) < 10 and min(late) < 10 and 10 <= max(late) < 100
    assert sum(one < 10 for one in late[20:]) / len(late[20:]) == pytest.approx(0.5, abs=0.08)
    assert draw_questions([5, 5], 4, seed=1, step=3, steps=2) == draw_questions([5, 5], 4, seed=1, step=3, steps=2)
