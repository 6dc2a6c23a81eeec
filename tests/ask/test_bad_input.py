"""Bad input: one clear line, nothing half-attached, no half minute of retries; status 2 on the command line."""

import importlib.util
import json
import os
import shutil
import socket
import time

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, picture
from tests.test_cli import status
from texturevlm.ask.processor import TextureProcessor
from texturevlm.channels import pretrained as hub
from texturevlm.vlm.adapter import ATTRIBUTE

SHARDS = "model.safetensors.index.json"


def save(family, path, **options):
    model, processor = models.built(family)
    model.save_pretrained(path, **options)
    processor.tokenizer.save_pretrained(path)
    processor.image_processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint as it lies on a disk."""
    return save("qwen3_vl", tmp_path_factory.mktemp("whole"), max_shard_size="250KB")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "checkpoint")


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(**values):
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


SOME_SHARD = "model-00002-of-00003.safetensors"


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("config.json", os.remove, "complete and undamaged, got {}: config.json with a model_type is missing"),
        ("config.json", halve, "complete and undamaged, got {}: config.json is not JSON"),
        ("config.json", change(model_type="bert"), "model_type of {} must be one of qwen3_vl, .*got 'bert'"),
        ("config.json", change(model_type="x", auto_map={"AutoConfig": "x.X"}), "must be one of qwen3_vl, .*got 'x'"),
        ("preprocessor_config.json", halve, "complete and undamaged, got {}: preprocessor_config.json is not JSON"),
        ("preprocessor_config.json", os.remove, "complete and undamaged, got {}: .*preprocessor_config.json"),
        ("tokenizer.json", halve, "complete and undamaged, got {}: tokenizer.json is not JSON"),
        ("tokenizer.json", os.remove, r"complete with its tokenizer \(tokenizer.json\), got {}"),
        ("chat_template.jinja", os.remove, r"must have a chat template \(chat_template.jinja\), got none in {}"),
        (SHARDS, halve, f"complete and undamaged, got {{}}: {SHARDS} is not JSON"),
        (SOME_SHARD, os.remove, f"complete and undamaged, got {{}}: {SOME_SHARD} is missing, which {SHARDS} names"),
        (SOME_SHARD, halve, f"complete and undamaged, got {{}}: {SOME_SHARD} is damaged"),
    ],
)
def test_a_damaged_checkpoint_names_its_file(folder, capsys, name, damage, said):
    damage(folder / name)
    with pytest.raises(ValueError, match="load_vlm: .*" + said.format(folder)) as raised:
        tv.load_vlm(folder, device="cpu")
    assert "\n" not in str(raised.value)
    assert status("ask", "examples/invoice.png", "What?", "--model", folder, "--device", "cpu") == 2
    *before, last = capsys.readouterr().err.splitlines()
    assert last == f"texturevlm ask: {raised.value}" and all(line.startswith("loading ") for line in before)


def test_a_tokenizer_that_is_missing_is_named_before_the_weights_are_read(folder):
    for path in (*folder.glob("tokenizer*"), *folder.glob("*.safetensors*")):
        path.unlink()
    with pytest.raises(ValueError, match=r"complete with its tokenizer \(tokenizer.json\), which knows"):
        tv.load_vlm(folder, device="cpu")


def test_without_a_network_nothing_blames_the_name_and_nobody_waits(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    begun = time.perf_counter()
    said = r"no network: 127.0.0.1 cannot be reached \(.*refused\), and some/model is neither a folder nor in the cache"
    with pytest.raises(ConnectionError, match=f"load_vlm: {said} {tmp_path}") as raised:
        tv.load_vlm("some/model", cache_dir=tmp_path)
    with pytest.raises(ConnectionError, match=f"TextureProcessor: {said}"):
        TextureProcessor.from_pretrained("some/model")
    assert status("ask", "examples/invoice.png", "What?", "--model", "some/model") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("texturevlm ask: load_vlm: no network: ")
    assert time.perf_counter() - begun < 10 and "\n" not in str(raised.value)
    with pytest.raises(ConnectionError, match="load_vlm: local_files_only is set, and some/model is neither"):
        tv.load_vlm("some/model", local_files_only=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="load_vlm: HF_HUB_OFFLINE is set, and some/model is neither"):
        tv.load_vlm("some/model")


def test_without_a_network_a_cached_model_is_loaded(monkeypatch, whole, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    cached = tmp_path / "models--some--model"
    shutil.copytree(whole, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    begun = time.perf_counter()
    model = tv.load_vlm("some/model", cache_dir=tmp_path, device="cpu", budget=9, relevance="none")
    assert time.perf_counter() - begun < 10
    assert model.ask(picture(64, 64), QUESTION, max_new_tokens=2)
    (cached / "snapshots" / ("0" * 40) / SOME_SHARD).unlink()
    with pytest.raises(ValueError, match="load_vlm: model must be complete and undamaged in the cache, got some/model"):
        tv.load_vlm("some/model", cache_dir=tmp_path, device="cpu")


def test_settings_come_from_the_hub_too(monkeypatch, whole, tmp_path):
    """Here from its cache, where the files of the processor may be all there is."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    cached = tmp_path / "models--some--model"
    snapshot = shutil.copytree(whole, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    TextureProcessor.from_pretrained(whole, budget=6, relevance="none").save_pretrained(snapshot)
    model = tv.load_vlm("some/model", cache_dir=tmp_path, device="cpu")
    assert (model.budget, model.config.tokens.relevance) == (6, "none")
    processor = TextureProcessor.from_pretrained("some/model", cache_dir=tmp_path)
    assert processor.budget == 6 and processor.config.model_type == "qwen3_vl"
    (snapshot / "config.json").unlink()
    options = {"cache_dir": tmp_path}
    assert hub.only_cached("f", "some/model", huggingface_hub, options, ["config.json", "texturevlm.json"])
    with pytest.raises(ConnectionError, match="f: no network: "):
        hub.only_cached("f", "some/model", huggingface_hub, options, ["config.json"])


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    monkeypatch.setattr("socket.create_connection", lambda *args, **options: time.sleep(1) or socket.socket())
    begun = time.perf_counter()
    assert hub.unreachable("https://example.org") == "no answer in 0.1 s"
    assert time.perf_counter() - begun < 0.9


def test_the_proxy_is_asked_in_place_of_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr("socket.create_connection", lambda where, timeout: asked.append(where) or socket.socket())
    monkeypatch.setattr(hub, "proxy_bypass", lambda host: host == "near.org")
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert hub.unreachable("https://far.org") is None and hub.unreachable("https://near.org") is None
    assert asked == [("proxy", 3128), ("near.org", 443)]


@pytest.mark.parametrize("function", [tv.attach, tv.VLM])
def test_a_model_that_no_family_fits(function):
    from transformers import BertConfig, BertModel

    _, processor = models.built("qwen3_vl")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, **small))
    before = dict(vars(bert))
    name = function.__name__
    with pytest.raises(ValueError, match=f"{name}: model must be one of qwen3_vl, .*, got 'bert'"):
        function(bert, processor)
    assert vars(bert) == before
    with pytest.raises(ValueError, match=f"{name}: model must be one of qwen3_vl, .*, got 'int'"):
        function(3, processor)
    inner = models.built("qwen3_vl")[0].model
    with pytest.raises(TypeError, match=f"{name}: model must be a Qwen3VLForConditionalGeneration, got Qwen3VLModel"):
        function(inner, processor)
    assert not hasattr(inner, ATTRIBUTE)


@pytest.mark.parametrize(
    ("family", "other", "said"),
    [
        ("qwen3_vl", "qwen2_5_vl", "whose patch_size is 16, got PlainProcessor with 14"),
        ("qwen3_vl", "llava", "a qwen3_vl, got one with CLIPImageProcessorPil"),
    ],
)
def test_a_processor_of_another_model(family, other, said):
    model, _ = models.built(family)
    _, processor = models.built(other)
    for function in (tv.attach, tv.VLM):
        with pytest.raises(ValueError, match=f"processor must belong to the model, {said}"):
            function(model, processor)
    assert not hasattr(model, ATTRIBUTE)
    fitting = tv.attach(*models.built(other), budget=9)
    with pytest.raises(ValueError, match=f"processor must belong to the model, {said}"):
        tv.VLM(model, fitting)
    fitting.detach()
    with pytest.raises(ValueError, match=f"VLM: model_type of the processor must be one of {family}, got '{other}'"):
        tv.VLM(model, fitting)
    assert not hasattr(model, ATTRIBUTE)


def test_a_processor_with_another_image_token():
    model, processor = models.built("llava")
    processor.image_token_id = 7
    with pytest.raises(ValueError, match="whose image token is 4, got LlavaProcessor with 7"):
        tv.attach(model, processor)
    model.config.image_token_id = 64
    with pytest.raises(ValueError, match="whose image token is 64, got a tokenizer of 64 tokens"):
        tv.attach(model, processor)
    with pytest.raises(TypeError, match="must be the model's processor, which takes images and text, got int"):
        tv.attach(model, 3)
    assert not hasattr(model, ATTRIBUTE)


def test_a_budget_beyond_the_context(whole, capsys):
    model, processor = models.built("qwen3_vl")
    said = "budget must leave room in the model's context of 4096 tokens, got {}"
    for budget, most in ((4096, 4096), ((4, 5000), 5000)):
        with pytest.raises(ValueError, match=said.format(most)):
            tv.attach(model, processor, budget=budget)
    with pytest.raises(ValueError, match=said.format(4096)):
        tv.VLM(model, processor, budget=4096)
    with pytest.raises(ValueError, match="VLM: processor must have one budget, got "):
        tv.VLM(model, processor, budget=(4, 8))
    with pytest.raises(ValueError, match="VLM: processor must have one relevance, got "):
        tv.VLM(model, processor, relevance=("none", "scout"))
    assert not hasattr(model, ATTRIBUTE)
    with pytest.raises(ValueError, match="load_vlm: " + said.format(4096)):
        tv.load_vlm(whole, budget=4096, device="cpu")
    command = ("ask", "examples/invoice.png", "What?", "--model", whole, "--device", "cpu", "--budget", 4096)
    assert status(*command) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "texturevlm ask: load_vlm: " + said.format(4096)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": "24"}, "budget must be a whole number, got '24'"),
        ({"budget": (4, 9)}, r"budget must be a whole number, got \(4, 9\)"),
        ({"relevance": tv.SCORERS["scout"]}, "relevance must be a scorer, got the class ScoutScorer"),
        ({"relevance": []}, r"relevance must be a scorer or the name of one, got \[\]"),
        ({"relevance": ["scout", "none"]}, "relevance must be a scorer or the name of one, got \\['scout', 'none'\\]"),
        ({"allocator": 5}, "allocator must be a name, or an object of its kind, got 5"),
    ],
)
def test_options_of_another_kind(options, said):
    with pytest.raises((TypeError, ValueError), match=f"load_vlm: {said}"):
        tv.load_vlm("/nowhere/at/all", **options)


def test_a_pair_of_budgets_of_another_kind():
    model, processor = models.built("qwen3_vl")
    with pytest.raises(TypeError, match="attach: budget must be a whole number, got None"):
        tv.attach(model, processor, budget=(4, None))
    with pytest.raises(ValueError, match=r"attach: budget must be a number or a pair \(low, high\), got \(9, 4\)"):
        tv.attach(model, processor, budget=(9, 4))


def test_a_package_that_an_option_needs_is_named(whole):
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash_attn is installed")
    with pytest.raises(ValueError, match=r"must be one that takes attn_implementation, .*FlashAttention2") as raised:
        tv.load_vlm(whole, device="cpu", attn_implementation="flash_attention_2")
    assert "pip install 'texturevlm" not in str(raised.value)


def test_the_older_name_of_dtype(whole):
    assert tv.load_vlm(whole, device="cpu", torch_dtype=torch.bfloat16).model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="dtype must not be given with torch_dtype, got float32 and bfloat16"):
        tv.load_vlm(whole, device="cpu", dtype="float32", torch_dtype="bfloat16")


@pytest.mark.parametrize(
    "other", [np.zeros((3, 64, 64), np.uint8), torch.zeros(64, 64, 3), np.zeros((64, 64, 5), np.uint8)]
)
def test_channels_elsewhere_are_not_listed_one_by_one(other):
    vlm = tv.VLM(*models.built("qwen3_vl"), budget=9, relevance="none")
    said = r"got (64|5) channels \(channel_0, channel_1, channel_2, …\); an array is \(H, W, C\), a tensor \(C, H, W\)"
    with pytest.raises(ValueError, match=f"prepare: image must be grey or red, green and blue, {said}"):
        vlm.ask(other, QUESTION)


@pytest.mark.parametrize("block", [{"type": "audio", "audio": "a.wav"}, {"type": "input_image", "image_url": "a.png"}])
def test_a_block_that_would_be_left_out_is_named(block):
    vlm = tv.VLM(*models.built("qwen3_vl"), budget=9, relevance="none")
    messages = conversation(picture(64, 64))
    messages[0]["content"].append(block)
    with pytest.raises(ValueError, match=r"block of content must be text, image, image_url or video, got {'type': "):
        vlm.ask(None, messages)


def test_an_option_that_would_be_dropped_is_named(whole):
    with pytest.raises(TypeError, match=r"from_pretrained: options must be of budget, .*, got buget, min_pixels"):
        TextureProcessor.from_pretrained(whole, buget=4, min_pixels=9)


def test_text_and_images_in_the_other_order():
    model, processor = models.built("llava")
    chooser = tv.attach(model, processor, budget=9, relevance="none")
    with pytest.raises(TypeError, match="processor: text must be a text or a list of texts, got Image"):
        chooser("<|image_pad|> what ?", picture(64, 64))


@pytest.mark.parametrize("empty", [np.zeros((0, 8, 3), np.uint8), torch.zeros(3, 8, 0), Image.new("RGB", (0, 5)), b""])
def test_an_image_without_a_size(empty):
    vlm = tv.VLM(*models.built("qwen3_vl"), budget=9, relevance="none")
    for images, question in ((empty, QUESTION), (None, conversation(empty))):
        with pytest.raises(ValueError, match=r"Texture.open: (image must not be empty|source of 0 bytes is not)"):
            vlm.ask(images, question)
    assert vlm.ask(picture(1, 1), QUESTION, max_new_tokens=2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_beyond_the_context(stream):
    vlm = tv.VLM(*models.built("qwen3_vl"), budget=4, relevance="none")
    said = r"prepare: prompt must fit into the model's context of 4096 tokens, got \d+, 4 of them visual"
    with pytest.raises(ValueError, match=said):
        list(vlm.ask(picture(64, 64), "what is " * 2100, stream=stream))


def test_a_long_question_on_the_command_line_is_no_file_name(capsys):
    assert status("ask", "examples/invoice.png", "what " * 200, "--model", "/nowhere/at/all") == 2
    assert capsys.readouterr().err.splitlines()[-1] == "texturevlm ask: load_vlm: no such folder: /nowhere/at/all"
