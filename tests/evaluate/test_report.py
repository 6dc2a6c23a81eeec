"""Tables, curves, failures, the decision rule, and the command that writes them."""

import csv

import pytest
from PIL import Image

from tests.evaluate.folders import write_folder
from tests.evaluate.test_run import PATCH, Choose, Ink, run
from texturevlm.cli import main
from texturevlm_lab.evaluate.compare import decision_rule, summarise
from texturevlm_lab.evaluate.figures import draw_curves, worst
from texturevlm_lab.evaluate.report import markdown, publish, shown
from texturevlm_lab.evaluate.results import (
    FULL_IMAGE,
    IDEAL_RESIZE,
    Configuration,
    ResultRow,
    Results,
)


def results(tmp_path, rows):
    settings = {"patch": 32, "ocr": {"eyes": "Eyes 1.0"}, "device": "cpu", "code": "0"}
    found = Results.open(tmp_path / "results.jsonl", settings)
    found.add(rows)
    return found


def rows(configuration, scores, *, ms=10.0, name="legibility/eyes", tokens=None, ms_page=0.0):
    return [
        ResultRow(str(n), f"{n}.png", configuration, (name,), {name: score}, tokens, ms, ms_page, 1.0)
        for n, score in enumerate(scores)
    ]


def test_means_and_paired_differences(tmp_path):
    found = results(
        tmp_path,
        rows(Configuration(FULL_IMAGE), [1, 1, 0.8, 1], ms=None)
        + rows(Configuration(IDEAL_RESIZE, budget=64), [0, 0.5, 0, 1], ms=None)
        + rows(Configuration("a", "words", 64), [1, 1, 0.5, 1], ms=30, ms_page=2000, tokens=64)
        + rows(Configuration("a", "words", 64, "other"), [0, 0.5, 0, 0.6]),
    )
    summary = summarise(found)
    lines = summary["legibility/eyes"]
    assert (
        lines[Configuration(FULL_IMAGE)].score == pytest.approx(0.95)
        and lines[Configuration(FULL_IMAGE)].ms_first is None
    )
    own = lines[Configuration("a", "words", 64)]
    assert own.score == 0.875 and own.difference.mean == 0.5 and own.difference.low < 0.5 < own.difference.high
    assert (own.ms_first, own.ms_later, own.tokens, own.mb, own.samples) == (2030, 30, 64, 1, 4)
    assert lines[Configuration(IDEAL_RESIZE, budget=64)].difference is None
    text = markdown(found, summary, title="T")
    assert (
        "OCR engines: eyes: Eyes 1.0." in text
        and "| 64 | 0.375 | 0.875 |" in text
        and "Full image: 0.950 (4 questions)" in text
    )
    assert (
        "| a | words | its own | 64 | 0.875 | +0.500 (" in text and "another page's" in text and "2030 | 30 |" in text
    )


def test_the_decision_rule(tmp_path):
    def method(name, score, ms):
        return rows(Configuration(name, "words", 64), [score] * 5, ms=ms)

    found = results(
        tmp_path,
        rows(Configuration(IDEAL_RESIZE, budget=64), [0.5] * 5, ms=None)
        + rows(Configuration("resize", "none", 64), [0.48] * 5, ms=10)
        + method("grid", 0.4, 20)
        + method("better", 0.54, 99)
        + method("barely", 0.53, 99)
        + method("fast", 0.48, 4)
        + method("fast but bad", 0.3, 1),
    )
    verdicts = decision_rule(found)
    assert set(verdicts) == {"better, words", "barely, words", "fast, words", "fast but bad, words"}
    assert verdicts["better, words"].worth == ("at least +4.0 points at 64",)
    assert verdicts["fast, words"].worth == ("2.5 × faster at 64",)
    assert verdicts["barely, words"].worth == verdicts["fast but bad, words"].worth == ()
    text = markdown(found, summarise(found), title="T")
    assert "| barely, words | +0.030 (+0.030 to +0.030) at 64 | **not worth its complexity** |" in text


def test_a_lift_is_pooled_over_images(tmp_path):
    own = Configuration("a", "none", 64)
    scores = [{"fine_on_objects": 0.6, "object_area": 0.3}, {"fine_on_objects": 0.2, "object_area": 0.1}]
    found = results(
        tmp_path,
        [ResultRow(f"{n}-{cls}", f"{n}.png", own, ("objects",), one) for n, one in enumerate(scores) for cls in "abc"],
    )
    assert "| a | none | its own | 64 | 2.00 (2.00 to 2.00) | 2 |" in markdown(found, summarise(found), title="T")


def test_the_worst_come_first_one_a_page(tmp_path):
    samples = run(write_folder(tmp_path / "data"), tmp_path / "out").samples
    own, rival = Configuration("a", "words", 64), Configuration(IDEAL_RESIZE, budget=64)
    made = []
    for sample, score, baseline in zip(samples, (0.9, 0.2, 0.0, 0.5), (1.0, 0.9, 0.0, 0.5)):
        for configuration, value in ((own, score), (rival, baseline)):
            read = {"eyes": (f"read {value}",)}
            scores = {"legibility/eyes": value}
            made.append(ResultRow(sample.id, sample.image.name, configuration, (), scores, read=read))
    found = worst(results(tmp_path, made), samples, own, "legibility/eyes")
    assert [(sample.id, row.read["eyes"], rival.read["eyes"]) for sample, row, rival in found] == [
        ("0-beta0", ("read 0.2",), ("read 0.9",)),
        ("1-alpha1", ("read 0.0",), ("read 0.0",)),
    ]


@pytest.mark.parametrize(
    "methods",
    [
        {"a": {64: 0.5}},
        {"resize": {32: 0, 64: 0.4, 512: 0.9}, "b": {64: 0.7}},
        {f"m{n}": {1: n, 9: 30 + n} for n in range(9)},
    ],
)
def test_curves(methods, tmp_path):
    draw_curves(methods, tmp_path / "curves.png", title="T", score="s", ceiling=0.95)
    picture = Image.open(tmp_path / "curves.png").convert("RGB")
    assert picture.size == (1500, 860) and len(picture.getcolors(1 << 20)) > 20


def test_curves_of_nothing(tmp_path):
    with pytest.raises(ValueError, match="methods must have points"):
        draw_curves({}, tmp_path / "curves.png", title="T", score="s")


def test_publish(tmp_path):
    evaluation = run(write_folder(tmp_path / "data"), tmp_path / "out", budgets=[4, 16])
    files = publish(evaluation, tmp_path / "out", title="Title", notes=["A note."])
    assert [path.name for path in files] == ["report.md", "report.csv", "rows.csv", "curves.png", "failures.png"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert (
        "# Title" in text
        and "A note." in text
        and "OCR engines: ink: ink." in text
        and "## recall" in text
        and "## Decision rule" in text
    )
    table = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    line = next(
        one for one in table if one["allocator"] == "near" and one["question"] == "own" and one["budget"] == "16"
    )
    assert float(line["score"]) == 1 and float(line["low"]) <= float(line["difference"]) and int(line["count"]) == 4
    with Image.open(tmp_path / "out" / "failures.png") as picture:
        assert picture.width > 1000 and picture.height > 900
    assert shown(summarise(evaluation.results)["legibility/ink"]) == Configuration("near", "given", 16)


def test_the_command(tmp_path, monkeypatch, capsys):
    folder = write_folder(tmp_path / "data")
    with (folder / "questions.jsonl").open("a") as file:
        file.write("{broken\n")
    choose = Choose()
    monkeypatch.setattr("texturevlm_lab.evaluate.run.choose_tokens", choose)
    monkeypatch.setattr("texturevlm_lab.evaluate.run.open_engines", lambda names: {name: Ink() for name in names})
    command = ["eval", str(folder), "--allocators", "near,far", "--relevance", "none", "--budgets", "4,16"]
    command += ["--patch", str(PATCH), "--out", str(tmp_path / "out")]
    assert main(command) == 2 and "questions.jsonl:5: must be JSON" in capsys.readouterr().err
    assert main([*command, "--skip-broken", "--limit", "3"]) == 0
    said = capsys.readouterr()
    assert "report.md" in said.out and "skipped" in said.err and "results" in said.err
    text = (tmp_path / "out" / "report.md").read_text()
    assert "3 samples of data (own, eval)." in text and "1 broken entries were skipped." in text
    assert "Command: `texturevlm eval DATA --out DIR --allocators near,far --relevance none --budgets 4,16" in text
    assert "--split eval --limit 3`." in text and "no located answer" not in text
    assert {call[0] for call in choose.calls} == {"near", "far", "grid", "resize"}
    with (folder / "questions.jsonl").open("a") as file:
        file.write('{"id": 9, "image": "images/0.png", "question": "?", "answers": ["x"]}\n')
    assert main([*command, "--skip-broken"]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "1 of 5 questions have no located answer and are left out." in text


@pytest.mark.parametrize("budgets", ["64,x", "", "0,3"])
def test_the_command_wants_budgets(tmp_path, budgets, capsys):
    with pytest.raises(SystemExit):
        main(["eval", str(tmp_path), "--budgets", budgets, "--out", str(tmp_path / "out")])
    assert "must be whole numbers" in capsys.readouterr().err
