"""TextureProcessor takes what the model's own processor takes: options, batches, tensors; what it cannot, it names."""

import copy
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import OPTIONS, QUESTION, conversation, inputs_of, picture, visual_tokens
from tests.vlm import small
from texturevlm import vlm
from texturevlm.ask import processor as module
from texturevlm.ask.processor import TextureProcessor
from texturevlm.vlm.places import unpack

MARK = small.WORDS[small.IMAGE]
LONG, SHORT = f"user : {MARK} what is the total and what is there ?", f"user : {MARK} what ?"
TRAINING = (
    "{% for m in messages %}{{ m.role }} : {% for c in m.content %}"
    "{% if c.type == 'image' %}<|image_pad|>{% elif m.role == 'user' %} {{ c.text }} {% else %}"
    "{% generation %} {{ c.text }} {% endgeneration %}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture(params=list(models.FAMILIES), scope="module")
def attached(request):
    model, processor = models.built(request.param)
    return model, tv.attach(model, processor, budget=9, relevance="none")


@pytest.fixture(scope="module")
def qwen():
    model, processor = models.built("qwen3_vl")
    return model, tv.attach(model, processor, budget=9, relevance="none")


@pytest.fixture(scope="module")
def processor(qwen):
    return qwen[1]


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def answers(model, processor, inputs):
    found = model.generate(**inputs, **OPTIONS)[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(found, skip_special_tokens=True)]


def test_batches_of_several_images_and_of_none(attached):
    """Left padded, each prompt is answered as it is alone."""
    model, processor = attached
    images = [picture(288, 288), picture(200, 320, 1), picture(160, 160, 2)]
    prompts = [conversation(images[0]), conversation(), conversation(*images[1:])]
    texts = processor.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
    options = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
    nested = processor(text=texts, images=[images[:1], [], images[1:]], **options)
    flat = processor(images, texts, **options)
    rendered = inputs_of(processor, prompts, processor_kwargs={"padding": True, "padding_side": "left"})
    assert same(nested, flat) and same(nested, rendered)
    first, none, two = visual_tokens(model, nested, (1, 0, 2))
    assert first == 9 and none == 0 and 2 <= two <= 9
    alone = [answers(model, processor, inputs_of(processor, one))[0] for one in prompts]
    assert answers(model, processor, nested) == alone and len(set(alone)) > 1


def test_text_alone(attached):
    model, processor = attached
    inputs = processor(text=["user : what is there ? :"], return_tensors="pt")
    assert "pixel_values" not in inputs
    assert answers(model, processor, inputs)[0]
    assert same(inputs, inputs_of(processor, conversation(), chat_template="user : what is there ? :"))


def test_images_in_one_tensor(processor):
    stack = torch.stack([models.noise(96, 128, seed=seed) for seed in range(2)])
    single = processor(text=[LONG, LONG], images=list(stack), return_tensors="pt")
    for given in (stack, stack.numpy(), stack.permute(0, 2, 3, 1), stack.permute(0, 2, 3, 1).numpy()):
        check_stack(processor, given, single)


def check_stack(processor, given, single):
    assert same(processor(text=[LONG, LONG], images=given, return_tensors="pt"), single)
    both = processor(text=[LONG + MARK], images=[given], return_tensors="pt")
    assert len(both["image_grid_thw"]) == 2


def test_placeholders_must_match_the_images(processor):
    with pytest.raises(ValueError, match=r"one placeholder per image, got \[1\] placeholders for \[2\] images"):
        processor(text=[LONG], images=[picture(64, 64)] * 2)
    with pytest.raises(ValueError, match=r"got \[1, 0\] placeholders for \[0, 1\] images"):
        processor(text=[LONG, "what ?"], images=[[], [picture(64, 64)]])
    with pytest.raises(ValueError, match=r"got \[1\] placeholders for \[0\] images"):
        processor(text=[LONG])


def test_padding_on_either_side_to_any_length(processor):
    images = [picture(288, 288)] * 2
    for side, column in (("left", 0), ("right", -1)):
        found = processor(images, [LONG, SHORT], padding=True, padding_side=side, return_tensors="pt")
        assert found["attention_mask"][1, column] == 0 and found["attention_mask"][0].all()
        assert int(found["input_ids"][1, column]) == 0 == int(found["mm_token_type_ids"][1, column])
    wide = processor(images, [LONG, SHORT], padding="max_length", max_length=40, return_tensors="pt")
    assert wide["input_ids"].shape == (2, 40) == wide["mm_token_type_ids"].shape
    eights = processor(images, [LONG, SHORT], padding=True, pad_to_multiple_of=8, return_tensors="pt")
    assert eights["input_ids"].shape[1] % 8 == 0
    nested = processor(images, [LONG, SHORT], text_kwargs={"padding": "max_length", "max_length": 40})
    assert [len(row) for row in nested["input_ids"]] == [40, 40]


def test_right_padding_moves_no_logit(attached):
    """As a collator for training pads."""
    model, processor = attached
    images = [picture(288, 288), picture(200, 320, 1)]
    together = processor(images, [LONG, SHORT], padding=True, padding_side="right", return_tensors="pt")
    with torch.no_grad():
        found = model(**together).logits
        for index, (image, text) in enumerate(zip(images, (LONG, SHORT))):
            alone = model(**processor(image, text, return_tensors="pt")).logits[0]
            assert (found[index, : len(alone)] - alone).abs().max() < 1e-4


def test_truncation_spares_the_visual_tokens(processor):
    image = picture(288, 288)
    whole = processor(image, LONG, return_tensors="pt")["input_ids"][0]
    cut = processor(image, LONG, truncation=True, max_length=14, return_tensors="pt")["input_ids"][0]
    assert torch.equal(cut, whole[:14]) and len(whole) > 14
    with pytest.raises(ValueError, match=r"max_length must leave room for all visual tokens \[9\], got \[4\]"):
        processor(image, LONG, truncation=True, max_length=6)


@pytest.mark.parametrize("tensors", [None, "np", "pt"])
def test_return_tensors(processor, tensors):
    found = processor(picture(288, 288), LONG, return_tensors=tensors)
    kind = {None: list, "np": np.ndarray, "pt": torch.Tensor}[tensors]
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        assert isinstance(found[name], kind), name
    wanted = processor(picture(288, 288), LONG, return_tensors="pt")
    for name, value in wanted.items():
        assert np.array_equal(np.asarray(found[name]), value.numpy()), name
    if tensors == "np":
        assert all(isinstance(value, np.ndarray) for value in found.values())


def test_lists_of_unequal_length(processor):
    found = processor([picture(288, 288)] * 2, [LONG, SHORT])
    assert [len(row) for row in found["mm_token_type_ids"]] == [len(row) for row in found["input_ids"]]
    with pytest.raises(ValueError, match="padding"):
        processor([picture(288, 288)] * 2, [LONG, SHORT], return_tensors="pt")


def test_offsets_and_special_tokens(processor):
    found = processor(picture(288, 288), SHORT, return_offsets_mapping=True, return_special_tokens_mask=True)
    text = SHORT.replace(MARK, MARK * 9)
    words = [text[begin:end] for begin, end in found["offset_mapping"][0]]
    assert words == ["user", ":", *[MARK] * 9, "what", "?"]
    assert len(found["special_tokens_mask"][0]) == len(words)


def test_add_special_tokens_is_obeyed(qwen):
    from tokenizers.processors import TemplateProcessing

    given = copy.deepcopy(qwen[1].processor)
    ends = TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    given.tokenizer.backend_tokenizer.post_processor = ends
    processor = TextureProcessor(given, qwen[0].config, budget=9, relevance="none")
    image = picture(288, 288)
    assert processor(image, SHORT)["input_ids"][0][-1] == 1
    assert processor(image, SHORT, add_special_tokens=False)["input_ids"][0][-1] == small.IDS["?"]


def test_the_mask_of_the_assistants_tokens(attached):
    """What Trainers compute the loss on, behind an image whose placeholder grew."""
    model, processor = attached
    reply = {"role": "assistant", "content": [{"type": "text", "text": "total 4 2"}]}
    prompts = [[*conversation(picture(288, 288)), reply], [*conversation(), reply]]
    options = {"chat_template": TRAINING, "return_assistant_tokens_mask": True}
    padded = {"processor_kwargs": {"padding": True}}
    if vlm.installed() < (5, 18):
        with pytest.raises(ImportError, match=r"return_assistant_tokens_mask with images needs .* 5\.18 .* got 5\.\d+"):
            inputs_of(processor, prompts, **options)
        return
    found = inputs_of(processor, prompts, add_generation_prompt=False, **options, **padded)
    for ids, mask in zip(found["input_ids"], found["assistant_masks"]):
        assert processor.tokenizer.convert_ids_to_tokens(ids[mask.bool()]) == ["total", "4", "2"]
    assert visual_tokens(model, found, (1, 0)) == [9, 0]


@pytest.mark.parametrize("option", ["do_resize", "min_pixels", "size", "do_rescale", "image_mean", "device"])
def test_options_for_images_are_refused_by_name(processor, option):
    for given in ({option: 1}, {"images_kwargs": {option: 1}}):
        with pytest.raises(ValueError, match=f"processor: {option} has no effect, because texturevlm samples images"):
            processor(picture(64, 64), SHORT, **given)
    with pytest.raises(ValueError, match=f"processor: {option} has no effect"):
        inputs_of(processor, conversation(picture(64, 64)), processor_kwargs={option: 1})


def test_groups_of_options_may_be_empty_and_must_be_dicts(processor):
    none = dict.fromkeys(("images_kwargs", "text_kwargs", "common_kwargs", "videos_kwargs"))
    found, wanted = (processor(picture(64, 64), SHORT, question="", **given) for given in (none, {}))
    assert found["input_ids"] == wanted["input_ids"]
    for group in none:
        with pytest.raises(TypeError, match=f"processor: {group} must be a dict of options, got 3"):
            processor(picture(64, 64), SHORT, **{group: 3})


def test_unknown_options_are_refused_by_name(processor):
    for given in ({"wheels": 4}, {"images_kwargs": {"wheels": 4}}, {"text_kwargs": {"wheels": 4}}):
        with pytest.raises(TypeError, match=r"processor: options must be those for text \(add_.*got wheels"):
            processor(picture(64, 64), SHORT, **given)
    with pytest.raises(TypeError, match=r"got return_tensor \(did you mean return_tensors\?\)"):
        processor(picture(64, 64), SHORT, return_tensor="pt")
    with pytest.raises(TypeError, match="processor: budget must be given to attach or to TextureProcessor"):
        processor(picture(64, 64), SHORT, budget=4)
    with pytest.raises(TypeError, match=r"from_pretrained: .*, got bugdet \(did you mean budget\?\)"):
        TextureProcessor.from_pretrained("/nowhere/at/all", bugdet=4)


def test_bad_input_is_named_before_transformers_sees_it(processor):
    with pytest.raises(TypeError, match="processor: text must be a text or a list of texts, got int"):
        processor(text=5)
    for wrong in ("hello", [conversation(picture(64, 64)), "hello"]):
        with pytest.raises(TypeError, match="apply_chat_template: conversation must be messages, or a list"):
            processor.apply_chat_template(wrong)
    looking = TextureProcessor(processor.processor, processor.config, relevance="attention")
    with pytest.raises(ValueError, match=r"processor: relevance must not be 'attention', which takes the looks"):
        inputs_of(looking, conversation(picture(64, 64)))


def test_bad_input_is_named(processor):
    with pytest.raises(ValueError, match="text must be a prompt or a list of prompts, got none"):
        processor()
    with pytest.raises(ValueError, match="text must be a prompt or a list of prompts, got an empty list"):
        processor(text=[])
    with pytest.raises(TypeError, match="text must be a text or a list of texts, got int"):
        processor(text=[3])
    with pytest.raises(ValueError, match="conversation must have messages, got none"):
        processor.apply_chat_template([])
    with pytest.raises(ValueError, match="budget for 10 images must be at least 10, got 9"):
        processor(text=MARK * 10, images=[picture(64, 64)] * 10, question="what?")
    with pytest.raises(TypeError, match="videos need transformers' own processor, which needs torchvision"):
        processor(videos=[np.zeros((2, 64, 64, 3), np.uint8)])
    with pytest.raises(ValueError, match=r"one placeholder per video, got \[0\] placeholders for 1 videos"):
        processor(text="what ?", videos=[np.zeros((2, 64, 64, 3), np.uint8)], question="what ?")


def test_a_processor_of_another_model_is_refused(qwen):
    model, processor = qwen
    config = copy.deepcopy(model.config)
    config.image_token_id = 151655
    with pytest.raises(ValueError, match="processor must belong to the model, whose image token is 151655"):
        TextureProcessor(processor.processor, config)
    with pytest.raises(ValueError, match=r"config must be of one of qwen3_vl, .* got clip"):
        TextureProcessor(processor.processor, small.clip().config)
    with pytest.raises(TypeError, match="processor must be the model's processor, which takes images and text"):
        TextureProcessor(processor.tokenizer, model.config)


def test_positions_survive_half_precision(attached):
    """Inputs that were cast move the logits by rounding of the pixels alone."""
    model, processor = attached
    inputs = processor(picture(300, 500), LONG, return_tensors="pt")
    cast = copy.deepcopy(inputs).to(torch.bfloat16)
    assert cast["pixel_values"].dtype == torch.bfloat16 and cast["input_ids"].dtype == torch.int64
    width = processor.adapter.row_width
    rounded = inputs["pixel_values"].clone()
    rounded[..., :width] = rounded[..., :width].bfloat16().float()
    back = cast["pixel_values"].float()
    with torch.no_grad():
        wanted = model(**{**inputs, "pixel_values": rounded}).logits
        assert torch.equal(model(**{**inputs, "pixel_values": back}).logits, wanted)
    exact, kept = (unpack(one["pixel_values"].flatten(0, -2), width)[1] for one in (inputs, cast))
    assert torch.equal(exact.patch, kept.patch) and torch.equal(exact.token, kept.token)
    assert not torch.equal(exact.patch, exact.patch.bfloat16().float()), "positions that rounding would move"
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half.generate(**cast, **OPTIONS).shape[1] == inputs["input_ids"].shape[1] + 4


def test_budgets_and_relevance_are_drawn_per_prompt(qwen, monkeypatch):
    model, given = qwen
    processor = TextureProcessor(given, model.config, budget=(4, 32), relevance=("none", "auto"))
    drawn, place_together = [], module.place_together

    def recording(pictures, question, how):
        drawn.append((how.budget, how.relevance))
        return place_together(pictures, question, how)

    monkeypatch.setattr(module, "place_together", recording)
    prompt = conversation(picture(320, 320), question="")
    for _ in range(6):
        inputs = inputs_of(processor, [prompt] * 2, processor_kwargs={"padding": True})
        assert visual_tokens(model, inputs, (1, 1)) == [budget for budget, _ in drawn[-2:]]
    budgets = [budget for budget, _ in drawn]
    assert min(budgets) >= 4 and max(budgets) <= 32 and len(set(budgets)) > 3
    assert {relevance for _, relevance in drawn} == {"none", "auto"}


def test_a_pickled_processor_and_its_output(attached):
    model, processor = attached
    image = picture(288, 288)
    text = processor.apply_chat_template(conversation(image), tokenize=False)
    wanted = processor(image, text, return_tensors="pt")
    for other in (pickle.loads(pickle.dumps(processor)), copy.deepcopy(processor)):
        assert type(other) is TextureProcessor and repr(other) == repr(processor)
        assert same(other(image, text, return_tensors="pt"), wanted)
        assert other.detach() is None and hasattr(model, "texturevlm_adapter")  # it was not attached
    assert same(pickle.loads(pickle.dumps(wanted)), wanted)
    assert all(value.device.type == "cpu" and not value.requires_grad for value in wanted.values())


def test_saved_and_loaded_with_its_options(attached, tmp_path):
    from transformers import AutoTokenizer

    model, given = attached
    processor = TextureProcessor(given, model.config, budget=(4, 6), allocator="fit", relevance=("none", "words"))
    processor.save_pretrained(tmp_path)
    other = TextureProcessor.from_pretrained(tmp_path)
    assert (other.budget, other.allocator, list(other.relevance)) == ((4, 6), "fit", ["none", "words"])
    plain = TextureProcessor.from_pretrained(str(tmp_path), budget=9, allocator="auto", relevance="none")
    image = picture(288, 288)
    wanted = inputs_of(given, conversation(image))
    assert same(inputs_of(plain, conversation(image)), wanted)
    assert type(plain.config) is type(model.config)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == len(given.tokenizer)
    attached_again = tv.attach(model, plain, budget=4, relevance="none")
    assert visual_tokens(model, inputs_of(attached_again, conversation(image))) == [4]
    attached_again.detach()


@pytest.mark.parametrize(("options", "name"), [({}, "mine"), ({"repo_id": "us/ours", "private": True}, "us/ours")])
def test_settings_are_pushed_to_the_hub(attached, tmp_path, monkeypatch, options, name):
    from transformers.utils import hub

    _, processor = attached
    pushed, made = {}, []

    class Api:
        def create_repo(self, repo_id, **options):
            made.append((repo_id, options.get("private")))
            return SimpleNamespace(repo_id=repo_id)

    def upload(self, folder, repo_id, **options):
        pushed[repo_id] = {path.name: path.read_text() for path in Path(folder).glob("*.json")}

    monkeypatch.setattr(hub, "hf_api", Api)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *args, **options: SimpleNamespace(save=lambda path: 0))
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    processor.save_pretrained(tmp_path / "mine", push_to_hub=True, **options)
    assert list(pushed) == [name] and made == [(name, options.get("private"))]
    for files in (*pushed.values(), {path.name: path.read_text() for path in (tmp_path / "mine").glob("*.json")}):
        assert json.loads(files["texturevlm.json"])["budget"] == 9 and "tokenizer_config.json" in files


def test_what_cannot_be_saved_is_named(qwen, tmp_path):
    model, given = qwen
    processor = TextureProcessor(given, model.config, allocator=lambda *_: None)
    with pytest.raises(ValueError, match="save_pretrained: allocator must be a name to be saved"):
        processor.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    given.save_pretrained(tmp_path)
    table = json.loads((tmp_path / "texturevlm.json").read_text())
    assert table["budget"] == 9 and table["model"]["model_type"] == "qwen3_vl"
    (tmp_path / "texturevlm.json").write_text("{")
    with pytest.raises(ValueError, match=r"TextureProcessor: .*texturevlm.json must be as save_pretrained wrote it"):
        TextureProcessor.from_pretrained(tmp_path)


def test_attributes_of_the_wrapped_processor_are_there(attached):
    _, processor = attached
    assert processor.image_processor is processor.processor.image_processor
    assert processor.image_token == MARK and processor.image_token_id == small.IMAGE
    assert processor.decode([small.IDS["total"]]) == "total" == processor.batch_decode([[small.IDS["total"]]])[0]
    assert "pixel_values" in processor.model_input_names
    assert repr(processor).startswith("TextureProcessor(") and "budget=9" in repr(processor)
    with pytest.raises(AttributeError, match=r"TextureProcessor.*no attribute 'wheels'"):
        _ = processor.wheels
    assert QUESTION in processor.apply_chat_template(conversation(), tokenize=False)
