"""texturevlm fit-codebook, with a small random model."""

import pytest
from PIL import Image

from tests.ask.test_load import saved
from tests.train.papers import drawn
from texturevlm.ask import load_vlm
from texturevlm.cli import main
from texturevlm.codebook import Codebook


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [str(saved(kind, tmp_path_factory.mktemp(kind))) for kind in ("qwen3_vl", "qwen2_5_vl")]


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(9):
        image, _ = drawn([("Total", str(number)), ("Date", "3 May"), ("Phone", "555")], size=(192, 256))
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def fit(pages, model, out, *more):
    options = ["--entries", "16", "--stages", "2", "--groups", "1", "--budget", "16"]
    options += ["--relevance", "none", "--device", "cpu"]
    return main(["fit-codebook", str(pages), "--model", model, "--out", str(out), *options, *more])


def test_a_book_is_fitted_and_knows_its_model(pages, models, tmp_path, capsys):
    out = tmp_path / "new" / "book.safetensors"
    assert fit(pages, models[0], out) == 0
    said = capsys.readouterr().out
    assert "4 bytes per token" in said and "variance lost, stage after stage" in said
    book = Codebook.load(out)
    own, other = (load_vlm(model, device="cpu", captured=False).adapter for model in models)
    book.check_model("ask", own)
    with pytest.raises(ValueError, match="codebook must be fitted to this model"):
        book.check_model("ask", other)


def test_mistakes_are_one_line_and_leave_nothing(pages, models, tmp_path, capsys):
    out = tmp_path / "book.safetensors"
    (pages / "0.png").write_bytes(b"no image")
    assert fit(pages, models[0], out) == 2
    assert "--skip-bad continues without it" in capsys.readouterr().err
    assert fit(pages, "nowhere", out, "--skip-bad", "--entries", "4096") == 2  # before a model is loaded
    assert "--entries 4096 needs at least 4 tokens" in (said := capsys.readouterr().err) and "of 9 images" in said
    assert not out.exists()
