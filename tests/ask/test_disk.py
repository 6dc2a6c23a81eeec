"""Real processors, saved to and loaded from a disk, as a checkpoint of the hub holds them."""

import importlib.util
import json

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import conversation, inputs_of, picture, users_code
from tests.vlm import small
from texturevlm.ask.processor import TextureProcessor

# The special tokens at the ids of the small models; then letters as byte-level BPE spells them: Ġ is a space.
SPECIAL = ["<|endoftext|>", "<|im_end|>", *small.WORDS[2:6], "<|im_start|>"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", *"0123456789", *"?.,:SUVW", "th", "Ġth", "Ġthe", "to", "Ġto"]
MERGES = [("t", "h"), ("Ġ", "th"), ("Ġth", "e"), ("t", "o"), ("Ġ", "to")]
# As Qwen3-VL's, without tools.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' or 'video' in part %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTION = "What is the total?"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A checkpoint of Qwen3-VL with the real tokenizer class, image processor and template."""
    from transformers import Qwen2Tokenizer

    folder = tmp_path_factory.mktemp("qwen")
    model, given = models.built("qwen3_vl")
    model.save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=MERGES,
        eos_token="<|im_end|>",
        additional_special_tokens=SPECIAL[2:],
        model_max_length=4096,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    given.image_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    model, processor = models.built("llava")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def loaded(folder):
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def test_qwen_by_the_names_of_its_parts(qwen):
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = TextureProcessor.from_pretrained(qwen, budget=9, relevance="none")
    assert isinstance(processor.tokenizer, Qwen2Tokenizer)
    assert isinstance(processor.image_processor, Qwen2VLImageProcessorPil)
    text = processor.apply_chat_template(conversation(1, question=QUESTION), add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is the total?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    inputs = processor(text=text, images=picture(288, 288), return_tensors="pt")
    wanted = text.replace("<|image_pad|>", "<|image_pad|>" * 9)
    assert processor.decode(inputs["input_ids"][0]) == wanted
    assert inputs["mm_token_type_ids"].sum() == 9


def test_qwen_is_attached_asked_saved_and_loaded(qwen, tmp_path):
    model, image = loaded(qwen), picture(288, 288)
    processor = tv.attach(model, TextureProcessor.from_pretrained(qwen), budget=9, relevance="none")
    inputs = inputs_of(processor, conversation(image, question=QUESTION))
    answer = model.generate(**inputs, **models.OPTIONS)[0, inputs["input_ids"].shape[1] :]
    told = tv.load_vlm(qwen, budget=9, relevance="none", device="cpu").ask(image, QUESTION, max_new_tokens=4)
    assert processor.decode(answer, skip_special_tokens=True).strip() == told
    processor.save_pretrained(tmp_path)
    again = tv.attach(model, TextureProcessor.from_pretrained(tmp_path), budget=9, relevance="none")
    other = inputs_of(again, conversation(image, question=QUESTION))
    assert all(torch.equal(other[name], inputs[name]) for name in inputs)


def test_of_saved_parts_auto_processor_makes_only_a_tokenizer(qwen, tmp_path):
    """As `save_pretrained` says; ours loads them."""
    from transformers import AutoProcessor, ProcessorMixin

    tv.load_vlm(qwen, budget=9, device="cpu").processor.save_pretrained(tmp_path)
    found = AutoProcessor.from_pretrained(tmp_path)
    assert not isinstance(found, ProcessorMixin) and found("What?")["input_ids"]
    assert TextureProcessor.from_pretrained(tmp_path).budget == 9


def test_llava_by_auto_processor(llava, tmp_path):
    """Which needs no torchvision."""
    from transformers import AutoProcessor, LlavaProcessor

    own = AutoProcessor.from_pretrained(llava, backend="pil")
    assert isinstance(own, LlavaProcessor)
    model, image = loaded(llava), picture(288, 288)
    stock = users_code(model, own, image)
    processor = tv.attach(model, own, budget=9, relevance="none")
    inputs, answer = users_code(model, processor, image)
    assert models.visual_tokens(model, inputs) == [9] and models.visual_tokens(model, stock[0]) == [36]
    assert answer == tv.load_vlm(llava, budget=9, relevance="none", device="cpu").ask(
        image, models.QUESTION, max_new_tokens=4
    )
    processor.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "texturevlm.json").read_text())["budget"] == 9
    back = AutoProcessor.from_pretrained(tmp_path, backend="pil")
    assert isinstance(back, LlavaProcessor) and torch.equal(
        users_code(model, back, image)[0]["input_ids"], stock[0]["input_ids"]
    )
    again = TextureProcessor.from_pretrained(tmp_path)
    assert users_code(model, again, image)[1] == answer


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="needs torchvision: transformers' own processors of Qwen have a part for videos that imports it",
)
def test_qwen_by_auto_processor(qwen, tmp_path):
    from transformers import AutoProcessor, AutoTokenizer, Qwen3VLProcessor, Qwen3VLVideoProcessor

    parts = TextureProcessor.from_pretrained(qwen)
    folder = tmp_path / "whole"
    whole = Qwen3VLProcessor(parts.image_processor, parts.tokenizer, Qwen3VLVideoProcessor(), chat_template=TEMPLATE)
    whole.save_pretrained(folder)
    own = AutoProcessor.from_pretrained(folder)
    model, image = loaded(qwen), picture(288, 288)
    inputs = inputs_of(tv.attach(model, own, budget=9, relevance="none"), conversation(image, question=QUESTION))
    wanted = inputs_of(tv.attach(model, parts, budget=9, relevance="none"), conversation(image, question=QUESTION))
    assert all(torch.equal(inputs[name], wanted[name]) for name in wanted)
    assert len(AutoTokenizer.from_pretrained(folder)) == len(parts.tokenizer)


def test_stop_strings_find_their_tokenizer(qwen):
    vlm = tv.load_vlm(qwen, device="cpu", budget=4, relevance="none")
    whole = vlm.ask(picture(64, 64), QUESTION, return_details=True, max_new_tokens=6)
    stop = vlm.adapter.tokenizer.convert_tokens_to_string(whole.tokens[1:2])
    stopped = vlm.ask(picture(64, 64), QUESTION, return_details=True, max_new_tokens=6, stop_strings=[stop])
    assert 1 <= len(stopped.tokens) <= 2 and stopped.tokens == whole.tokens[: len(stopped.tokens)]
