"""Loading: a folder gives a model that answers; what is missing or wrong is named."""

import gc
import json
import re

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION
from tests.test_cli import status
from tests.vlm import small
from texturevlm.ask import attention as attended
from texturevlm.ask import load_vlm
from texturevlm.ask import model as asking
from texturevlm.ask.attention import question_attention
from texturevlm.ask.processor import TextureProcessor

SHORT = {"max_new_tokens": 4}


@pytest.fixture(params=list(models.FAMILIES))
def folder(request, tmp_path):
    """A checkpoint as it lies on a disk."""
    return saved(request.param, tmp_path)


def saved(family, path):
    model, processor = models.built(family)
    model.save_pretrained(path)
    processor.tokenizer.save_pretrained(path)
    processor.image_processor.save_pretrained(path)
    return path


def test_a_folder_is_loaded_and_asked(folder):
    model = tv.load_vlm(folder, budget=9, relevance="none", device="cpu")
    image = models.noise(96, 96)
    answer = model.ask(image, QUESTION, **SHORT)
    original = tv.VLM(*models.built(model.model.config.model_type), budget=9, relevance="none")
    assert answer and answer == original.ask(image, QUESTION, **SHORT)
    assert model.look(image, QUESTION).width > 1000
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


def test_every_field_of_a_token_config_is_an_option_for_every_question(tmp_path):
    path = saved("qwen3_vl", tmp_path)
    given = {"balance": "learned", "options": {"overview": 0.5}}
    loaded = tv.load_vlm(path, budget=9, relevance="none", device="cpu", **given)
    for model in (loaded, tv.VLM(*models.built("qwen3_vl"), budget=9, relevance="none", **given)):
        assert model.config.tokens.balance == "learned" and model.config.tokens.options == {"overview": 0.5}
        assert model.config_for(balance="even").tokens.balance == "even"
    with pytest.raises(ValueError, match=r"load_vlm: balance must be one of even, learned, got 'learnd' \(did you"):
        tv.load_vlm(path, balance="learnd")
    with pytest.raises(TypeError, match=r"load_vlm: options must be .* got balence \(did you mean balance\?\)"):
        tv.load_vlm(path, balence="even")


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_dtype_is_obeyed(tmp_path, dtype):
    model = tv.load_vlm(saved("qwen3_vl", tmp_path), budget=9, relevance="none", dtype=dtype, device="cpu")
    assert model.model.dtype == torch.bfloat16
    assert model.ask(models.noise(64, 64), QUESTION, **SHORT)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_rotary_frequencies_stay_exact_in_half_precision(tmp_path, family):
    """bfloat16 frequencies are 0.9 rad off at position 1000."""
    path = saved(family, tmp_path)
    exact, cast = (tv.load_vlm(path, budget=9, dtype=dtype, device="cpu") for dtype in ("float32", "bfloat16"))
    wanted = dict(exact.model.named_buffers())
    found = {name: buffer for name, buffer in cast.model.named_buffers() if name.endswith("inv_freq")}
    assert len(found) >= 2
    for name, buffer in found.items():
        assert (buffer.double() * 1000 - wanted[name].double() * 1000).abs().max() < 1e-3, name


@pytest.mark.parametrize("dtype", ["float23", "int8", 3])
def test_a_wrong_dtype_is_refused(tmp_path, dtype):
    with pytest.raises(ValueError, match="load_vlm: dtype must be a floating one of torch"):
        tv.load_vlm(tmp_path, dtype=dtype)


def test_a_chat_template_of_old_is_found(tmp_path):
    """LLaVA-1.5 keeps it in a file of the processor's."""
    path = saved("llava", tmp_path)
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"must have a chat template \(chat_template.jinja\), got none in"):
        tv.load_vlm(path, device="cpu")
    (path / "chat_template.json").write_text(json.dumps({"chat_template": small.BARE}))
    assert tv.load_vlm(path, budget=9, relevance="none", device="cpu").ask(models.noise(64, 64), QUESTION, **SHORT)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["tokenizer.json", "tokenizer_config.json"], "tokenizer"),
        (["preprocessor_config.json"], "processor"),
        (["config.json"], "config.json"),
        (["model.safetensors"], "model.safetensors"),
    ],
)
def test_a_missing_file_is_named(tmp_path, missing, words):
    path = saved("qwen3_vl", tmp_path)
    for name in missing:
        (path / name).unlink()
    with pytest.raises(ValueError, match=f"load_vlm: model must be .*{words}") as raised:
        tv.load_vlm(path, device="cpu")
    assert "\n" not in str(raised.value)


def test_an_unknown_family_lists_the_known_ones(tmp_path):
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"must be one of qwen3_vl, .*llava_onevision.*, got 'bert'"):
        tv.load_vlm(tmp_path)


def test_what_is_no_model_is_refused():
    with pytest.raises(FileNotFoundError, match="load_vlm: no such folder: /nowhere/at/all"):
        tv.load_vlm("/nowhere/at/all")
    with pytest.raises(ValueError, match="load_vlm: model must be a hub id or a folder"):
        tv.load_vlm(None)
    with pytest.raises(ValueError, match="load_vlm: budget must be at least 1, got 0"):
        tv.load_vlm("/nowhere/at/all", budget=0)


def test_what_a_saved_processor_says_is_the_default(tmp_path):
    path = saved("qwen3_vl", tmp_path)
    given = TextureProcessor.from_pretrained(path, budget=5, allocator="fit", relevance="scout")
    given.save_pretrained(path)
    model = tv.load_vlm(path, device="cpu")
    assert (model.budget, model.config.tokens.allocator, model.config.tokens.relevance) == (5, "fit", "scout")
    model = tv.load_vlm(path, device="cpu", budget=7, allocator="auto", relevance="none")
    assert (model.budget, model.config.tokens.allocator, model.config.tokens.relevance) == (7, "auto", "none")
    assert tv.load_vlm(path, device="cpu", relevance="none").budget == 5
    assert TextureProcessor.from_pretrained(path, budget=None).budget == 5


@pytest.mark.parametrize(("pair", "wanted"), [((4, 9), 9), ((300, 512), 300), ((32, 512), 273)])
def test_settings_for_training_give_one_budget_and_one_relevance(tmp_path, pair, wanted):
    path = saved("qwen3_vl", tmp_path)
    given = TextureProcessor.from_pretrained(path, budget=pair, relevance=("scout", "none"))
    given.save_pretrained(path)
    model = tv.load_vlm(path, device="cpu")
    assert (model.budget, model.config.tokens.relevance) == (wanted, "scout")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 4096}, "budget must leave room in the model's context of 4096 tokens, got 4096"),
        ({"budget": "many"}, "budget must be a whole number, got 'many'"),
        ({"budget": [9, 4]}, r"budget must be a number or a pair \(low, high\), got \(9, 4\)"),
        ({"relevance": "smell"}, "relevance must be one of .*, got 'smell'"),
        ({"relevance": ["scout", 3]}, "relevance must be a scorer or the name of one, got 3"),
        ({"allocator": None}, "allocator must be a name, or an object of its kind, got None"),
        ({"model": None}, "must be as save_pretrained wrote it"),
    ],
)
def test_wrong_settings_are_named_before_the_weights_are_read(tmp_path, change, said):
    path = saved("qwen3_vl", tmp_path)
    TextureProcessor.from_pretrained(path).save_pretrained(path)
    file = path / "texturevlm.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    (path / "model.safetensors").unlink()
    for function, load in (("load_vlm", tv.load_vlm), ("TextureProcessor", TextureProcessor.from_pretrained)):
        with pytest.raises(ValueError, match=f"^{function}: {re.escape(str(file))}:? {said}"):
            load(path)


def test_a_misspelled_model_of_the_package_is_recognised(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for load in (tv.load_vlm, TextureProcessor.from_pretrained):
        with pytest.raises((ValueError, OSError), match=r" \(did you mean reader\?\)$"):
            load("raeder")
        with pytest.raises((ValueError, OSError)) as caught:
            load("rabbit")
        assert "did you mean" not in str(caught.value)
    (tmp_path / "raeder").mkdir()
    with pytest.raises(ValueError, match="model must be complete") as caught:  # there is such a folder
        tv.load_vlm("raeder")
    assert "did you mean" not in str(caught.value)


def test_two_looks_of_a_family_that_cannot_are_refused_before_the_weights_are_read(tmp_path, capsys):
    small.MORE["gemma3"]()[0].config.save_pretrained(tmp_path)  # there are no weights
    said = r"looks must be 1 for gemma3, got 2 \(see docs/models.md\)"
    with pytest.raises(ValueError, match=f"load_vlm: {said}"):
        tv.load_vlm(tmp_path, device="cpu", looks=2)
    assert status("ask", "examples/invoice.png", "What?", "--model", tmp_path, "--looks", 2, "--device", "cpu") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("texturevlm ask: load_vlm: looks must be 1 for gemma3")


def test_looks_for_every_question(tmp_path, monkeypatch):
    path = saved("qwen3_vl", tmp_path)
    once, twice = (tv.load_vlm(path, budget=12, device="cpu", looks=looks) for looks in (1, 2))
    image = models.noise(300, 400)
    looked = []
    monkeypatch.setattr(attended, "question_attention", lambda *args: looked.append(1) or question_attention(*args))
    assert twice.ask(image, QUESTION, **SHORT) == once.ask(image, QUESTION, looks=2, **SHORT) and len(looked) == 2
    assert twice.ask(image, QUESTION, looks=1, **SHORT) == once.ask(image, QUESTION, **SHORT) and len(looked) == 2
    with pytest.raises(ValueError, match="load_vlm: relevance with looks=2 must be one of auto, attention, got 'none'"):
        tv.load_vlm(path, looks=2, relevance="none")


def test_the_address_of_a_page_is_no_model(capsys):
    page = "https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct/tree/main"
    said = r"model must be a hub id \(Qwen/Qwen3-VL-2B-Instruct\) or a folder, got the URL https://hugg"
    with pytest.raises(ValueError, match=f"load_vlm: {said}"):
        tv.load_vlm(page)
    assert status("ask", "examples/invoice.png", "What?", "--model", page) == 2
    assert "model must be a hub id (Qwen/Qwen3-VL-2B-Instruct) or" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(ValueError, match=r"load_vlm: model must be a hub id or a folder, got the URL https://a\.org"):
        tv.load_vlm("https://a.org")


def test_the_command_asks_as_the_saved_processor_says(tmp_path, capsys, monkeypatch):
    path = saved("qwen3_vl", tmp_path)
    TextureProcessor.from_pretrained(path, budget=5, relevance="none").save_pretrained(path)
    asked = []
    monkeypatch.setattr(tv, "load_vlm", lambda *args, **options: asked.append(load_vlm(*args, **options)) or asked[-1])
    command = ("ask", "examples/invoice.png", "What?", "--model", path, "--device", "cpu", "--max-new-tokens", 2)
    assert status(*command) == 0 and status(*command, "--budget", 6, "--relevance", "scout") == 0
    assert [(one.budget, one.config.tokens.relevance) for one in asked] == [(5, "none"), (6, "scout")]
    capsys.readouterr()
    assert status("ask", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "prior, channels, embedding:MODEL,PCA, model, none, or, with --looks 2, attention" in said
    assert "piece by piece, as the model generates it" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="load_vlm: device must be one of this machine's 0 GPUs or cpu, got cuda"):
        tv.load_vlm(tmp_path, device="cuda")


def test_a_device_that_holds_no_numbers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="load_vlm: device must be one that works here, got meta"):
        tv.load_vlm(tmp_path, device="meta")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--budget", "0"), "--budget: must be a whole number from 1, got '0'"),
        (("--budget", "1"), "texturevlm ask: budget for 2 images must be at least 2, got 1"),
        (("--max-new-tokens", "0"), "--max-new-tokens: must be a whole number from 1, got '0'"),
        (
            ("--relevance", "embedding"),
            "must be one of auto, words, scout, prior, channels, attention, none, model, got 'embedding'",
        ),
        (("--relevance", "attention"), "which takes looks=2"),
        (("--relevance", "words", "--looks", "2"), "relevance with looks=2 must be one of auto, attention"),
        (("--allocator", "circles"), "--allocator must be one of"),
        (("--relevance", "smell"), "--relevance must be one of"),
        (("--relevance", ""), "--relevance must be one of"),
        (("--allocator", ""), "--allocator must be one of"),
        (("--tokens", "soft"), "--tokens"),
        (("--tokens", "weighted", "--looks", "2"), "tokens with looks=2 must be one of chosen"),
        (("--device", "abacus"), "device must be one of torch"),
        (("--device", "cuda:99"), "device must be one of this machine's"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_before_a_model_is_loaded(capsys, option, words):
    image = "examples/invoice.png"
    assert status("ask", image, image, "What?", "--model", "/nowhere/at/all", *option) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("texturevlm ask: ") and words in said[0]


def test_no_garbage_is_collected_while_transformers_is_imported(tmp_path, monkeypatch):
    collecting, find = [], asking.find
    monkeypatch.setattr(asking, "find", lambda *given, **how: collecting.append(gc.isenabled()) or find(*given, **how))
    with pytest.raises(FileNotFoundError):
        tv.load_vlm("/nowhere/at/all")
    assert collecting == [False] and gc.isenabled()
