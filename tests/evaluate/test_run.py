"""A run: every configuration on every sample, resumed where it stopped, with baselines and controls."""

import gc
import json

import pytest
import torch

from tests.evaluate.folders import write_folder, write_image, write_rows
from texturevlm import Allocation
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.metrics import suited
from texturevlm_lab.evaluate.page_cache import costed
from texturevlm_lab.evaluate.provenance import code_digest
from texturevlm_lab.evaluate.results import (
    FULL_IMAGE,
    IDEAL_RESIZE,
    NONE,
    OTHER,
    Configuration,
    Results,
)
from texturevlm_lab.evaluate.run import configurations, evaluate, other_questions

PATCH = 8


class Ink:
    """Reads every answer where a crop has dark pixels beside light ones, as sharp text has."""

    name = "ink"

    def __init__(self):
        self.crops = 0

    def read(self, crops):
        self.crops += len(crops)
        return ["alpha0 beta0 alpha1 beta1" if int(crop.max()) - int(crop.min()) > 180 else "" for crop in crops]


class Choose:
    """Looks at the left upper part finely if the question has alpha, at the right lower one otherwise."""

    def __init__(self, stop_after=None):
        self.calls = []
        self.stop_after = stop_after

    def __call__(self, texture, question="", *, budget, patch, allocator, relevance):
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((allocator, relevance, budget, question))
        height, width = texture.size
        rows = [[0.0, 0, width, height]]
        if allocator == "near":
            x, y = (0, 20) if "alpha" in question else (110, 100)
            rows += [[x + dx, y + dy, x + dx + 16, y + dy + 16] for dy in (0, 16) for dx in range(0, 96, 16)]
        rows = rows[:budget]
        return Allocation.of_boxes(torch.tensor([rows]), texture.size, patch)


def run(folder, out, **options):
    choose = options.pop("choose", None) or Choose()
    ocr = options.pop("ocr", None) or {"ink": Ink()}
    given = {"allocators": ["near"], "relevances": ["given"], "budgets": [16], "patch": PATCH} | options
    return evaluate(load_data(folder).samples, ocr=ocr, out=out, choose=choose, **given)


def scores(evaluation, allocator, asked="own", name="legibility/ink"):
    return [
        row.scores[name]
        for row in evaluation.results.rows.values()
        if row.configuration.allocator == allocator and row.configuration.asked == asked
    ]


def test_a_run_has_baselines_controls_and_all_columns(tmp_path):
    evaluation = run(write_folder(tmp_path / "data"), tmp_path / "out")
    found = {(row.configuration.allocator, row.configuration.asked) for row in evaluation.results.rows.values()}
    assert found == {
        (FULL_IMAGE, "own"),
        (IDEAL_RESIZE, "own"),
        ("resize", "own"),
        ("grid", "own"),
        ("near", "own"),
        ("near", "other"),
        ("near", "none"),
    }
    assert scores(evaluation, FULL_IMAGE) == [1] * 4 and scores(evaluation, IDEAL_RESIZE) == [0] * 4
    assert scores(evaluation, "near") == [1] * 4
    assert scores(evaluation, "near", NONE) == [0, 1, 0, 1]  # what was not asked for lies to the left
    assert (
        scores(evaluation, "near", name="recall") == [1] * 4
        and scores(evaluation, FULL_IMAGE, name="recall") == [1] * 4
    )
    assert scores(evaluation, IDEAL_RESIZE, name="recall") == [0] * 4
    row = next(row for row in evaluation.results.rows.values() if row.configuration.allocator == "near")
    assert row.tokens == 13 and row.ms > 0 and row.ms_page == 0 and row.image == "0.png" and len(row.read["ink"]) == 1


def test_another_page_is_asked_about(tmp_path):
    samples = load_data(write_folder(tmp_path, pages=3)).samples
    others = other_questions(samples)
    page = {sample.question: sample.image for sample in samples}
    assert all(page[others[sample.id]] != sample.image for sample in samples)
    assert other_questions(samples[:2]) == {sample.id: "" for sample in samples[:2]}  # no other page there


def test_a_second_run_does_nothing_again(tmp_path):
    folder = write_folder(tmp_path / "data")
    first = run(folder, tmp_path / "out")
    choose, ocr = Choose(), Ink()
    second = run(folder, tmp_path / "out", choose=choose, ocr={"ink": ocr})
    assert choose.calls == [] and ocr.crops == 0 and second.results.rows == first.results.rows


def test_a_stopped_run_goes_on_where_it_was(tmp_path, capsys):
    folder = write_folder(tmp_path / "data", pages=3)
    whole = run(folder, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", choose=Choose(stop_after=13))
    path = tmp_path / "out" / "results.jsonl"
    kept = len(path.read_text().splitlines()) - 1
    assert 0 < kept < len(whole.results.rows)
    path.write_bytes(path.read_bytes()[:-40])  # as if killed while writing
    capsys.readouterr()
    resumed = run(folder, tmp_path / "out")
    assert f"{kept - 1}/42 results were done before" in capsys.readouterr().err
    wanted = {key: row.scores for key, row in whole.results.rows.items()}
    assert {key: row.scores for key, row in resumed.results.rows.items()} == wanted
    again = Results.open(path, resumed.results.settings)
    assert {key: row.scores for key, row in again.rows.items()} == wanted


def test_more_budgets_and_metrics_can_be_added(tmp_path):
    folder = write_folder(tmp_path / "data", pages=1)
    run(folder, tmp_path / "out", metrics=["legibility"])
    choose = Choose()
    run(folder, tmp_path / "out", metrics=["legibility"], budgets=[16, 20], choose=choose)
    assert {budget for _, _, budget, _ in choose.calls} == {20}
    choose = Choose()
    both = run(folder, tmp_path / "out", metrics=["legibility", "fidelity"], budgets=[16], choose=choose)
    assert {budget for _, _, budget, _ in choose.calls} == {16}
    row = next(row for row in both.results.rows.values() if row.configuration == Configuration("near", "given", 16))
    assert set(row.scores) == {"legibility/ink", "psnr", "ssim", "psnr_box", "ssim_box"}


def test_results_of_other_settings_are_not_gone_on_with(tmp_path):
    folder = write_folder(tmp_path / "data", pages=1)
    run(folder, tmp_path / "out")
    with pytest.raises(ValueError, match=r"results of the same settings, got patch 8 there, 4 now .*--fresh"):
        run(folder, tmp_path / "out", patch=4)
    with pytest.raises(ValueError, match=r"got images '.*/data/images' there, '.*/more/images' now"):
        run(write_folder(tmp_path / "more"), tmp_path / "out")
    anew = run(folder, tmp_path / "out", patch=4, fresh=True)
    assert anew.results.settings["patch"] == 4 and len(anew.results.rows) == 2 * 7


def test_a_broken_line_of_results_is_named(tmp_path):
    folder = write_folder(tmp_path / "data", pages=1)
    run(folder, tmp_path / "out")
    path = tmp_path / "out" / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "{}\n", *lines[2:]]))
    with pytest.raises(ValueError, match=r"results.jsonl:3: must be a result"):
        run(folder, tmp_path / "out")


def test_an_allocator_that_exceeds_its_budget_is_found_out(tmp_path):
    def greedy(texture, question="", *, budget, patch, **options):
        return Allocation.of_boxes(torch.tensor([[[0.0, 0, 9, 9]] * (budget + 1)]), texture.size, patch)

    with pytest.raises(RuntimeError, match="must use at most its budget, got 17 tokens"):
        run(write_folder(tmp_path / "data"), tmp_path / "out", choose=greedy)


def test_callables_have_names(tmp_path):
    choose = Choose()
    near = object()
    evaluation = run(
        write_folder(tmp_path / "data", pages=1),
        tmp_path / "out",
        allocators={"mine": near},
        relevances={"mine too": near, "none": "none"},
        choose=choose,
    )
    names = {(row.configuration.allocator, row.configuration.relevance) for row in evaluation.results.rows.values()}
    assert ("mine", "mine too") in names and (near, near) in {call[:2] for call in choose.calls}


def test_the_configurations():
    found = configurations(["a", "grid"], ["words", "none"], [32, 64], [OTHER])
    assert len(found) == len(set(found)) == 1 + 2 * (2 + 4 + 1)
    assert Configuration("a", "words", 64, OTHER) in found and Configuration("a", "none", 64, OTHER) not in found
    few = configurations(["a", "b"], ["words"], [32], [OTHER, NONE], ["b"])
    assert [one.asked for one in few if one.allocator == "b"] == ["own", OTHER, NONE]
    assert [one.asked for one in few if one.allocator == "a"] == ["own"]
    assert Configuration("a", "words", 64).method == "a, words" and Configuration(FULL_IMAGE).method == FULL_IMAGE


def test_metrics_that_suit(tmp_path):
    write_image(tmp_path / "a.png")
    common = {"image": "a.png", "question": "q"}
    write_rows(tmp_path, [common | {"id": 1}])
    assert suited(load_data(tmp_path).samples) == ["fidelity"]
    write_rows(tmp_path, [common | {"id": 1, "answers": ["x"], "boxes": [[0, 0, 9, 9]]}])
    assert suited(load_data(tmp_path).samples) == ["legibility", "recall"]
    write_rows(tmp_path, [{"image": "a.png", "id": 1, "name": "dog", "boxes": [[0, 0, 9, 9]]}])
    assert suited(load_data(tmp_path).samples) == ["objects"]


def test_objects_and_fidelity_need_no_ocr(tmp_path):
    write_image(tmp_path / "data" / "a.png", (160, 240))
    rows = [{"image": "a.png", "id": n, "name": f"c{n}", "boxes": [[0, 20, 80, 60]]} for n in range(2)]
    write_rows(tmp_path / "data", rows)
    evaluation = run(tmp_path / "data", tmp_path / "out", ocr=["no such engine"], metrics=["objects", "fidelity"])
    row = next(row for row in evaluation.results.rows.values() if row.configuration.allocator == "near")
    assert {"fine_on_objects", "object_area", "object_iou", "psnr", "ssim_box"} <= set(row.scores)
    assert evaluation.results.settings["ocr"] == {}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"metrics": ["beauty"]}, "metrics must be one of legibility, recall, fidelity, objects"),
        ({"metrics": ["objects"]}, "samples must allow one of objects"),
        ({"budgets": [0]}, "budget must be at least 1"),
        ({"controls": ["full"]}, "control must be one of other, none"),
        ({"patch": 0}, "patch must be at least 1"),
    ],
)
def test_what_cannot_be_run(tmp_path, options, complaint):
    with pytest.raises(ValueError, match=f"^evaluate: {complaint}"):
        run(write_folder(tmp_path / "data", pages=1), tmp_path / "out", **options)


def test_cost_counts_time_and_memory():
    kept = []
    gc.collect()  # what earlier tests left would else be given back meanwhile
    # More than malloc ever serves from memory that the process freed and kept, which does not count.
    _, ms, mb = costed(lambda: kept.append(torch.ones(96 << 20, dtype=torch.uint8)), torch.device("cpu"))
    assert ms > 0 and (mb is None or 90 < mb < 200)
    _, _, small = costed(lambda: None, torch.device("cpu"))
    assert small is None or small < 5


def test_the_first_line_holds_the_settings(tmp_path):
    run(write_folder(tmp_path / "data", pages=1), tmp_path / "out")
    first = (tmp_path / "out" / "results.jsonl").read_text().splitlines()[0]
    settings = json.loads(first)["settings"]
    assert settings["ocr"] == {"ink": "ink"} and settings["patch"] == PATCH and settings["code"] == code_digest()


def test_every_engine_scores_the_same_crops_of_one_allocation(tmp_path):
    class Blind(Ink):
        name = "blind"

        def read(self, crops):
            super().read(crops)
            return [""] * len(crops)

    sharp, blind, choose = Ink(), Blind(), Choose()
    folder = write_folder(tmp_path / "data")
    both = run(folder, tmp_path / "out", ocr={"sharp": sharp, "blind": blind}, choose=choose)
    assert scores(both, "near", name="legibility/sharp") == [1] * 4
    assert scores(both, "near", name="legibility/blind") == [0] * 4
    assert sharp.crops == blind.crops > 0
    assert {path.name for path in (tmp_path / "out").glob("readings-*")} == {
        "readings-sharp.jsonl",
        "readings-blind.jsonl",
    }
    alone = Choose()
    run(folder, tmp_path / "alone", ocr={"sharp": Ink()}, choose=alone)
    assert len(choose.calls) == len(alone.calls)  # a second engine costs no second allocation


def test_rows_name_the_strata_of_their_question(tmp_path):
    folder = write_folder(tmp_path / "data", pages=1)
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    rows[0] |= {"answers": ["a b", "long enough to be long"], "kind": "form"}
    write_rows(folder, rows)
    strata = {row.sample: row.strata for row in run(folder, tmp_path / "out").results.rows.values()}
    assert strata == {
        "0-alpha0": {"answer length": "1–3", "kind": "form"},
        "0-beta0": {"answer length": "4–8"},
    }
