"""Strata of a sample: by the letters and digits of its shortest answer, and by kind."""

from pathlib import Path

import pytest

from texturevlm_lab.evaluate.data import Sample, strata_of


@pytest.mark.parametrize(
    ("answers", "stratum"),
    [
        (("abc",), "1–3"),
        (("$ 1.2-3",), "1–3"),
        (("?",), "1–3"),
        (("abcd",), "4–8"),
        (("12345678",), "4–8"),
        (("123456789",), "9+"),
        (("a long answer", "short"), "4–8"),
    ],
)
def test_the_shortest_answer_counts(answers, stratum):
    assert strata_of(Sample("1", Path(), (1, 1), "?", answers)) == {"answer length": stratum}


def test_a_kind_is_a_stratum_and_no_answer_has_no_length():
    assert strata_of(Sample("1", Path(), (1, 1), "?", kind="form")) == {"kind": "form"}
