"""A little package of somebody else adds an allocator, a scorer and a family: by entry point and as objects, at every
door."""

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
from texturevlm.placement import TokenConfig, place, prepare
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

made = Corner()

class Nameless:
    prepare = score = None
"""
FAMILY = """
import transformers
from texturevlm.vlm.families.projected import Llava

class StrangerConfig(transformers.LlavaConfig):
    model_type = "stranger_vl"

class StrangerVLM(transformers.LlavaForConditionalGeneration):
    config_class = StrangerConfig

class StrangerFamily(Llava):
    architecture = "stranger_vl:StrangerVLM"
"""
ENTRY_POINTS = """
[texturevlm.allocators]
sparse = stranger:sparse

[texturevlm.scorers]
corner = stranger:Corner
made = stranger:made
nameless = stranger:Nameless

[texturevlm.families]
stranger_vl = stranger_vl:StrangerFamily
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
    (site / "stranger_vl.py").write_text(FAMILY)
    monkeypatch.syspath_prepend(site)
    registry.plug_ins.cache_clear()
    import stranger

    yield stranger
    registry.plug_ins.cache_clear()
    for name in ("stranger", "stranger_vl"):
        sys.modules.pop(name, None)


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


def test_an_entry_point_of_scorers_may_be_a_scorer_and_must_make_one(stranger, image):
    texture = tv.Texture(image)
    ours, theirs = (tv.choose_tokens(texture, "a", budget=8, relevance=name) for name in ("corner", "made"))
    assert torch.equal(ours.centre, theirs.centre)
    with pytest.raises(TypeError, match=r"choose_tokens: relevance 'nameless' must be a scorer .*, which has no name"):
        tv.choose_tokens(texture, "a", budget=8, relevance="nameless")


def test_their_names_are_used_by_commands_corpora_and_streams(stranger, image, tmp_path, capsys):
    path = tmp_path / "image.png"
    Image.new("RGB", (128, 96), "teal").save(path)
    names = ["--allocator", "sparse", "--relevance", "corner", "--budget", "20", "--patch", "16"]
    assert main(["allocate", str(path), "--query", "where?", *names, "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) <= 10
    check_recipe(Recipe(source=str(tmp_path), kind="folder", allocator="sparse", relevance="corner"))
    stream = tv.VideoStream((96, 128), 20, "sparse", patch=16, relevance="corner", query="where?")
    assert stream.step(image).allocation.valid.sum() <= 10


@pytest.fixture
def checkpoint(stranger, tmp_path):
    """A small model of their family on a disk."""
    models = pytest.importorskip("tests.ask.models")
    import stranger_vl

    llava, processor = models.built("llava")
    config = stranger_vl.StrangerConfig(**{k: v for k, v in llava.config.to_dict().items() if k != "model_type"})
    model = stranger_vl.StrangerVLM(config)
    model.load_state_dict(llava.state_dict())
    folder = tmp_path / "checkpoint"
    model.save_pretrained(folder)
    processor.tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("by", ["name", "object"])
def test_all_three_are_used_where_a_model_is_asked(stranger, checkpoint, image, by):
    how = {"name": ("sparse", "corner"), "object": (stranger.sparse, stranger.Corner())}[by]
    given = dict(zip(("allocator", "relevance"), how))
    vlm = tv.load_vlm(checkpoint, budget=20, device="cpu")
    assert type(vlm.adapter).__name__ == "StrangerFamily" and vlm.model.config.model_type == "stranger_vl"
    config = TokenConfig(20, patch=vlm.adapter.side, **given)
    placed = place(prepare(image, config), "what is the total ?", config)
    assert 0 < placed.tokens <= 10 and placed.relevance.scorer == "corner"
    answer = vlm.ask(image, "what is the total ?", return_details=True, max_new_tokens=2, **given)
    (read,) = answer.placements
    assert torch.equal(read.allocation.centre, placed.allocation.centre) and answer.tokens
    network, own = vlm.detach(), vlm.processor.processor
    processor = tv.attach(network, own, budget=20, **given)
    inputs = processor(images=image, text=processor.image_token, question="what is the total ?", return_tensors="pt")
    assert (inputs["input_ids"] == network.config.image_token_id).sum() == placed.tokens
    assert network(**inputs).logits.isfinite().all()
    processor.detach()


def test_without_their_package_the_family_is_unknown(checkpoint):
    registry.plug_ins.cache_clear()
    sys.path.remove(str(checkpoint.parent / "site"))
    with pytest.raises(ValueError, match=r"load_vlm: model_type of .* must be one of qwen3_vl, .*got 'stranger_vl'"):
        tv.load_vlm(checkpoint)


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
