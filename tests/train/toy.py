"""A task that needs no data: a small network with dropout learns a fixed function. Run as a program, it can be killed.

python -m tests.train.toy OUT KILL_AT
"""

import os
import signal
import sys
from dataclasses import dataclass

import torch
from torch import nn

from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit, generator_at

CONFIG = FitConfig(steps=60, rate=0.02, warmup=5, save_every=20, evaluate_every=20, log_every=1, clip=1.0)


class Toy:
    @dataclass(frozen=True)
    class Settings:
        width: int = 8

    def __init__(self, settings=None, *, device="cpu", kill_at=None):
        settings = settings or self.Settings()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.module = nn.Sequential(
                nn.Linear(3, settings.width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(settings.width, 1)
            )
        self.kill_at = kill_at

    def batch(self, step):
        x = torch.randn(16, 3, generator=generator_at(5, step))
        return x, x.sum(1, keepdim=True).sin()

    def losses(self, batch, step):
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch
        found = self.module(x)
        return {"square": (found - y).square().mean(), "length": found.abs().mean() * 0.01}

    def evaluate(self):
        x = torch.randn(64, 3)  # of random numbers that training must not feel
        return {"error": (self.module(x) - x.sum(1, keepdim=True).sin()).square().mean().item()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit(Toy(kill_at=int(sys.argv[2])), CONFIG, sys.argv[1])
