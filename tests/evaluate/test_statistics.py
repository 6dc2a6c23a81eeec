"""The bootstrap: known answers, coverage, seeds."""

import numpy as np
import pytest

from texturevlm_lab.evaluate import statistics
from texturevlm_lab.evaluate.statistics import paired_difference, pooled_ratio


def test_pairing_removes_what_both_share():
    generator = np.random.default_rng(1)
    shared = generator.normal(0, 10, 400)
    mean, low, high = paired_difference(shared + 0.5 + generator.normal(0, 0.1, 400), shared)
    assert mean == pytest.approx(0.5, abs=0.02) and 0.48 < low < mean < high < 0.52


def test_the_interval_is_that_of_the_normal_approximation():
    ours = np.random.default_rng(2).normal(0, 1, 900)
    mean, low, high = paired_difference(ours, np.zeros(900))
    half = 1.96 * ours.std() / 30
    assert low == pytest.approx(mean - half, abs=0.1 * half) and high == pytest.approx(mean + half, abs=0.1 * half)


def test_it_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        sample = generator.random(60)
        _, low, high = paired_difference(sample, np.full(60, 0.5), resamples=500)
        inside += low <= 0 <= high
    assert 0.89 <= inside / 200 <= 0.99


def test_no_difference_and_the_same_twice():
    assert paired_difference([1, 0, 1], [1, 0, 1]) == (0, 0, 0)
    values, zeros = np.random.default_rng(5).random(40), np.zeros(40)
    assert paired_difference(values, zeros) == paired_difference(values, zeros)


def test_many_questions_are_drawn_in_parts(monkeypatch):
    values = np.random.default_rng(4).random(50)
    monkeypatch.setattr(statistics, "_CHUNK", 120)
    mean, low, high = paired_difference(values, np.zeros(50), resamples=999)
    assert low < mean < high


def test_a_ratio_is_pooled():
    mean, low, high = pooled_ratio([0.5, 0.0, 1.0], [0.25, 0.25, 0.25])
    assert mean == pytest.approx(2) and low < 2 < high
    assert pooled_ratio([0.3, 0.6], [0.1, 0.2]) == pytest.approx((3, 3, 3))


def test_pages_are_resampled_whole():
    """Page a has three questions that differ by 1, page b has one that does not differ.

    Pages: aa, ab or ba, bb give 1, 3/4, 0 with probability 1/4, 1/2, 1/4: the interval is 0 to 1. Questions: four draws
    give 0 with probability 1/256 and at most 1/4 with 13/256 > 2.5%: the interval is 1/4 to 1.
    """
    ours, theirs = [1, 1, 0, 1], [0, 0, 0, 0]
    assert paired_difference(ours, theirs, groups=["a", "a", "b", "a"]) == (0.75, 0, 1)
    assert paired_difference(ours, theirs) == (0.75, 0.25, 1)


def test_copies_of_a_question_do_not_narrow_the_interval():
    values = np.random.default_rng(6).normal(0, 1, 40)
    one = paired_difference(values, np.zeros(40))
    copies, pages = np.repeat(values, 9), np.repeat(np.arange(40), 9)
    assert paired_difference(copies, np.zeros(360), groups=pages) == pytest.approx(one)
    _, low, high = paired_difference(copies, np.zeros(360))
    assert high - low == pytest.approx((one.high - one.low) / 3, rel=0.1)


def test_groups_of_one_question_are_questions():
    values = np.random.default_rng(7).random(30)
    assert paired_difference(values, np.zeros(30), groups=range(30)) == paired_difference(values, np.zeros(30))


def test_every_question_has_a_group():
    with pytest.raises(ValueError, match="paired_difference: groups must have one entry per question, got 1 for 2"):
        paired_difference([1, 2], [0, 0], groups=["a"])


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1], [1, 2])])
def test_lengths_must_agree(ours, theirs):
    with pytest.raises(ValueError, match="paired_difference: ours and theirs must have the same length"):
        paired_difference(ours, theirs)
    with pytest.raises(ValueError, match="must be finite"):
        paired_difference([float("nan")], [0])
