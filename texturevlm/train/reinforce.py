"""REINFORCE: learning from rewards that have no gradient (an answer right or wrong, a word read or not).

Tokens are drawn without replacement by Gumbel top-K, whose log-probability is known in order (Plackett and Luce), and
scores move towards what was rewarded more than a baseline. The baseline changes no expectation, only the noise: what
the other draws for the same image got, or a moving average where one draw is all that can be afforded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from texturevlm.check import check_count, check_shapes
from texturevlm.train.relax import gumbel_noise


def draw(scores: Tensor, k: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """K different candidates, drawn one after the other in proportion to exp(score).

    scores:  (B, N)
    returns  their indices (B, K), in the order drawn, and the log-probability (B,) of that, differentiable in scores
    """
    sizes = check_shapes("draw", scores=(scores, "B N"))
    check_count("draw", "k", k, 1, sizes["N"])
    noisy = scores.detach() + gumbel_noise(scores.detach(), generator)
    order = noisy.sort(dim=1, descending=True).indices
    return order[:, :k], log_probability(scores, order)[:, :k].sum(1)


def log_probability(scores: Tensor, order: Tensor) -> Tensor:
    """(B, N): of each candidate of an order (B, N) being the next, given those before it."""
    ordered = scores.gather(1, order)
    remaining = ordered.flip(1).logcumsumexp(1).flip(1)
    return ordered - remaining


def leave_one_out(rewards: Tensor) -> Tensor:
    """(S, B) rewards of S draws for each image → (S, B): the mean of the other draws."""
    check_shapes("leave_one_out", rewards=(rewards, "S B"))
    if len(rewards) < 2:
        raise ValueError(f"leave_one_out: rewards must be of two draws or more, got {len(rewards)}")
    return (rewards.sum(0) - rewards) / (len(rewards) - 1)


class MovingAverage(nn.Module):
    """A baseline that follows the mean reward; part of a checkpoint like any module."""

    value: Tensor
    seen: Tensor

    def __init__(self, *, keep: float = 0.95) -> None:
        super().__init__()
        if not 0 <= keep < 1:
            raise ValueError(f"MovingAverage: keep must be from 0 to below 1, got {keep!r}")
        self.keep = keep
        self.register_buffer("value", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rewards: Tensor) -> Tensor:
        """What was expected before these rewards (any shape); then it moves towards them."""
        expected = self.value / self.seen.clamp(min=1e-9)
        with torch.no_grad():
            self.value.mul_(self.keep).add_(rewards.mean() * (1 - self.keep))
            self.seen.mul_(self.keep).add_(1 - self.keep)
        return expected.expand_as(rewards)


def reinforce(log_probability: Tensor, rewards: Tensor, baseline: Tensor) -> Tensor:
    """The number whose gradient is, up to sign, that of the expected reward; all three of one shape."""
    if not log_probability.shape == rewards.shape == baseline.shape:
        shapes = [tuple(part.shape) for part in (log_probability, rewards, baseline)]
        raise ValueError(f"reinforce: log_probability, rewards and baseline must be of one shape, got {shapes}")
    return -((rewards - baseline).detach() * log_probability).mean()
