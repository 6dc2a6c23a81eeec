"""Schedules and draws are functions of the step alone."""

import pytest
import torch

from texturevlm.train.schedule import draw_examples, generator_at, rate_at


def test_rates():
    assert rate_at(0, steps=100, rate=1.0, warmup=10) == pytest.approx(0.1)
    assert rate_at(9, steps=100, rate=1.0, warmup=10) == pytest.approx(1)
    assert rate_at(55, steps=100, rate=1.0, warmup=10) == pytest.approx(0.5)
    assert rate_at(100, steps=100, rate=1.0) == pytest.approx(0)


def test_random_numbers_of_a_step_are_its_own():
    draws = [torch.rand(3, generator=generator_at(*key)).tolist() for key in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert draws[0] == draws[1] and draws[0] != draws[2] and draws[0] != draws[3]


def test_examples_of_a_step():
    assert draw_examples(10, 8, seed=0, step=15) == draw_examples(10, 8, seed=0, step=15)
    assert draw_examples(10, 8, seed=0, step=15) != draw_examples(10, 8, seed=0, step=16)
    assert set(draw_examples(5, 2000, seed=1, step=3)) == set(range(5))
    assert draw_examples(1000, 4, seed=0, step=0) == [722, 684, 443, 3]  # trained weights rest on these
