import pytest
import torch

from texturevlm.video import Rate


def test_spending_never_exceeds_what_flowed_in():
    rate, random = Rate(30.0, 10), torch.Generator().manual_seed(0)
    spent = []
    for _ in range(200):
        rate.wait(0.1)
        need = torch.rand(10, generator=random) < 0.7
        spent.append(int(rate.pay(need, need, torch.rand(10, generator=random), cut=False).sum()))
    for first in range(200):
        assert sum(spent[first : first + 50]) <= rate.burst + 30 * 0.1 * 50


def test_the_reserve_is_for_cuts():
    rate = Rate(1.0, 10)
    everything = torch.ones(20, dtype=torch.bool)
    assert int(rate.pay(everything, ~everything, torch.zeros(20), cut=False).sum()) == 10
    assert rate.affordable(cut=False) == 0 and rate.affordable(cut=True) == 10


def test_new_tokens_come_first_and_then_the_best():
    rate = Rate(1.0, 2)
    rate.saved = 5.0
    need = torch.tensor([True, True, True, True, False])
    new = torch.tensor([False, False, True, False, True])
    paid = rate.pay(need, new, torch.tensor([0.1, 0.9, 0.0, 0.5, 1.0]), cut=False)
    assert paid.tolist() == [False, True, True, True, False]
    assert rate.pay(need, new, torch.zeros(5), cut=False).sum() == 0


def test_time_that_runs_backwards_brings_nothing():
    rate = Rate(10.0, 5)
    rate.pay(torch.ones(5, dtype=torch.bool), torch.zeros(5), torch.zeros(5), cut=True)
    before = rate.saved
    rate.wait(-3.0)
    assert rate.saved == before


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_must_be_a_number_above_0(bad):
    with pytest.raises(ValueError, match="Rate: per_second must be above 0"):
        Rate(bad, 10)
