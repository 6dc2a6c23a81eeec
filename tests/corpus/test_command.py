"""`texturevlm corpus` as a stranger uses it, and what its documents promise."""

import re
from pathlib import Path

import pytest

from tests.corpus import fill, made
from texturevlm.cli import main
from texturevlm.commands import corpus as command
from texturevlm.corpus.formats import DTYPES, FORMATS
from texturevlm.corpus.payloads import PAYLOADS
from texturevlm.corpus.sources import KINDS
from texturevlm.corpus.watch import Watch

pytest.importorskip("pyarrow", reason="needs the extra corpus")
ROOT = Path(__file__).parent.parent.parent
FAST = ["--workers", "0", "--budget", "8", "--patch", "8", "--relevance", "none", "--device", "cpu", "--unit", "4"]


def test_a_folder_with_a_bad_image(tmp_path, capsys):
    source = fill(tmp_path / "in", 5)
    (source / "bad.jpg").write_text("no image")
    assert main(["corpus", str(source), "--out", str(tmp_path / "out"), *FAST, "--report"]) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 5 rows in 2 units, 1 errors" in said.out and "bottleneck: " in said.out
    assert re.search(
        r"2/2 units, 5 images at [\d.]+ images/s \(read .*\(bottleneck\).*\), 1 errors, 0:00 to go", said.err
    )
    assert str(tmp_path / "out" / "errors") in said.err and (tmp_path / "out" / "report.html").is_file()
    assert f"report: {tmp_path / 'out' / 'report.html'}" in said.out
    assert main(["corpus", str(source), "--out", str(tmp_path / "out"), *FAST]) == 0
    assert "2 of 2 units were done before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (["--write", "patch"], "invalid choice: 'patch'"),
        (["--allocator", "layer"], "--allocator must be one of"),
        (["--relevance", "scot"], "--relevance must be"),
        (["--write", "features"], "write 'features' needs a model"),
        (["--budget", "9"], "was begun with budget 8, got 9"),
        (
            ["--decoder", "turbo"],
            "decoder must be one of auto, nvimgcodec, torchcodec, simplejpeg, pillow, got 'turbo'",
        ),
        (["--questions", "gone.jsonl"], "no such file: gone.jsonl"),
        (["--engine", "ray", "--workers", "0"], "workers must be at least 1, got 0"),
    ],
)
def test_mistakes_are_said_in_one_line(tmp_path, capsys, more, wanted):
    source, out = fill(tmp_path / "in", 1), tmp_path / "out"
    made(source, out, budget=8, batch=None)
    before = sorted(tmp_path.rglob("*"))
    try:
        status = main(["corpus", str(source), "--out", str(out), *FAST, *more])
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr().err
    assert status == 2 and wanted in said and said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_no_such_source(tmp_path, capsys):
    assert main(["corpus", str(tmp_path / "gone"), "--out", str(tmp_path / "out"), *FAST]) == 2
    assert capsys.readouterr().err == f"texturevlm corpus: no such file or folder: {tmp_path / 'gone'}\n"


def test_the_command_offers_all_there_is():
    assert set(command.WRITTEN) == set(DTYPES) == set(PAYLOADS)
    assert set(command.FORMATS) == set(FORMATS) and set(command.KINDS) == {"auto", *KINDS}


def test_the_slowest_stage_is_named():
    watch = Watch(4, 1, quiet=True)
    watch.begin({"read": 2, "decode": 2, "choose": 1, "encode": 1, "write": 1})
    watch.add(10, 1, {"read": 0.1, "decode": 4.0, "choose": 3.0, "encode": 0.0, "write": 0.5})
    watch.finished()
    assert watch.rates() == pytest.approx({"read": 200, "decode": 5, "choose": 10 / 3, "write": 20})
    assert watch.bottleneck() == "choose" and "choose 3.3 (bottleneck)" in watch.line() and "1 errors" in watch.line()
