"""Relaxed top-K: the sum is K, gradients are exact, and temperature zero is the hard choice."""

import pytest
import torch
from studies.relax import RELAXATIONS, WAYS, gumbel_noise, hard_top_k, relaxed_top_k, sigmoid, sinkhorn

SMOOTH = [way for way in RELAXATIONS if way != "straight"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [3.0, 0.3, 0.003])
def test_memberships_are_shares_that_sum_to_k(way, temperature):
    scores = torch.randn(5, 40) * 2
    found = relaxed_top_k(scores, 7, way=way, temperature=temperature)
    assert found.min() >= 0 and found.max() <= 1
    torch.testing.assert_close(found.sum(1), torch.full((5,), 7.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("k", [0, 12])
def test_none_and_all(way, k):
    scores = torch.randn(2, 12, requires_grad=True)
    found = relaxed_top_k(scores, k, way=way, temperature=0.5)
    torch.testing.assert_close(found, torch.full((2, 12), float(k > 0)), atol=1e-6, rtol=0)
    found.square().sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("way", SMOOTH)
@pytest.mark.parametrize("k", [1, 4, 6.5])
def test_gradients_are_exact(way, k):
    scores = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda s: relaxed_top_k(s, k, way=way, temperature=0.7), scores)


def test_straight_and_gumbel_have_the_gradient_of_the_sigmoid():
    scores = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(2, 9, dtype=torch.float64)
    (soft,) = torch.autograd.grad((sigmoid(scores, 3, 0.5) * towards).sum(), scores)
    (straight,) = torch.autograd.grad(
        (relaxed_top_k(scores, 3, way="straight", temperature=0.5) * towards).sum(), scores
    )
    torch.testing.assert_close(straight, soft)
    noise = gumbel_noise(scores, torch.Generator().manual_seed(3)) * 0.5
    (soft,) = torch.autograd.grad((sigmoid(scores + noise, 3, 0.5) * towards).sum(), scores)
    again = relaxed_top_k(scores, 3, way="gumbel", temperature=0.5, generator=torch.Generator().manual_seed(3))
    (noisy,) = torch.autograd.grad((again * towards).sum(), scores)
    torch.testing.assert_close(noisy, soft)


@pytest.mark.parametrize("way", WAYS)
def test_temperature_zero_is_the_hard_choice(way):
    scores = torch.randn(4, 30, dtype=torch.float64)
    found = relaxed_top_k(scores, 5, way=way, temperature=1e-6)
    torch.testing.assert_close(found, hard_top_k(scores, 5).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 5.0])
def test_transport_to_two_bins_is_the_sigmoid(temperature):
    scores = torch.randn(3, 50, dtype=torch.float64)
    found, same = (way(scores, 11, temperature) for way in (sinkhorn, sigmoid))
    torch.testing.assert_close(found, same, atol=1e-6, rtol=0)


def test_sparse_leaves_far_candidates_out_altogether():
    scores = torch.linspace(-5, 5, 21)[None].requires_grad_()
    found = relaxed_top_k(scores, 5, way="sparse", temperature=1.0)
    assert (found[0, :10] == 0).all() and (found[0, -3:] == 1).all()
    (gradient,) = torch.autograd.grad((found * torch.arange(21.0)).sum(), scores)
    assert (gradient[0, :10] == 0).all() and gradient.abs().max() > 0


@pytest.mark.parametrize("way", WAYS)
def test_a_candidate_at_minus_infinity_stays_out_and_makes_no_nan(way):
    scores = torch.randn(2, 8)
    scores[:, 3] = -torch.inf
    scores.requires_grad_()
    found = relaxed_top_k(scores, 3, way=way, temperature=0.5)
    (found * torch.randn(2, 8)).sum().backward()
    assert (found[:, 3] == 0).all() and scores.grad.isfinite().all() and (scores.grad[:, 3] == 0).all()


def test_gumbel_samples_in_proportion():
    scores = torch.tensor([0.7, 0.2, 0.1]).log().expand(4000, 3)
    found = relaxed_top_k(scores, 1, way="gumbel", temperature=1.0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.mean(0), torch.tensor([0.7, 0.2, 0.1]), atol=0.03, rtol=0)


def test_complaints():
    with pytest.raises(ValueError, match="k must be between 0 and 4"):
        relaxed_top_k(torch.zeros(1, 4), 5)
    with pytest.raises(ValueError, match="way must be one of sigmoid, sinkhorn, sparse, straight, gumbel, got 'soft'"):
        relaxed_top_k(torch.zeros(1, 4), 2, way="soft")
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        relaxed_top_k(torch.zeros(1, 4), 2, temperature=0.0)
