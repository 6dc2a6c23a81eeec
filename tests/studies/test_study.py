"""What the commands run by their module's name share: options, complaints, and the files that they leave."""

import json
import math
import platform
import re
import time
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
import torch

import texturevlm_lab.studies
from texturevlm.commands.arguments import counts
from texturevlm_lab.evaluate.markdown import format_interval
from texturevlm_lab.studies.study import (
    DATA,
    LIMIT,
    MISTAKES,
    OUT,
    ROW_FILES,
    check_limit,
    command,
    deadline,
    option,
    provenance,
    study_main,
    table_main,
    versions,
    write_study,
)

SHARED = (
    "__init__",
    "asking",
    "place_measures",
    "soft_tokens",
    "study",
)  # no table of their own
STUDIES = sorted(
    path.stem for path in Path(texturevlm_lab.studies.__file__).parent.glob("*.py") if path.stem not in SHARED
)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_how_it_is_run_and_what_it_is_for(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")  # or the sentence would be wrapped
    module = import_module(f"texturevlm_lab.studies.{name}")
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    told = capsys.readouterr().out
    assert stopped.value.code == 0
    assert told.startswith(f"usage: python -m texturevlm_lab.studies.{name} [-h]")
    assert module.__doc__.split("\n")[0] in told


def test_a_complaint_is_one_line_and_status_2(capsys):
    def work(name, options):
        raise ValueError(f"{name}: --out must end in .npz, got {options.out}")

    main = command("texturevlm_lab.studies.own", None, work, DATA, OUT)  # no docstring: python -OO
    assert main(["data", "--out", "weights"]) == 2
    said = capsys.readouterr()
    assert said.err == "texturevlm_lab.studies.own: own: --out must end in .npz, got weights\n" and said.out == ""


def test_a_study_measures_and_reports(tmp_path, capsys, monkeypatch):
    def measure(options):
        return {"limit": options.limit}

    monkeypatch.setattr("texturevlm_lab.studies.study.origin", lambda module: f"Code: {module}")
    main = study_main(
        "texturevlm_lab.studies.own_study", "Own.", measure, lambda record: f"at most {record['limit']}\n"
    )
    assert main(["data", "--out", str(tmp_path), "--limit", "3"]) == 0
    record = json.loads((tmp_path / "own-study.json").read_text())
    made = {"command": "python -m texturevlm_lab.studies.own_study DATA --out DIR --limit 3", **versions()}
    assert record == {**made, "code": "Code: texturevlm_lab.studies.own_study", "limit": 3}
    assert (tmp_path / "own-study.md").read_text() == "at most 3\n" and "at most 3" in capsys.readouterr().out


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError, ModuleNotFoundError])
def test_what_a_caller_can_get_wrong_is_a_mistake(error):
    assert issubclass(error, MISTAKES)


@pytest.mark.parametrize("error", [KeyError, AssertionError, RuntimeError, KeyboardInterrupt])
def test_what_we_got_wrong_keeps_its_traceback(error):
    assert not issubclass(error, MISTAKES)


def test_a_limit_may_be_left_out_but_not_zero():
    check_limit(None)
    check_limit(1)
    with pytest.raises(ValueError, match="--limit: N must be at least 1, got 0"):
        check_limit(0)


def test_a_report_names_command_versions_and_details():
    record = {"command": "python -m study DATA", **versions()}
    assert list(record) == ["command", "torch", "python"]
    made_with = f"torch {torch.__version__}, Python {platform.python_version()}."
    assert provenance(record) == f"Command: `python -m study DATA`; {made_with}"
    coded = {**record, "code": "Code: a, digest 0"}
    assert provenance(coded) == f"Command: `python -m study DATA`; Code: a, digest 0; {made_with}"
    assert provenance(record, "no OCR") == f"Command: `python -m study DATA`; no OCR; {made_with}"


def test_numbers_and_report_are_written_side_by_side(tmp_path):
    out = tmp_path / "a" / "b"
    text = write_study(out, "sizes", {"widths": "3×2"}, lambda record: f"# Größe\n{record['widths']}\n")
    assert text == "# Größe\n3×2\n"
    assert {path.name for path in out.iterdir()} == {"sizes.md", "sizes.json"}
    assert (out / "sizes.md").read_bytes() == text.encode()
    assert (out / "sizes.json").read_bytes() == '{\n "widths": "3×2"\n}\n'.encode()


def test_numbers_survive_a_report_that_fails(tmp_path):
    with pytest.raises(KeyError, match="missing"):
        write_study(tmp_path, "sizes", {"found": [1, 2]}, lambda record: record["missing"])
    assert json.loads((tmp_path / "sizes.json").read_text()) == {"found": [1, 2]}


def test_the_command_line_leaves_out_defaults_and_names_no_paths():
    told = []
    options = [DATA, OUT, LIMIT, option("--steps", type=int, default=3), option("--sizes", type=counts, metavar="N,N")]
    main = command("texturevlm_lab.studies.own", "Own.", lambda name, options: told.append(options.command), *options)
    given = ["--out", "/tmp/x", "/data", "--limit", "4"]
    for more in ([], ["--steps", "3"], ["--steps", "5"], ["--sizes", "16,32"]):
        assert main([*given, *more]) == 0
    plain = "python -m texturevlm_lab.studies.own DATA --out DIR --limit 4"
    assert told == [plain, plain, f"{plain} --steps 5", f"{plain} --sizes 16,32"]


def test_a_table_of_files_names_them_as_results_has_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("texturevlm_lab.studies.study.origin", lambda module: f"Code: {module}")
    main = table_main("texturevlm_lab.studies.own", "Own.", lambda options: options.made_by, "own.md", ROW_FILES)
    assert main(["/a/results/b/c.csv", "d.csv", "--out", str(tmp_path)]) == 0
    run = "python -m texturevlm_lab.studies.own results/b/c.csv results/d.csv --out DIR"
    assert (tmp_path / "own.md").read_text() == f"Command: `{run}`; Code: texturevlm_lab.studies.own."
    assert run in capsys.readouterr().out


def test_the_time_limit_of_a_study():
    assert deadline(Namespace(seconds=None)) == math.inf
    assert abs(deadline(Namespace(seconds=5.0)) - time.monotonic() - 5) < 1


def test_an_interval():
    assert format_interval([0.0123, -0.002, 0.03]) == "+0.012 (-0.002 to +0.030)"


def test_the_package_imports_no_study():
    package = Path(texturevlm_lab.studies.__file__).parents[3] / "texturevlm"
    sources = package.rglob("*.py")
    assert not [path for path in sources if re.search(r"^\s*(from|import) texturevlm_lab", path.read_text(), re.M)]
