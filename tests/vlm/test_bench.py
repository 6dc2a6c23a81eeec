"""`bench vlm` runs, on a small copy of the model, and compares like with like."""

import re

import pytest
import torch

from tests.vlm.small import full_grid, picture
from texturevlm.bench import vlm as bench
from texturevlm.bench.report import Report
from texturevlm.vlm.captured import FixedBudget


@pytest.fixture(scope="module")
def small():
    return bench.random_model("cpu", small=True)


def test_their_inputs_are_those_of_an_ordinary_prompt(small):
    """Our own path with the full grid gives the first token that their path gives."""
    texture = picture(128, 192)
    inputs = bench.their_inputs(small, *bench.pixel_values(small, texture.levels[0]))
    fixed = FixedBudget(small, 24)
    read = fixed.prefill([bench.prompt_ids(small, 24)], fixed.encode(texture, full_grid(texture, 32)))
    with torch.no_grad():
        theirs = small.model(**inputs).logits[:, -1]
    assert float((read.logits - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())
    assert len(bench.prompt_ids(small, 24)) == 24 + bench.PROMPT_WORDS


def test_every_part_is_measured(small):
    report = Report("", "cpu", 1.0, quick=True)
    bench.add_first_token(report, small, (128, 96), batch=2)
    bench.add_stages(report, small, (128, 96))
    rows = {(row.work, row.by.split(",")[0]) for row in report.rows}
    assert ("96×128, batch 2 → first token", "transformers") in rows
    assert ("96×128, batch 2 → first token", "texturevlm") in rows
    assert ("96×128, batch 1 → first token", "texturevlm") in rows
    stages = (
        "texture",
        "channels",
        "relevance",
        "relevance + allocation: cascade",
        "allocation: auto",
        "sampling",
        "prefill",
    )
    for stage in stages:
        assert any(f"stage {stage}" in work for work, _ in rows), stage
    assert all(row.timing.median > 0 for row in report.rows)
    assert any("× faster" in note for note in report.notes)
    assert any("graphs are for a GPU" in note for note in report.notes)
    shares = next(note for note in report.notes if "shares of the way" in note)
    assert sum(map(int, re.findall(r"(\d+) %", shares))) == pytest.approx(100, abs=2)
    assert "stage prefill" in report.table()


def test_memory_is_told_with_and_without_the_weights():
    """A third of transformers' peak is out of reach when the weights alone are more."""
    note = bench.memory_note(10.59, 8.73, 8.27, True)
    assert note == (
        "peak memory 10.59 GiB against 8.73, 1.2 × less (bar 3 ×: cannot be met, the weights alone are more than "
        "3.53 GiB). Weights: 8.27 of both. All else: 2.32 against 0.46, 5.0 × less."
    )
    assert "(bar 3 ×: met)" in bench.memory_note(9.0, 2.5, 1.0, True)
    assert "(bar 3 ×: MISSED)" in bench.memory_note(9.0, 3.5, 1.0, True)
    assert "bar" not in bench.memory_note(9.0, 3.5, 1.0, False)
