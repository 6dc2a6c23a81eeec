"""allocate, look --query and ask: what a user gets, and one line and status 2 for a mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.ask import models
from tests.test_cli import assert_one_line, status
from texturevlm.draw import MARGIN, PANEL
from texturevlm.relevance.ocr import Page
from texturevlm.types import Allocation


@pytest.fixture
def page(tmp_path, monkeypatch):
    """An image of 300×200 pixels with something on its left half, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    pixels = np.full((200, 300, 3), 250, dtype=np.uint8)
    pixels[20:180, 20:120] = np.random.default_rng(0).integers(0, 256, (160, 100, 3))
    Image.fromarray(pixels).save("page.png")
    return "page.png"


def test_allocate_prints_json_that_reads_back(page, capsys):
    assert status("allocate", page, "--budget", 12, "--relevance", "none", "--json", "-") == 0
    said = capsys.readouterr()
    allocation = Allocation.from_json(said.out)
    assert allocation.size == (200, 300) and allocation.patch == 32 and allocation.budget == 12
    assert 0 < int(allocation.valid.sum()) <= 12
    assert said.err == ""
    # What there is to see is on the left.
    assert float(allocation.centre[0, allocation.valid[0], 0].median()) < 150


def test_allocate_writes_a_file_and_takes_an_allocator(page, tmp_path, capsys):
    options = ["--budget", 6, "--patch", 16, "--allocator", "resize", "--relevance", "none"]
    assert status("allocate", page, *options, "--json", "tokens.json") == 0
    assert "tokens.json: 6 tokens of 16×16" in capsys.readouterr().out
    found = json.loads((tmp_path / "tokens.json").read_text())
    assert len(found["tokens"]) == 6 and found["patch"] == 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--allocator", "circles"], ["--allocator must be one of", "layers", "auto", "'circles'"]),
        (["--relevance", "smell"], ["--relevance must be one of auto, words", "'smell'"]),
        (
            ["--relevance", "attention"],
            ["--relevance must be one of auto, words, scout, prior, channels, none", "attention"],
        ),
        (["--budget", "0"], ["--budget: must be a whole number from 1, got '0'"]),
        (["--budget", "many"], ["--budget: must be a whole number from 1, got 'many'"]),
        (["--json", "nowhere/tokens.json"], ["nowhere/tokens.json"]),
        (["--json", "."], ["--json must be a file"]),
        (["--device", "cuda:99"], ["device must be one of this machine's"]),
        (["page.png", "--share", "--budget", "1"], ["at least one token per image (2), got 1"]),
        (["gone.png"], ["no such file: gone.png"]),
    ],
)
def test_allocate_refuses_bad_options_in_one_line(page, capsys, options, words):
    given = options if "--relevance" in options else [*options, "--relevance", "none"]
    assert status("allocate", page, *given) == 2
    assert_one_line(capsys, words)


def test_look_for_a_question_draws_what_is_seen_the_footprints_and_the_relevance(page, tmp_path, capsys):
    options = ["--query", "what is it?", "--relevance", "none", "--budget", 8, "--out", "seen.png"]
    assert status("look", page, *options) == 0
    said = capsys.readouterr().out
    assert "seen.png: 300×200 seen with 8 tokens of 32×32" in said and "they cover 32% of it" in said
    with Image.open(tmp_path / "seen.png") as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=float)
    head = 44 + 40  # the question, then the panels' titles
    starts = [MARGIN + index * (PANEL + MARGIN) for index in range(3)]
    panels = [pixels[head : head + 400, start : start + PANEL] for start in starts]
    assert all(panel.std() > 10 for panel in panels)
    assert abs(panels[0] - panels[1]).mean() > 1 and abs(panels[1] - panels[2]).mean() > 1
    heat = panels[2]
    redness = heat[..., 0] - heat[..., 2]
    assert redness[:, : PANEL // 2].mean() > redness[:, PANEL // 2 :].mean() + 10
    assert pixels[:44].std() > 5  # the question is written above


def test_look_with_an_allocator_needs_no_question(page, tmp_path, capsys):
    assert status("look", page, "--allocator", "fit", "--budget", 8, "--relevance", "none") == 0
    assert (tmp_path / "look.png").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--query", "Q", "--fixation", "1,2"], ["--fixation excludes --query", "give one"]),
        (["--query", "Q", "--allocator", "circles"], ["allocator must be one of", "'circles'"]),
        (["--query", "Q", "--out", "seen.gif"], ["--out must end in .png"]),
    ],
)
def test_look_refuses_bad_options_in_one_line(page, tmp_path, capsys, options, words):
    assert status("look", page, *options) == 2
    assert_one_line(capsys, words)
    assert [path.name for path in tmp_path.iterdir()] == ["page.png"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tests.ask.test_load import saved

    return saved("qwen3_vl", tmp_path_factory.mktemp("model"))


def test_ask_prints_the_answer_and_tells_how_loading_goes(page, tmp_path, folder, capsys):
    options = ["--budget", 9, "--relevance", "none", "--device", "cpu", "--max-new-tokens", 5]
    assert status("ask", page, "what is the total ?", "--model", folder, *options, "--out", "saw.png") == 0
    said = capsys.readouterr()
    import texturevlm as tv

    model = tv.load_vlm(folder, budget=9, relevance="none", device="cpu")
    assert said.out.strip() == model.ask(page, "what is the total ?", max_new_tokens=5)
    assert f"loading {folder} …" in said.err and "saw.png: what the model saw" in said.err
    assert (tmp_path / "saw.png").is_file()


def test_ask_finds_its_images_and_its_question_around_options(page, folder, capsys):
    options = ["--model", folder, "--budget", 12, "--relevance", "none", "--device", "cpu", "--max-new-tokens", 3]
    answers = []
    for arguments in ([page, page, "Q", *options], [page, *options, page, "Q"], [*options, page, page, "Q"]):
        assert status("ask", *arguments) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] and answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("kind", ["weighted", "merged"])
def test_ask_with_tokens_of_another_kind(page, folder, capsys, kind):
    options = ["--relevance", "none", "--device", "cpu", "--max-new-tokens", 3, "--out", "saw.png"]
    assert status("ask", page, "what is it ?", "--model", folder, "--tokens", kind, *options) == 0
    import texturevlm as tv

    model = tv.load_vlm(folder, relevance="none", device="cpu", tokens=kind)
    assert capsys.readouterr().out.strip() == model.ask(page, "what is it ?", max_new_tokens=3)


@pytest.mark.parametrize("keep", [[], ["--keep", 4], ["--keep", "0.5"]])
def test_ask_reduces(page, folder, capsys, keep):
    """As `load_vlm` does; without --keep twice the budget is chosen and the budget stays."""
    import texturevlm as tv

    options = ["--budget", 9, "--relevance", "none", "--device", "cpu", "--max-new-tokens", 5]
    assert status("ask", page, "what is the total ?", "--model", folder, *options, "--reduce", "tome,fastv", *keep) == 0
    number = {"keep": {"4": 4, "0.5": 0.5}[str(keep[1])]} if keep else {}
    given = {"budget": 9, "relevance": "none", "device": "cpu"}
    model = tv.load_vlm(folder, **given, reduce=["tome", "fastv"], **number)
    assert capsys.readouterr().out.strip() == model.ask(page, "what is the total ?", max_new_tokens=5)


def test_reading_by_ocr_is_announced_once_a_page(page, monkeypatch, caplog):
    monkeypatch.setattr("texturevlm.relevance.words.read_page", lambda image: Page((), (200, 300)))
    for command in ("look", "allocate"):
        assert status(command, page, "--query", "Total?", "--relevance", "words", "--budget", 4) == 0
        assert [record.getMessage() for record in caplog.records] == ["reading an image of 300 × 200 by OCR …"]
        caplog.clear()


def test_ask_takes_several_images_and_two_looks(page, folder, capsys):
    options = ["--model", folder, "--budget", 12, "--looks", 2, "--device", "cpu", "--max-new-tokens", 3]
    assert status("ask", page, page, models.QUESTION, *options) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["page.png", "--model", "x"], ["QUESTION"]),
        (["What is it?", "page.png", "--model", "x"], ["images and then a QUESTION"]),
        (["http://127.0.0.1:9/a.png", "Q", "--model", "x"], ["http://127.0.0.1:9/a.png cannot be downloaded"]),
        (["ftp://example.org/a.png", "Q", "--model", "x"], ["http, https or data, got ftp://example.org/a.png"]),
        ([".", "Q", "--model", "x"], ["folder"]),
        (["page.png", "Q", "--model", "x", "--colour"], ["--colour"]),
        (["page.png", "Q", "--model", "/nowhere/at/all"], ["load_vlm: no such folder: /nowhere/at/all"]),
        (["gone.png", "Q", "--model", "/nowhere/at/all"], ["no such file: gone.png"]),
        (["page.png", "What", "is", "it?"], ["no such file: What; ask one QUESTION, and put quotes around its words"]),
        (["page.png", "Q", "--model", "/nowhere/at/all", "--looks", "3"], ["--looks", "3"]),
        (["page.png", "Q", "--model", "/nowhere", "--fps", "3"], ["--fps takes a video, got page.png"]),
        (
            ["page.png", "page.png", "Q", "--model", "/nowhere", "--rate", "5"],
            ["--rate takes a video, got page"],
        ),
        (["page.png", "Q", "--model", "/nowhere/at/all", "--out", "saw.gif"], ["--out must end in .png"]),
        (["camera:0", "page.png", "Q", "--model", "/nowhere"], ["a video must stand alone", "got camera:0 among 2"]),
        (["camera:0", "Q", "--model", "/nowhere", "--looks", "2"], ["--looks must be 1 or auto for a video, got 2"]),
        (["camera:0", "Q", "--model", "/nowhere", "--rate", "0"], ["rate must be above 0, got 0.0"]),
        (["page.png", "Q", "--model", "/nowhere", "--keep", "4"], ["keep needs reduce, one of random"]),
        *(
            (["page.png", "Q", "--reduce", "tome", "--keep", keep], ["or a share above 0 and at most 1.0", repr(keep)])
            for keep in ("half", "0", "9.0", "0.0")
        ),
        (
            ["page.png", "Q", "--model", "/nowhere", "--reduce", "visonzip"],
            ["reduce must be one of random", "visonzip"],
        ),
        (["page.png", "Q", "--model", "/nowhere", "--reduce", "fastv", "--keep", "0"], ["--keep", "from 1", "'0'"]),
        (
            ["page.png", "Q", "--model", "/nowhere", "--reduce", "fastv", "--keep", "9.0"],
            ["--keep", "a share", "'9.0'"],
        ),
        (
            ["page.png", "Q", "--model", "/nowhere", "--budget", "8", "--reduce", "fastv", "--keep", "9"],
            ["keep of fastv must be at most the budget, 8, got 9"],
        ),
    ],
)
def test_ask_refuses_in_one_line(page, capsys, arguments, words):
    assert status("ask", *arguments) == 2
    said = capsys.readouterr()
    complaint = [line for line in said.err.splitlines() if not line.startswith("loading")]
    assert said.out == "" and len(complaint) == 1 and complaint[0].startswith("texturevlm ask")
    assert all(word in complaint[0] for word in words)


def test_allocate_shares_a_budget_between_images(page, tmp_path, capsys):
    Image.new("RGB", (300, 200), "white").save("blank.png")
    options = ["--budget", 12, "--relevance", "none", "--share", "--json", "tokens.json"]
    assert status("allocate", page, "blank.png", *options) == 0
    import texturevlm as tv

    textures = [tv.Texture.open(path) for path in (page, "blank.png")]
    wanted = tv.choose_tokens(textures, budget=12, relevance="none", share=True)
    found = json.loads((tmp_path / "tokens.json").read_text())
    assert found == [json.loads(one.to_json()) for one in wanted] and sum(len(one["tokens"]) for one in found) <= 12
    assert "tokens of 32×32" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["look", "gone.png"],
        ["channels", "gone.png"],
        ["channels", "https://example.org/a.png"],
        ["fit-pca", "gone", "--model", "x", "--out", "new/p.safetensors"],
        ["fit-codebook", "gone", "--model", "x", "--out", "new/c.safetensors"],
        ["fit-codebook", ".", "--model", "reader", "--out", "new/c.safetensors"],
        ["fit-codebook", ".", "--model", "reader", "--out", "new/c.safetensors", "--entries", "70000"],
        ["video", "gone.mp4", "--out", "new/a.mp4"],
        ["video", "camera:99", "--out", "new/a.mp4"],
        ["video", ".", "--out", "new/a.mp4", "--budget", "0"],
        ["video", ".", "--out", "new/a.mp4", "--limit", "0"],
        ["video", ".", "--out", "new/a.mp4", "--allocator", "circles"],
        ["video", ".", "--out", "new/a.mp4", "--relevance", "smell"],
        ["video", ".", "--out", "new/a.mp4", "--device", "cuda:99"],
        ["eval", "gone", "--out", "new"],
        ["eval", ".", "--out", "new"],
        ["eval", ".", "--out", "new", "--device", "cuda:99"],
        ["eval", ".", "--out", "new", "--limit", "none"],
        ["eval", "--out", "new"],
        ["eval", "."],
        ["eval", "--from", "gone.jsonl"],
        ["eval", ".", "--from", "page.png"],
        ["eval", "--from", "page.png"],
        ["eval", "imagenet", ".", "--model", "m", "--out", "new"],
        ["eval", "docvqa", "gone", "--model", "m", "--out", "new"],
        ["eval", "docvqa", ".", "--model", "m"],
        ["eval", "docvqa", ".", "--model", "m", "--out", "new", "--relevance", "attention"],
        ["eval", "docvqa", ".", "--model", "m", "--out", "new", "--allocators", "circles"],
        ["eval", "docvqa", ".", "--model", "m", "--out", "new", "--conditions", "none"],
        ["eval", "docvqa", ".", "--model", "m", "--out", "new", "--batch", "0"],
        ["train", "gone.toml", "--out", "new"],
        ["train", "page.png", "--out", "new"],
        ["pack-pages", "gone", "--words", "w", "--out", "new"],
        ["render-pages", "--out", "new", "--count", "0"],
        ["render-pages", "--out", "new", "--fonts", "gone"],
        ["ship-scout", "--spotter", "gone", "--ranker", "gone", "--out", "new/scout.npz"],
        ["fit-words", "gone", "--words", "w", "--out", "new/words.json"],
        ["bench", "engine", "--device", "abacus"],
        ["bench", "engine", "--json", "new/engine.json", "--device", "cpu"],
        ["bench", "engine", "--json", "engine.md", "--device", "cpu"],
        ["doctor", "page.png"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_a_mistake_in_one_line_and_makes_nothing(page, tmp_path, capsys, arguments):
    assert status(*arguments) == 2
    assert_one_line(capsys, [f"texturevlm {arguments[0]}: "])
    assert [path.name for path in tmp_path.iterdir()] == ["page.png"]


def test_every_command_is_in_a_file_of_its_own():
    from texturevlm import commands
    from texturevlm.cli import COMMANDS

    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert files - {"__init__", "arguments", "reading"} == {name.replace("-", "_") for name in COMMANDS}
