"""`bench vlm` runs, on a small copy of the model, and compares like with like."""

import re
import time
from functools import partial

import pytest
import torch

from tests.vlm.small import full_grid, picture
from texturevlm.allocate.plain import tiling
from texturevlm.relevance import ScoutScorer, find_relevance
from texturevlm.types import Texture
from texturevlm.vlm.captured import CapturedPrefill
from texturevlm.vlm.places import grid_for
from texturevlm_lab.bench import vlm as bench
from texturevlm_lab.bench import vlm_file, vlm_model
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report

SIZE = (128, 96)
BUDGET = 6


@pytest.fixture(scope="module")
def small():
    return vlm_model.random_model("cpu", small=True)


@pytest.fixture(scope="module")
def asked(small):
    return vlm_model.asked_model(small, BUDGET)


def empty_report():
    return Report("", "cpu", 1.0, quick=True)


def rows_of(report):
    assert all(row.timing.median > 0 for row in report.rows if row.timing)
    return {(row.work, row.by) for row in report.rows}


def percentages(note):
    return sum(map(int, re.findall(r"(-?\d+) %", note)))


def test_their_inputs_are_those_of_an_ordinary_prompt(small):
    """Our own path with the full grid gives the first token that their path gives."""
    texture = picture(128, 192)
    inputs = vlm_model.their_inputs(small, *vlm_model.pixel_values(small, texture.levels[0]))
    fixed = CapturedPrefill(small, 24)
    read = fixed.prefill([vlm_model.prompt_ids(small, 24)], fixed.encode(texture, full_grid(texture, 32)))
    with torch.no_grad(), vlm_model.unhooked(small):
        theirs = small.model(**inputs).logits[:, -1]
    assert float((read.logits - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())
    assert len(vlm_model.prompt_ids(small, 24)) == 24 + vlm_model.PROMPT_WORDS


def test_the_whole_bench_runs(small, monkeypatch):
    monkeypatch.setattr(bench, "random_model", lambda *_, **__: small)
    monkeypatch.setattr(vlm_file, "ANSWER", 3)
    report = empty_report()
    bench.bench(report)
    rows = rows_of(report)
    for name in ("160×192", "160×160"):
        work = f"{name}, batch 1 → first token"
        kinds = {by for other, by in rows if other == work}
        wanted = ("transformers, resized to", "transformers, resized, torch.compile", "texturevlm, 24 tokens")
        for by in (
            *wanted,
            "texturevlm, the same",
            "texturevlm, asked: scout, auto; tower",
            "texturevlm, asked: scout, auto, all",
        ):
            assert any(one.startswith(by) for one in kinds), by
        assert {by for other, by in rows if other == f"{name}.jpg → first token"} == {
            "texturevlm, ask, first call",
            "texturevlm, ask",
        }
        assert any(note.startswith(work) and "× by fewer tokens" in note for note in report.notes)
        assert any(note.startswith(f"{name}.jpg → first token, shares") for note in report.notes)
    assert {by.split(",")[0] for work, by in rows if "batch 2 → first token" in work} == {"transformers", "texturevlm"}
    stages = ("texture", "channels", "relevance", "relevance + allocation: cascade", "allocation: auto", "sampling")
    for stage in (*stages, "prefill"):
        assert any(f"160×192, stage {stage}" in work for work, _ in rows), stage
    assert any("× faster" in note for note in report.notes)
    assert any("graphs are for a GPU" in note for note in report.notes)
    assert percentages(next(note for note in report.notes if "shares of the way" in note)) == pytest.approx(100, abs=2)
    assert "stage prefill" in report.table() and small.model.texturevlm_adapter is small


def test_both_sides_read_the_same_few_tokens(small):
    """transformers resizes to at most the budget, and so do we; its model is not hooked meanwhile."""
    report, fixed = empty_report(), CapturedPrefill(small, BUDGET, masked=True)
    tower, unhooked = small.tower, []
    watch = tower.register_forward_pre_hook(lambda *_: unhooked.append(not hasattr(small.model, "texturevlm_adapter")))
    found = bench.add_same_tokens(report, fixed, SIZE)
    watch.remove()
    assert unhooked[:3] == [True] * 3 and not any(unhooked[3:])  # the rest probe the hooks
    assert small.model.texturevlm_adapter is small
    work = "96×128, batch 1 → first token"
    assert rows_of(report) == {
        ("96×128 → pixel_values", "transformers' processor, resized"),
        (work, "transformers, resized to 4 tokens"),
        (work, "texturevlm, the same 4 tokens, captured for 6"),
        (work, "texturevlm, asked: scout, auto; tower and prefill captured"),
        (work, "texturevlm, asked: scout, auto, all captured"),
    }
    assert [row.timing.median for row in report.rows[1:3]] == [found.theirs, found.ours]
    assert found.asked == report.rows[-1].timing.median
    assert any("asked: graphs are for a GPU" in note for note in report.notes)


def test_both_ways_to_choose_by_a_question_agree(small, monkeypatch):
    """Plain calls, and the chooser that a GPU captures; both ask the scout."""
    asked, score = [], ScoutScorer.score
    monkeypatch.setattr(ScoutScorer, "score", lambda *inputs: asked.append(inputs[2]) or score(*inputs))
    fixed, image = CapturedPrefill(small, BUDGET, masked=True), page(1, *SIZE)
    seen = []
    fixed.prefill = lambda ids, tower: seen.append([one.clone() for one in tower.embeds]) or prefill(ids, tower)
    prefill = partial(CapturedPrefill.prefill, fixed)
    vlm_model.our_first_token(fixed, image, vlm_model.QUESTION, relevance="scout")
    ids = partial(vlm_model.prompt_ids, small, BUDGET)
    vlm_model.captured_first_token(empty_report(), fixed, image, vlm_model.QUESTION, ids)()
    assert asked == [vlm_model.QUESTION] * 3
    vlm_model.our_first_token(fixed, image, allocator="cascade")
    assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[1][0], seen[2][0])
    assert not torch.equal(seen[0][0], seen[3][0])


@pytest.mark.parametrize("size", [(3508, 2480), (1024, 1024)])
def test_our_resize_has_the_grid_of_transformers_resize(size):
    rows, columns = grid_for(size, 32, most=273 * 32**2)
    assert tiling(size, rows * columns, 32) == (rows, columns)


def test_our_resize_reads_as_many_tokens_as_transformers(small):
    fixed, image, seen = CapturedPrefill(small, BUDGET, masked=True), page(1, *SIZE), []
    prefill = partial(CapturedPrefill.prefill, fixed)
    fixed.prefill = lambda ids, tower: seen.append(int(tower.used.sum())) or prefill(ids, tower)
    relevance = find_relevance(Texture.open(image), patch=32, relevance="none")
    vlm_model.our_first_token(fixed, image, allocator="resize", budget=4, relevance=relevance)
    assert seen == [4]


def test_a_gain_is_split_into_tokens_and_capture():
    note = bench.gain_note((3508, 2480), 600e3, bench.Resized(40e3, 10e3, 12.5e3))
    assert "is 60.0 × faster" in note and "15.0 × by fewer tokens" in note and "4.0 × by capture" in note
    assert "2.50 ms more" in note


def test_compiled_rows_say_why_they_are_missing(small, monkeypatch):
    fixed, report = CapturedPrefill(small, BUDGET), empty_report()
    bench.add_compiled(report, fixed, [SIZE])
    assert report.rows[0].timing is None and report.rows[0].state == "not compiled in a quick run"
    report.quick = False

    def broken(model, **options):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    bench.add_compiled(report, fixed, [SIZE])
    assert report.rows[1].state == "failed: no compiler here" and small.model.texturevlm_adapter is small
    monkeypatch.setattr(torch, "compile", lambda model, **options: lambda **inputs: time.sleep(2))
    monkeypatch.setattr(bench, "COMPILE_SECONDS", 0.5)
    bench.add_compiled(report, fixed, [SIZE, SIZE])
    assert [row.state for row in report.rows[2:]] == ["not compiled within 0 s"] * 2


def test_the_compiled_row_reads_the_same_token_each_time(small, monkeypatch):
    """The static cache is emptied between calls; the compiler itself is left out."""
    modes = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: modes.append(options) or model)
    inputs = bench.resized_inputs(CapturedPrefill(small, BUDGET), SIZE)
    with vlm_model.unhooked(small):
        wanted = vlm_model.their_first_token(small, inputs)
        reading = vlm_model.compiled_first_token(small, inputs)
        assert [reading() for _ in range(3)] == [wanted] * 3
    assert modes == [{"mode": "reduce-overhead", "dynamic": False}]


def test_a_file_is_asked_about_and_every_stage_has_its_share(small, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_file, "ANSWER", 3)
    report, file = empty_report(), vlm_file.write_page(tmp_path, SIZE)
    vlm_file.add_first_calls(report, asked, [file])
    report.quick = False  # for the bar
    vlm_file.add_file(report, asked, CapturedPrefill(small, BUDGET, masked=True), file, 1000.0)
    rows = {f"{row.work}, {row.by}": row for row in report.rows}
    assert rows["96×128.jpg → first token, texturevlm, ask, first call"].timing.median > 0
    whole = rows["96×128.jpg → first token, texturevlm, ask"]
    decode = rows["96×128.jpg → pixels, Pillow"].timing.median
    assert whole.bar == pytest.approx(1.25 * (decode + 1000))
    stages = ("open", "mips", "relevance: scout", "allocation: auto", "sampling", "tower", "words", "prefill")
    for stage in stages:
        assert any(f"stage {stage}" in work for work in rows), stage
    shares = next(note for note in report.notes if "first token, shares" in note)
    assert percentages(shares) == pytest.approx(100, abs=len(stages))
    assert any("each further token takes" in note for note in report.notes)
    assert any("open" in note and "choose" in note and "first_token" in note for note in report.notes)


def test_the_prompt_of_a_file_is_as_long_as_that_of_an_image(asked, tmp_path):
    """So that both replay the same graph."""
    file = vlm_file.write_page(tmp_path, SIZE)
    fixed = CapturedPrefill(asked.adapter, BUDGET, masked=True)
    ids = vlm_file.stages(asked, fixed, file)["words of the prompt"]()
    assert len(ids) == BUDGET + vlm_model.PROMPT_WORDS
    assert ids.count(asked.model.config.image_token_id) == BUDGET
    assert Texture.open(file).size == SIZE


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
