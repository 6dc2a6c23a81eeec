"""Soft tokens: weights sum to the budget, gradients are exact, and temperature zero is the hard choice."""

import pytest
import torch

from texturevlm_lab.evaluate.objects import painted
from texturevlm_lab.studies.soft_tokens import (
    RELAXATIONS,
    Lattice,
    box_shares,
    covered,
    gumbel_noise,
    hard_top_k,
    relaxed_top_k,
    sigmoid,
    sinkhorn,
    soft_iou,
    soften,
)

SMOOTH = ("sigmoid", "sinkhorn", "sparse")
SIZE = (64, 96)
BOXES = [(8.0, 8.0, 40.0, 30.0), (30.0, 20.0, 90.0, 60.0)]


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("temperature", [3.0, 0.3, 0.003])
def test_memberships_are_shares_that_sum_to_k(relaxation, temperature):
    scores = torch.randn(5, 40) * 2
    found = relaxed_top_k(scores, 7, relaxation=relaxation, temperature=temperature)
    assert found.min() >= 0 and found.max() <= 1
    torch.testing.assert_close(found.sum(1), torch.full((5,), 7.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("k", [0, 12])
def test_none_and_all(relaxation, k):
    scores = torch.randn(2, 12, requires_grad=True)
    found = relaxed_top_k(scores, k, relaxation=relaxation, temperature=0.5)
    torch.testing.assert_close(found, torch.full((2, 12), float(k > 0)), atol=1e-6, rtol=0)
    found.square().sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("relaxation", SMOOTH)
@pytest.mark.parametrize("k", [1, 4, 6.5])
def test_gradients_are_exact(relaxation, k):
    scores = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda s: relaxed_top_k(s, k, relaxation=relaxation, temperature=0.7), scores)


def test_straight_and_gumbel_have_the_gradient_of_the_sigmoid():
    scores = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(2, 9, dtype=torch.float64)
    (soft,) = torch.autograd.grad((sigmoid(scores, 3, 0.5) * towards).sum(), scores)
    (straight,) = torch.autograd.grad(
        (relaxed_top_k(scores, 3, relaxation="straight", temperature=0.5) * towards).sum(), scores
    )
    torch.testing.assert_close(straight, soft)
    noise = gumbel_noise(scores, torch.Generator().manual_seed(3)) * 0.5
    (soft,) = torch.autograd.grad((sigmoid(scores + noise, 3, 0.5) * towards).sum(), scores)
    again = relaxed_top_k(scores, 3, relaxation="gumbel", temperature=0.5, generator=torch.Generator().manual_seed(3))
    (noisy,) = torch.autograd.grad((again * towards).sum(), scores)
    torch.testing.assert_close(noisy, soft)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_temperature_zero_is_the_hard_choice(relaxation):
    scores = torch.randn(4, 30, dtype=torch.float64)
    found = relaxed_top_k(scores, 5, relaxation=relaxation, temperature=1e-6)
    torch.testing.assert_close(found, hard_top_k(scores, 5).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 5.0])
def test_transport_to_two_bins_is_the_sigmoid(temperature):
    scores = torch.randn(3, 50, dtype=torch.float64)
    found, same = (way(scores, 11, temperature) for way in (sinkhorn, sigmoid))
    torch.testing.assert_close(found, same, atol=1e-6, rtol=0)


def test_sparse_leaves_far_candidates_out_altogether():
    scores = torch.linspace(-5, 5, 21)[None].requires_grad_()
    found = relaxed_top_k(scores, 5, relaxation="sparse", temperature=1.0)
    assert (found[0, :10] == 0).all() and (found[0, -3:] == 1).all()
    (gradient,) = torch.autograd.grad((found * torch.arange(21.0)).sum(), scores)
    assert (gradient[0, :10] == 0).all() and gradient.abs().max() > 0


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_a_candidate_at_minus_infinity_stays_out_and_makes_no_nan(relaxation):
    scores = torch.randn(2, 8)
    scores[:, 3] = -torch.inf
    scores.requires_grad_()
    found = relaxed_top_k(scores, 3, relaxation=relaxation, temperature=0.5)
    (found * torch.randn(2, 8)).sum().backward()
    assert (found[:, 3] == 0).all() and scores.grad.isfinite().all() and (scores.grad[:, 3] == 0).all()


def test_gumbel_samples_in_proportion():
    scores = torch.tensor([0.7, 0.2, 0.1]).log().expand(4000, 3)
    found = relaxed_top_k(scores, 1, relaxation="gumbel", temperature=1.0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.mean(0), torch.tensor([0.7, 0.2, 0.1]), atol=0.03, rtol=0)


def test_complaints():
    names = "sigmoid, sinkhorn, sparse, straight, gumbel"
    with pytest.raises(ValueError, match="k must be between 0 and 4"):
        relaxed_top_k(torch.zeros(1, 4), 5)
    with pytest.raises(ValueError, match=f"relaxation must be one of {names}, got 'soft'"):
        relaxed_top_k(torch.zeros(1, 4), 2, relaxation="soft")
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        relaxed_top_k(torch.zeros(1, 4), 2, temperature=0.0)


def lattice(sides=(32.0, 16.0, 8.0)):
    return Lattice.of(SIZE, sides)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_soft_tokens_at_temperature_zero_are_the_hard_ones(relaxation):
    scores, zoom = torch.randn(2, 126), torch.randn(2, 126)
    tokens = soften(lattice(), scores, 24, relaxation=relaxation, temperature=1e-6, zoom=zoom)
    hard = lattice().best(scores, 24, zoom)
    used = [sorted(map(tuple, tokens.boxes[image][tokens.weight[image] > 0.5].tolist())) for image in range(2)]
    assert used == [sorted(map(tuple, hard[image].tolist())) for image in range(2)]


def test_overlap_of_hard_tokens_is_the_overlap_of_pixels():
    own, scores = lattice((16.0, 8.0)), torch.randn(1, 120)
    tokens = soften(own, scores, 20, temperature=1e-6)
    objects = box_shares(BOXES, SIZE, SIZE)
    cover, there = painted(own.best(scores, 20)[0].tolist(), SIZE), painted(BOXES, SIZE)
    exact = (cover & there).sum() / (cover | there).sum()
    assert soft_iou(covered(tokens, SIZE), objects[None]).item() == pytest.approx(exact.item(), abs=1e-3)


def test_gradients_move_scores_and_sizes_onto_objects():
    objects = box_shares(BOXES, SIZE, (16, 24))[None]
    scores = torch.zeros(1, 96, requires_grad=True)
    zoom = torch.zeros(1, 96, requires_grad=True)
    optimiser = torch.optim.Adam([scores, zoom], lr=0.1)
    losses = []
    for _ in range(60):
        tokens = soften(lattice((8.0,)), scores, 40, zoom=zoom)
        loss = 1 - soft_iou(covered(tokens, (16, 24)), objects).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    assert (scores.grad != 0).all() and (zoom.grad != 0).any()


def test_cover_is_what_every_footprint_leaves():
    """Against the product over all footprints and cells, enlarged, some over the border; with gradients."""
    own = lattice((32.0, 8.0))
    scores, zoom = (torch.randn(2, 102, dtype=torch.float64).requires_grad_() for _ in range(2))
    tokens = soften(own, scores, 20, zoom=zoom)
    found = covered(tokens, (7, 11))
    edges = [torch.arange(count + 1, dtype=torch.float64) * (side / count) for count, side in ((7, 64), (11, 96))]
    shares = []
    for axis, edge in ((1, edges[0]), (0, edges[1])):
        low, high = tokens.boxes[..., axis, None], tokens.boxes[..., axis + 2, None]
        inside = torch.minimum(high, edge[1:]) - torch.maximum(low, edge[:-1])
        shares.append(inside.clamp(min=0) / (edge[1] - edge[0]))
    inside = shares[0][..., :, None] * shares[1][..., None, :]
    every = 1 - (1 - tokens.weight[..., None, None] * inside).prod(1)
    torch.testing.assert_close(found, every, atol=1e-3, rtol=0)
    towards = torch.randn_like(found)
    for one in (scores, zoom):
        mine, exact = (torch.autograd.grad((m * towards).sum(), one, retain_graph=True)[0] for m in (found, every))
        torch.testing.assert_close(mine, exact, atol=2e-2, rtol=1e-2)


def test_soften_complains():
    with pytest.raises(ValueError, match=r"scores must be \(B, N\), got \(1, 3\) \(N=126 from centre\)"):
        soften(lattice(), torch.zeros(1, 3), 24)
