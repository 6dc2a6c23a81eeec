"""What rows can hold beside patches."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.ask.test_bad_input import save
from tests.corpus import BUDGET, faults, fill, keys, made
from texturevlm import corpus
from texturevlm.cli import main
from texturevlm.codebook import Codebook, TokenFeatures, tower_digest
from texturevlm.corpus.payloads import model_side
from texturevlm.corpus.recipe import Recipe

pytest.importorskip("pyarrow", reason="needs the extra corpus")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("source") / "in", 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save("qwen3_vl", tmp_path_factory.mktemp("model")))


def test_thumbnails(source, tmp_path):
    made(source, tmp_path / "out", write="thumbnails")
    for number in range(5):
        sample = corpus.open(tmp_path / "out")[number]
        small = Image.open(io.BytesIO(sample["thumbnails"].numpy().tobytes()))
        assert small.format == "JPEG" and (small.height, small.width) == sample["size"]
        wanted = np.asarray(Image.open(source / sample["key"]).convert("RGB"), dtype=float)
        assert np.abs(np.asarray(small, dtype=float) - wanted).mean() < 10


def test_allocations(source, tmp_path):
    made(source, tmp_path / "out", write="allocations")
    sample = corpus.open(tmp_path / "out")[0]
    assert set(sample) == {"key", "digest", "size", "question", "allocation"}
    assert sample["allocation"].budget <= BUDGET and bool(sample["allocation"].valid.all())


def test_features_are_those_of_the_model(source, model, tmp_path):
    side = model_side(model)
    made(source, tmp_path / "out", write="features", model=model, patch=side, budget=6)
    vlm = tv.load_vlm(model, device="cpu")
    sample = corpus.open(tmp_path / "out")[2]
    texture = tv.Texture.open(source / sample["key"]).mipmapped()
    allocation = tv.choose_tokens(texture, budget=6, patch=side, relevance="none")
    tokens = vlm.adapter.encode(texture, allocation)
    wanted = torch.stack([tokens.embeds, *tokens.deepstack], 2)[0][allocation.valid[0]]
    assert sample["features"].dtype == torch.float16 and sample["features"].shape == wanted.shape
    assert torch.allclose(sample["features"].float(), wanted.float(), atol=5e-3, rtol=5e-3)
    with pytest.raises(ValueError, match=f"patch must be {side} for"):
        made(source, tmp_path / "other", write="features", model=model, patch=side // 2)
    vlm.detach()


def book_of(adapter, path, *, seed=0, **changed):
    """A codebook of random entries for a model's features, saved: 2 groups, 3 stages."""
    parts = 1 + len(adapter.config.vision_config.deepstack_visual_indexes)
    width = parts * adapter.model.get_input_embeddings().weight.shape[1]
    entries = torch.randn(1, 2, 3, 16, width // 2, generator=torch.Generator().manual_seed(seed))
    about = {"model": "m", "digest": tower_digest(adapter)} | changed
    Codebook(entries, torch.zeros(1, width), torch.ones(1, width), torch.zeros(0), **about).save(path)
    return str(path)


def test_codes_come_from_the_codebook_of_the_model(source, model, tmp_path):
    adapter = tv.load_vlm(model, device="cpu", captured=False).adapter
    path, side = tmp_path / "book.safetensors", model_side(model)
    how = {"write": "codes", "model": model, "codebook": book_of(adapter, path), "patch": side, "budget": 6}
    made(source, tmp_path / "out", **how)
    made(source, tmp_path / "features", **how | {"write": "features", "codebook": ""})
    assert not faults(tmp_path / "out")
    opened, features, book = corpus.open(tmp_path / "out"), corpus.open(tmp_path / "features"), Codebook.load(path)
    for number in range(5):
        codes, sample = opened[number]["codes"], features[number]
        wanted = TokenFeatures(sample["features"].flatten(1).float(), sample["allocation"].level[0])
        assert codes.dtype == torch.uint16 and codes.shape == (opened[number]["allocation"].budget, 2, 3)
        same = codes.long() == book.encode(wanted).long()
        assert same.float().mean() > 0.9  # features were rounded to 16 bits
    book_of(adapter, path, seed=1)
    with pytest.raises(ValueError, match="was begun with code"):
        made(source, tmp_path / "out", **how)


def test_a_wrong_codebook_is_refused_and_leaves_nothing(source, model, tmp_path, capsys):
    adapter = tv.load_vlm(model, device="cpu", captured=False).adapter
    path, out = tmp_path / "book.safetensors", tmp_path / "out"
    given = ["corpus", str(source), "--out", str(out), "--write", "codes", "--model", model, "--codebook", str(path)]
    given += ["--budget", "6", "--relevance", "none", "--device", "cpu"]
    path.write_bytes(b"no codebook")
    assert main([*given, "--workers", "1"]) == 2
    assert "path must be a file from Codebook.save" in capsys.readouterr().err.splitlines()[-1] and not out.exists()
    book_of(adapter, path, digest="0" * 64)
    assert main([*given, "--workers", "0"]) == 2  # of another process: test_a_worker_that_cannot_begin_says_why
    assert "codebook must be fitted to this model" in capsys.readouterr().err.splitlines()[-1]
    book_of(adapter, path)
    assert main([*given, "--workers", "0"]) == 0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"write": "feature"}, "write must be one of patches, features, codes, allocations, thumbnails, got 'feature'"),
        ({"write": "features"}, "write 'features' needs a model"),
        ({"model": "reader"}, "model is for write features or codes, got it with 'patches'"),
        ({"write": "codes", "model": "reader"}, "codebook must be given for write 'codes' alone"),
        ({"format": "zip"}, "format must be one of parquet, webdataset, safetensors, got 'zip'"),
        ({"budget": 0}, "budget must be at least 1, got 0"),
    ],
)
def test_recipes_that_make_no_sense(given, wanted):
    with pytest.raises(ValueError, match=wanted):
        Recipe("in", "images", **given)


def test_a_report_shows_what_was_seen(source, tmp_path):
    from texturevlm.corpus.report import write_report

    (source / "zz<b>.png").write_text("no image")
    for write in ("patches", "allocations", "thumbnails"):
        found = made(source, tmp_path / write, write=write)
        write_report(corpus.open(tmp_path / write), found)
        page, sheet = (tmp_path / write / "report.html").read_text(), Image.open(tmp_path / write / "contact.png")
        assert "The bottleneck was" in page and "1 errors" in page and "<td>zz&lt;b&gt;.png</td>" in page
        assert " (bottleneck)</td>" in page and 'src="contact.png"' in page and "<td>budget</td><td>12</td>" in page
        assert sheet.size == (6 * 192, 192) and len(set(sheet.convert("L").get_flattened_data())) > 4
    (source / "zz<b>.png").unlink()
    assert len(keys(tmp_path / "patches")) == 5
