"""Options of `from_pretrained` reach transformers, and a model is loaded where it will be."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, picture
from tests.ask.test_bad_input import save
from texturevlm.channels.pretrained import Checkpoint

ACCELERATE = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="device_map needs accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("half")
    save("qwen3_vl", path)
    models.built("qwen3_vl")[0].to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def given(monkeypatch):
    """What each part of a checkpoint was loaded with."""
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    found = {}
    kind = transformers.Qwen3VLForConditionalGeneration
    for owner in (kind, AutoImageProcessor, transformers.AutoTokenizer):

        def recording(cls, name, load=owner.from_pretrained, of=owner.__name__, **options):
            found[of] = options
            return load(name, **{one: value for one, value in options.items() if one != "quantization_config"})

        monkeypatch.setattr(owner, "from_pretrained", classmethod(recording))
    return found


def test_options_reach_transformers(folder, given):
    quantised = object()
    model = tv.load_vlm(
        folder,
        device="cpu",
        budget=9,
        relevance="none",
        attn_implementation="eager",
        quantization_config=quantised,
        revision="main",
        token="secret",
    )
    assert model.model.config._attn_implementation == "eager"
    whole = given.pop("Qwen3VLForConditionalGeneration")
    assert whole["quantization_config"] is quantised and whole["dtype"] == "auto"
    assert len(given) == 2
    for options in (whole, *given.values()):
        assert (options["revision"], options["token"], options["trust_remote_code"]) == ("main", "secret", False)
        assert options is whole or not {"quantization_config", "attn_implementation", "dtype"} & set(options)


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(None, torch.bfloat16), ("auto", torch.bfloat16), ("float32", torch.float32), (torch.float16, torch.float16)],
)
def test_dtype_is_the_checkpoints_own_unless_it_is_named(folder, dtype, wanted):
    assert tv.load_vlm(folder, device="cpu", dtype=dtype).model.dtype == wanted


def test_code_of_a_checkpoint_runs_only_if_it_is_trusted(folder, given):
    tv.load_vlm(folder, device="cpu", trust_remote_code=True)
    assert all(options["trust_remote_code"] is True for options in given.values())


@ACCELERATE
@pytest.mark.parametrize("where", ["cpu", "auto", {"": "cpu"}])
def test_a_device_map_is_obeyed(folder, where):
    model = tv.load_vlm(folder, device_map=where, budget=9, relevance="none", dtype="float32")
    assert model.ask(picture(64, 64), QUESTION, max_new_tokens=2)
    assert where != {"": "cpu"} or model.device == torch.device("cpu")


def test_a_device_map_is_refused_beside_a_device_and_without_accelerate(folder, monkeypatch):
    with pytest.raises(ValueError, match="load_vlm: device must not be given with device_map, got cpu and 'auto'"):
        tv.load_vlm(folder, device="cpu", device_map="auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="load_vlm: device_map needs accelerate; pip install accelerate"):
        tv.load_vlm(folder, device_map="auto")


@pytest.mark.parametrize("installed", [True, False])
def test_weights_go_straight_to_their_device_where_accelerate_is_installed(monkeypatch, installed):
    calls = []

    class Kind(torch.nn.Module):
        @classmethod
        def from_pretrained(cls, name, **options):
            calls.append(options.get("device_map"))
            return cls(), {"missing_keys": []}

        def to(self, place):
            calls.append(place)
            return self

    place = torch.device("cuda", 1)
    monkeypatch.setattr("transformers.Kind", Kind, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace() if installed else None)
    network = Checkpoint("load_vlm", "x", "Kind", {}).network(place)
    assert calls == ([{"": place}] if installed else [None, place]) and not network.training


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attn_implementation": "fast"}, "one that takes attn_implementation, got .*fast"),
        ({"wheels": 3}, "one that takes wheels, got .*unexpected keyword argument 'wheels'"),
        ({"quantization_config": 3}, "one that takes quantization_config, got "),
    ],
)
def test_an_option_that_the_model_does_not_take_is_named(folder, options, said):
    with pytest.raises(ValueError, match=f"load_vlm: model must be {said}") as raised:
        tv.load_vlm(folder, device="cpu", **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("bugdet", "budget"), ("relevence", "relevance"), ("devices", "device"), ("look", "looks")]
)
def test_a_misspelled_option_is_named(wrong, meant):
    said = rf"load_vlm: options must be those of load_vlm .*, got {wrong} \(did you mean {meant}\?\)"
    with pytest.raises(TypeError, match=said):
        tv.load_vlm("/nowhere/at/all", **{wrong: 3})
