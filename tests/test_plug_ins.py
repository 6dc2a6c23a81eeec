"""A little package of somebody else adds an allocator and a scorer: by entry point and as objects, at every door."""

import json
import sys

import pytest
import torch
from PIL import Image

import texturevlm as tv
from texturevlm import registry
from texturevlm.allocate import ALLOCATORS
from texturevlm.cli import main
from texturevlm.corpus.build import check_recipe
from texturevlm.corpus.recipe import Recipe
from texturevlm.relevance import client_scorers, find_relevance, reads_question

SOURCE = """
import torch
from texturevlm.allocate.plain import resize

def sparse(texture, relevance, *, budget, patch):
    return resize(texture, relevance, budget=max(1, budget // 2), patch=patch)

class Corner:
    name = "corner"

    def prepare(self, texture):
        return texture.batch

    def score(self, prepared, question, maps):
        query = torch.zeros(prepared, *maps.grid)
        query[:, 0, 0] = 1.0
        return (query if question else None), maps
"""
ENTRY_POINTS = """
[texturevlm.allocators]
sparse = stranger:sparse

[texturevlm.scorers]
corner = stranger:Corner
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The package, as pip would have put it on the path."""
    site = tmp_path / "site"
    metadata = site / "stranger-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "stranger.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(site)
    registry.plug_ins.cache_clear()
    import stranger

    yield stranger
    registry.plug_ins.cache_clear()
    sys.modules.pop("stranger")


@pytest.fixture
def image():
    return torch.rand(3, 96, 128)


@pytest.mark.parametrize("by", ["name", "object"])
def test_both_are_used_by_choose_tokens_and_compile(stranger, image, by):
    how = {"name": ("sparse", "corner"), "object": (stranger.sparse, stranger.Corner())}[by]
    given = dict(zip(("allocator", "relevance"), how))
    texture = tv.Texture.open(image)
    chosen = tv.choose_tokens(texture, "where?", budget=20, patch=16, **given)
    wanted = ALLOCATORS["resize"](texture, find_relevance(texture, patch=16, relevance="none"), budget=10, patch=16)
    assert torch.equal(chosen.centre, wanted.centre)
    shared = tv.choose_tokens([texture, texture], "where?", budget=40, patch=16, share=True, **given)
    assert len(shared) == 2 and find_relevance(texture, "where?", relevance=how[1]).mass[0, 0, 0] > 0.85
    look = tv.compile((96, 128), 20, patch=16, device="cpu", **given)
    assert torch.equal(look(image, "where?").allocation.centre, wanted.centre)


def test_their_names_are_used_by_commands_corpora_and_streams(stranger, image, tmp_path, capsys):
    path = tmp_path / "image.png"
    Image.new("RGB", (128, 96), "teal").save(path)
    names = ["--allocator", "sparse", "--relevance", "corner", "--budget", "20", "--patch", "16"]
    assert main(["allocate", str(path), "--query", "where?", *names, "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) <= 10
    check_recipe(Recipe(source=str(tmp_path), kind="folder", allocator="sparse", relevance="corner"))
    stream = tv.VideoStream((96, 128), 20, "sparse", patch=16, relevance="corner", query="where?")
    assert stream.step(image).allocation.valid.sum() <= 10


def test_a_client_cannot_name_a_plug_in(stranger):
    assert "sparse" in ALLOCATORS and "sparse" not in ALLOCATORS.clients
    assert "corner" in tv.SCORERS and "corner" not in client_scorers() and reads_question("corner")
    with pytest.raises(ValueError, match=r"plan: allocator must be one of resize, .*got 'sparse'"):
        ALLOCATORS.find_for_client("plan", "sparse")


def test_without_the_lab_its_allocators_say_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    registry.plug_ins.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"'cascade' comes with the lab: pip install ./lab"):
            tv.choose_tokens(tv.Texture.open(torch.rand(3, 32, 32)), allocator="cascade")
        Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
        assert main(["allocate", str(tmp_path / "a.png"), "--allocator", "dag"]) == 2
        assert capsys.readouterr().err.strip().endswith("comes with the lab: pip install ./lab")
    finally:
        registry.plug_ins.cache_clear()
