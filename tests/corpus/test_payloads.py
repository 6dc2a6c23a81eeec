"""What rows can hold beside patches."""

import io
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.ask.test_bad_input import save
from tests.corpus import BUDGET, faults, fill, keys, made
from texturevlm import corpus
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


def test_codes_come_from_the_codebook_of_the_model(source, model, tmp_path, monkeypatch):
    """By the interface of texturevlm.codebook, here one that counts the parts of a row."""
    asked = []

    class Codebook:
        @classmethod
        def load(cls, path, *, device):
            asked.append(path)
            return cls()

        def check_model(self, function, adapter):
            asked.append(adapter.config.model_type)

        def encode(self, features):
            assert features.rows.shape[1] % features.parts == 0 and len(features.level) == len(features.rows)
            return torch.arange(len(features.rows)).reshape(-1, 1, 1).expand(-1, 2, 3).to(torch.uint16)

    room = types.ModuleType("texturevlm.codebook")
    room.Codebook = Codebook
    room.TokenFeatures = lambda rows, level, parts: types.SimpleNamespace(rows=rows, level=level, parts=parts)
    monkeypatch.setitem(sys.modules, "texturevlm.codebook", room)
    book = tmp_path / "book.safetensors"
    book.write_bytes(b"a codebook")
    side = model_side(model)
    made(source, tmp_path / "out", write="codes", model=model, codebook=str(book), patch=side, budget=6)
    assert asked == [str(book), "qwen3_vl"] and not faults(tmp_path / "out")
    opened = corpus.open(tmp_path / "out")
    codes = [opened[number]["codes"] for number in range(len(opened))]
    assert all(one.dtype == torch.uint16 and one.shape[1:] == (2, 3) for one in codes)
    assert all(len(opened[number]["codes"]) == opened[number]["allocation"].budget for number in range(5))
    book.write_bytes(b"another one")
    with pytest.raises(ValueError, match="was begun with code"):
        made(source, tmp_path / "out", write="codes", model=model, codebook=str(book), patch=side, budget=6)


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

    (source / "zz.png").write_text("no image")
    for write in ("patches", "allocations", "thumbnails"):
        found = made(source, tmp_path / write, write=write)
        write_report(corpus.open(tmp_path / write), found)
        page, sheet = (tmp_path / write / "report.md").read_text(), Image.open(tmp_path / write / "contact.png")
        assert "The bottleneck was" in page and "| errors | 1 |" in page and "`zz.png`" in page
        assert sheet.size == (6 * 192, 192) and len(set(sheet.convert("L").get_flattened_data())) > 4
    (source / "zz.png").unlink()
    assert len(keys(tmp_path / "patches")) == 5
