"""REINFORCE: an unbiased gradient, and a known reward that grows."""

from itertools import permutations

import pytest
import torch

from texturevlm.train.reinforce import MovingAverage, draw, leave_one_out, log_probability, reinforce


def test_probabilities_of_all_orders_add_up():
    scores = torch.randn(4, dtype=torch.float64)
    orders = torch.tensor(list(permutations(range(4))))
    chances = log_probability(scores.expand(24, 4), orders).sum(1).exp()
    assert chances.sum().item() == pytest.approx(1)
    first = torch.stack([chances[orders[:, 0] == one].sum() for one in range(4)])
    torch.testing.assert_close(first, scores.softmax(0))


def test_the_gradient_is_that_of_the_expected_reward():
    scores = torch.randn(4, dtype=torch.float64, requires_grad=True)
    worth = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
    orders = torch.tensor(list(permutations(range(4))))
    rewards = worth[orders[:, 0]] * worth[orders[:, 1]]  # of two that are drawn
    chances = log_probability(scores.expand(24, 4), orders).sum(1).exp()
    (exact,) = torch.autograd.grad((chances * rewards).sum(), scores)
    found, log = draw(scores.expand(40_000, 4), 2, generator=torch.Generator().manual_seed(0))
    got = worth[found[:, 0]] * worth[found[:, 1]]
    for baseline in (torch.zeros_like(got), leave_one_out(got[:, None])[:, 0]):
        (estimate,) = torch.autograd.grad(-reinforce(log, got, baseline), scores, retain_graph=True)
        torch.testing.assert_close(estimate, exact, atol=0.15, rtol=0)


@pytest.mark.parametrize("baseline", ["leave one out", "moving average"])
def test_a_known_reward_grows(baseline):
    worth = torch.zeros(20)
    worth[[2, 11, 17]] = 1
    scores = torch.zeros(1, 20, requires_grad=True)
    optimiser = torch.optim.Adam([scores], lr=0.1)
    average, generator = MovingAverage(), torch.Generator().manual_seed(1)
    curve = []
    for _ in range(150):
        found, log = draw(scores.expand(8, 20), 3, generator=generator)
        rewards = worth[found].mean(1)
        expected = leave_one_out(rewards[:, None])[:, 0] if baseline == "leave one out" else average(rewards)
        optimiser.zero_grad()
        reinforce(log, rewards, expected).backward()
        optimiser.step()
        curve.append(rewards.mean().item())
    assert sum(curve[:10]) / 10 < 0.35 and sum(curve[-10:]) / 10 > 0.8


def test_the_moving_average_expects_what_came_and_is_kept_in_checkpoints():
    average = MovingAverage(keep=0.5)
    assert average(torch.tensor([4.0])).item() == 0
    assert average(torch.tensor([4.0])).item() == pytest.approx(4)
    again = MovingAverage(keep=0.5)
    again.load_state_dict(average.state_dict())
    assert again(torch.zeros(2)).tolist() == pytest.approx([4, 4])


def test_complaints():
    with pytest.raises(ValueError, match="two draws or more"):
        leave_one_out(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="of one shape"):
        reinforce(torch.zeros(2), torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="k must be between 1 and 4"):
        draw(torch.zeros(1, 4), 5)
