"""The command line: pictures and reports for good input; one line, status 2 and no file for bad input."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm
from texturevlm.cli import main
from texturevlm.draw import MARGIN, PANEL
from texturevlm.ops import backend

ROOT = Path(__file__).parents[1]
PHOTO = ROOT / "examples" / "photo.jpg"


def status(*arguments: object) -> int:
    """The exit status of `texturevlm arguments`."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as exit:
        return exit.code


@pytest.fixture
def small(tmp_path) -> Path:
    """An image of 96×64 pixels, quick to look at."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    return tmp_path / "small.png"


def test_look_draws_the_photo(tmp_path, capsys):
    out = tmp_path / "look.png"
    assert status("look", PHOTO, "--fixation", "200,300", "--budget", "150", "--out", out) == 0
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        width, height = picture.size
        pixels = np.asarray(picture.convert("RGB"), dtype=float)
    assert 1200 <= width <= 2400 and 600 <= height <= 2400
    starts = [MARGIN + index * (PANEL + MARGIN) for index in range(3)]
    resized, rebuilt, footprints = (pixels[60:600, start : start + PANEL] for start in starts)
    assert min(panel.std() for panel in (resized, rebuilt, footprints)) > 20
    assert abs(resized - rebuilt).mean() > 1 and abs(rebuilt - footprints).mean() > 1
    said = capsys.readouterr()
    assert said.err == ""
    for word in (str(out), "512×512", "150 tokens of 32×32", "200,300", "they cover 100% of it"):
        assert word in said.out


def test_look_looks_at_the_centre_of_the_image_into_look_png_unless_told(small, monkeypatch, capsys):
    monkeypatch.chdir(small.parent)
    assert status("look", small, "--budget", "40", "--patch", "8") == 0
    assert "48,32" in capsys.readouterr().out
    assert status("look", small, "--budget", "40", "--patch", "8", "--fixation", "48,32", "--out", "told.PNG") == 0
    assert (small.parent / "look.png").read_bytes() == (small.parent / "told.PNG").read_bytes()
    assert status("look", small, "--budget", "12", "--patch", "8", "--fixation", "0,0", "--out", "corner.png") == 0
    assert "0,0" in capsys.readouterr().out
    assert (small.parent / "corner.png").read_bytes() != (small.parent / "look.png").read_bytes()


def test_look_at_one_pixel(tmp_path):
    Image.new("RGB", (1, 1), "red").save(tmp_path / "dot.png")
    assert status("look", tmp_path / "dot.png", "--budget", "1", "--out", tmp_path / "out.png") == 0
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width * picture.height < 8_000_000


@pytest.mark.parametrize("size", [(30, 1200), (1200, 30)])
def test_the_picture_of_a_very_long_image_stays_of_a_sensible_size(tmp_path, size):
    Image.new("RGB", size, "red").save(tmp_path / "long.png")
    assert status("look", tmp_path / "long.png", "--budget", "20", "--out", tmp_path / "out.png") == 0
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width * picture.height < 16_000_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fixation", "middle"], ["fixation", "X,Y", "'middle'"]),
        (["--fixation", "1,2,3"], ["fixation", "X,Y", "'1,2,3'"]),
        (["--fixation", "5"], ["fixation", "X,Y", "'5'"]),
        (["--fixation", "97,5"], ["fixation must lie in the image", "96", "64", "97, 5"]),
        (["--fixation", "-5,3"], ["fixation"]),
        (["--fixation=-5,3"], ["fixation must lie in the image", "-5, 3"]),
        (["--fixation", "nan,3"], ["fixation must lie in the image", "nan, 3"]),
        (["--budget", "0"], ["--budget: must be a whole number from 1, got '0'"]),
        (["--budget", "-1"], ["--budget"]),
        (["--budget", "6145"], ["budget must be between 1 and 6144, got 6145"]),
        (["--budget", "many"], ["budget", "'many'"]),
        (["--patch", "0"], ["--patch: must be a whole number from 1, got '0'"]),
        (["--e0", "0"], ["e0 must be a positive number"]),
        (["--out", "picture.jpg"], ["--out must end in .png, got picture.jpg"]),
        (["--out", "nowhere/picture.png"], ["nowhere/picture.png"]),
        (["--out", "small.png/picture.png"], ["folder that exists"]),
        (["--colour"], ["--colour"]),
        (["--device", "abacus"], ["device must be one of torch", "'abacus'"]),
        (["--device", "cuda:99"], ["device must be one of this machine's", "cuda:99"]),
    ],
)
def test_look_refuses_bad_options_in_one_line_and_writes_nothing(small, monkeypatch, capsys, options, words):
    monkeypatch.chdir(small.parent)
    assert status("look", small, *(["--budget", "5"] if "--budget" not in options else []), *options) == 2
    assert_one_line(capsys, words)
    assert list(small.parent.iterdir()) == [small]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.png", None, ["no such file", "missing.png"]),
        (".", None, ["folder"]),
        ("", None, ["file"]),
        ("http://127.0.0.1:9/page.png", None, ["http://127.0.0.1:9/page.png", "cannot be downloaded"]),
        ("text.png", b"no picture at all", ["text.png", "not an image"]),
        ("cut.jpg", PHOTO.read_bytes()[:9000], ["cut.jpg", "cannot be read"]),
    ],
)
def test_look_refuses_what_is_no_image(tmp_path, monkeypatch, capsys, name, content, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    assert status("look", name) == 2
    assert_one_line(capsys, words)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paint"], ["'paint'", "doctor", "look", "bench"]),
        ([], ["COMMAND"]),
        (["look"], ["IMAGE"]),
        (["bench", "wheels"], ["'wheels'", "engine"]),
    ],
)
def test_an_unknown_or_incomplete_command_is_refused_in_one_line(capsys, arguments, words):
    assert status(*arguments) == 2
    assert_one_line(capsys, words)


def assert_one_line(capsys, words: list[str]) -> None:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("texturevlm") and said.err.endswith("\n")
    for word in words:
        assert word in said.err
    assert len(said.err.splitlines()) == 1


def test_help_names_every_command(capsys):
    assert status("--help") == 0
    said = capsys.readouterr().out
    assert all(command in said for command in ("doctor", "look", "bench"))


def test_doctor_reports_versions_and_why_not_something_faster(capsys):
    assert status("doctor") == 0
    said = capsys.readouterr().out
    assert f"texturevlm {texturevlm.__version__}" in said
    assert torch.__version__ in said and np.__version__ in said
    for operation in backend.BACKENDS:
        assert operation in said
    reason = backend.no_cuda_because()
    if not torch.cuda.is_available():
        assert reason == "PyTorch sees no CUDA GPU"
        assert "none that PyTorch can use" in said
    if reason:
        assert f"why not cuda: {reason}" in said
    else:
        assert torch.cuda.get_device_name(0) in said and "kernel check: passed" in said


def test_doctor_names_the_reason_that_is_found(monkeypatch, capsys):
    monkeypatch.setattr(backend, "no_cuda_because", lambda: "the driver is from another century")
    assert status("doctor") == 0
    said = capsys.readouterr().out
    assert "why not cuda: the driver is from another century" in said
    assert "cuda " not in "".join(line.split("(known")[0] for line in said.splitlines() if "(known" in line)


def test_the_module_runs_as_a_program():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "texturevlm.cli", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert torch.__version__ in done.stdout


def test_a_reader_that_stops_is_no_mistake():
    reading, writing = os.pipe()
    os.close(reading)
    found = subprocess.run(
        [sys.executable, "-u", "-m", "texturevlm.cli", "doctor"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (found.returncode, found.stderr) == (141, "")


def test_a_mistake_reaches_the_shell_as_status_2():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "texturevlm.cli", "look", "/nowhere/page.png"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("texturevlm look: argument IMAGE: no such file: /nowhere/page.png")


def test_channels_draws_a_contact_sheet(tmp_path, capsys):
    Image.effect_noise((60, 40), 90).convert("RGB").save(tmp_path / "small.png")
    assert status("channels", tmp_path / "small.png", "--channels", "mvp", "--out", tmp_path / "sheet.png") == 0
    assert "13 channels" in capsys.readouterr().out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--channels", "edgse"], ["unknown 'edgse'", "edges_inverted"]),
        (["--channels", "embedding_0"], ["embedding_0", "fit-pca"]),
        (["--out", "sheet.jpg"], ["--out must end in .png"]),
        (["--device", "abacus"], ["device must be one of torch"]),
    ],
)
def test_channels_refuses_bad_options_in_one_line(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("small.png")
    assert status("channels", "small.png", *options) == 2
    assert_one_line(capsys, words)
