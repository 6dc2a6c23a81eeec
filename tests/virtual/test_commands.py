"""look and ask on a file that is read by pages."""

import shutil

import pytest
from PIL import Image

from tests.virtual.test_refine import QUESTION
from texturevlm.cli import main
from texturevlm.relevance import refine
from texturevlm.virtual.sources import TiffSource


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(refine, "FEW_PAGES", 8)


def test_look_for_a_question(pyramid, tmp_path, capsys):
    out = tmp_path / "look.png"
    options = ["--query", QUESTION, "--relevance", "scout", "--budget", "64", "--device", "cpu", "--out", str(out)]
    assert main(["look", str(pyramid), *options]) == 0
    said = capsys.readouterr()
    assert "4200×4100 seen with 64 tokens of 32×32" in said.out and "they cover 1" in said.out
    assert " pages read, " in said.err and "note:" not in said.err
    assert Image.open(out).height > 1500  # the whole, and below it the part


def test_look_at_a_point_of_a_file_with_a_damaged_page(pyramid, tmp_path, capsys):
    path = tmp_path / "damaged.tif"
    shutil.copy(pyramid, path)
    level = TiffSource(path)._levels[0]
    place = 10 * 17 + 11  # of the page that holds the point
    with path.open("r+b") as file:
        file.seek(level.dataoffsets[place])
        file.write(bytes(level.databytecounts[place]))
    out = tmp_path / "look.png"
    options = ["--fixation", "3000,2700", "--budget", "64", "--e0", "0.01", "--device", "cpu", "--out", str(out)]
    assert main(["look", str(path), *options]) == 0
    said = capsys.readouterr().err
    assert "note: " in said and "damaged.tif: page at level 0, row 10, column 11 cannot be read" in said
    assert out.exists()


def test_ask(pyramid, capsys, tmp_path):
    pytest.importorskip("transformers")
    options = ["--relevance", "scout", "--budget", "64", "--device", "cpu", "--max-new-tokens", "4"]
    assert main(["ask", str(pyramid), QUESTION, *options, "--out", str(tmp_path / "seen.png")]) == 0
    said = capsys.readouterr()
    assert said.out.strip() and " pages read, " in said.err and (tmp_path / "seen.png").exists()


def test_a_cut_file_is_one_line(pyramid, tmp_path, capsys):
    content = pyramid.read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[: int(len(content) * 0.9)])
    assert main(["look", str(tmp_path / "cut.tif"), "--query", "x", "--out", str(tmp_path / "x.png")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("texturevlm")]
    assert "cut.tif is cut: it reaches to byte" in line
    assert not (tmp_path / "x.png").exists()
