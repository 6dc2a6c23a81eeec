"""embedding:MODEL,PCA is a name like any other: in choose_tokens, compile, ask and on the command line."""

import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.ask import models
from tests.channels.test_embedding import projection_for, tiny_clip
from texturevlm import cli
from texturevlm.ask import VLM
from texturevlm.channels import DenseEncoder
from texturevlm.relevance import EmbeddingScorer, find_relevance


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The name, and the scorer that it stands for."""
    folder = tmp_path_factory.mktemp("embedding")
    encoder = DenseEncoder.load(tiny_clip(folder / "clip"))
    projection = projection_for(encoder, 24)
    projection.save(folder / "pca.safetensors")
    return f"embedding:{folder / 'clip'},{folder / 'pca.safetensors'}", EmbeddingScorer(encoder, projection)


def test_the_name_stands_for_the_scorer(made):
    name, scorer = made
    texture = tv.Texture.open(torch.rand(1, 3, 64, 96))
    found, wanted = (find_relevance(texture, "a b", relevance=one) for one in (name, scorer))
    assert found.scorer == "embedding" and torch.allclose(found.mass, wanted.mass)
    assert not torch.allclose(found.mass, find_relevance(texture, "a b", relevance="none").mass)


def test_it_is_reachable_from_ask_compile_and_the_command_line(made, tmp_path, monkeypatch):
    name, _ = made
    monkeypatch.chdir(tmp_path)
    asked = VLM(*models.built("qwen3_vl"), budget=6, relevance=name)
    (chosen,) = asked.prepare(models.noise(64, 64)).choose("a b")
    assert chosen.relevance.scorer == "embedding"
    compiled = tv.compile((64, 96), budget=6, relevance=name, device="cpu")
    assert compiled(torch.rand(1, 3, 64, 96), "a b") is not None
    Image.new("RGB", (96, 64), "teal").save("image.png")
    options = ["--relevance", name, "--budget", "6", "--device", "cpu"]
    assert cli.main(["look", "image.png", "--query", "a b", *options]) == 0
    assert (tmp_path / "look.png").is_file()


def test_mistakes_are_told_before_slow_work(made, tmp_path):
    name, _ = made
    texture = tv.Texture.open(torch.rand(1, 3, 64, 96))
    pca = name.rpartition(",")[2]
    for relevance, message in {
        "embedding:model": "relevance must be embedding:MODEL,PCA, got 'embedding:model'",
        f"embedding:x,{tmp_path / 'gone'}": "must name a PCA file of `texturevlm fit-pca`, got .*gone, which does not",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            tv.choose_tokens(texture, "a", relevance=relevance)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            tv.load_vlm("reader", relevance=relevance)
    with pytest.raises(ValueError, match=r"ask: relevance must be one of .*, got 'embedding' without its models"):
        VLM(*models.built("qwen3_vl")).ask(models.noise(64, 64), "a", relevance="embedding")
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, OSError), match="empty"):
        tv.choose_tokens(texture, "a", relevance=f"embedding:{tmp_path / 'empty'},{pca}")
