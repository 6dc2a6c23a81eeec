"""What a table says about whether training helped."""

import pytest

from texturevlm_lab.train.gains import Gain, gains_table

PAGES = [str(number // 2) for number in range(8)]


@pytest.mark.parametrize(
    "after, low_is_good, verdict",
    [
        ([0.6] * 8, False, "helped"),
        ([0.6] * 8, True, "did harm"),
        ([0.4] * 8, True, "helped"),
        ([0.4] * 8, False, "did harm"),
        ([0.6, 0.4] * 4, False, "did not help"),
        ([0.9, 0.9, 0.1, 0.1] * 2, True, "did not help"),
    ],
)
def test_a_verdict_is_the_interval_s(after, low_is_good, verdict):
    assert Gain("x", [0.5] * 8, after, PAGES, low_is_good).verdict == verdict


def test_lines_have_means_counts_and_the_change():
    table = gains_table([Gain("ANLS", [0.5] * 8, [0.75] * 8, PAGES)])
    assert "| ANLS | 8 | 4 | 0.500 | 0.750 | +0.250 (+0.250 to +0.250) | helped |" in table
