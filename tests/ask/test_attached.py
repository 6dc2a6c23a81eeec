"""Attached: the user's own code goes on working, on chosen tokens; detached, everything is as it was."""

import pytest
import torch
from PIL import Image
from texturevlm.ask.attached import question_in

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION
from tests.vlm import small

OPTIONS = {"max_new_tokens": 4, "do_sample": False}


@pytest.fixture(params=list(models.FAMILIES), scope="module")
def built(request):
    model, processor = models.built(request.param)
    return model, models.users_processor(request.param, processor)


@pytest.fixture
def attached(built):
    vlm = tv.attach(*built, budget=9, relevance="none")
    yield vlm
    vlm.detach()


def picture(height, width, seed=0):
    pixels = (models.noise(height, width, seed=seed) * 255).byte().permute(1, 2, 0).numpy()
    return Image.fromarray(pixels)


def conversation(*images, question=QUESTION):
    content = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def users_code(model, processor, *images):
    """As it stands in every model card."""
    inputs = processor.apply_chat_template(
        conversation(*images), add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    generated = model.generate(**inputs, **OPTIONS)
    trimmed = [out[len(given) :] for given, out in zip(inputs["input_ids"], generated)]
    return inputs, processor.tokenizer.batch_decode(trimmed, skip_special_tokens=True)[0].strip()


def visual_tokens(model, inputs, images=(1,)):
    """Of each prompt, which has so many images; LLaVA-OneVision puts a new line behind each."""
    lines = images if model.config.model_type == "llava_onevision" else [0] * len(images)
    placeholders = (inputs["input_ids"] == small.IMAGE).sum(1).tolist()
    return [count - line for count, line in zip(placeholders, lines, strict=True)]


def test_the_users_own_code_reads_chosen_tokens(built, attached):
    model, processor = built
    image = picture(288, 288)
    inputs, answer = users_code(model, processor, image)
    assert visual_tokens(model, inputs) == [9]
    assert answer == attached.ask(image, QUESTION, max_new_tokens=4)
    with torch.no_grad():
        assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape


def test_detached_everything_is_as_it_was(built):
    model, processor = built
    image = picture(224, 224)
    kind = type(processor)
    before, answer = users_code(model, processor, image)
    vlm = tv.attach(model, processor, budget=4, relevance="none")
    assert isinstance(processor, kind) and type(processor).__name__ == kind.__name__
    during, _ = users_code(model, processor, image)
    assert visual_tokens(model, during) == [4] != visual_tokens(model, before)
    assert vlm.detach() is model
    after, again = users_code(model, processor, image)
    assert type(processor) is kind and answer == again
    assert set(before) == set(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert not model._forward_pre_hooks
    vlm.detach()  # once more changes nothing


def test_the_users_code_runs_as_often_as_it_likes(built):
    """Twice the same, on another image something else, and the stock path once more after each detaching."""
    model, processor = built
    one, other = picture(224, 224), picture(320, 180, seed=7)
    stock = users_code(model, processor, one)[1]
    for budget in (6, 9):
        vlm = tv.attach(model, processor, budget=budget, relevance="none")
        (inputs, first), (same, second) = users_code(model, processor, one), users_code(model, processor, one)
        assert first == second and all(torch.equal(inputs[name], same[name]) for name in inputs)
        third, _ = users_code(model, processor, other)
        assert visual_tokens(model, third) <= [budget]
        vlm.detach()
        assert users_code(model, processor, one)[1] == stock


def test_a_detached_model_says_so(built):
    vlm = tv.attach(*built, budget=4, relevance="none")
    session = vlm.prepare(picture(64, 64))
    vlm.detach()
    with pytest.raises(ValueError, match="ask: model was detached"):
        session.ask(QUESTION)
    with pytest.raises(ValueError, match="ask: model was detached"):
        session.look(QUESTION, looks=2, relevance="auto")
    assert session.look(QUESTION).width > 0


def test_attaching_twice_is_attaching_once_with_the_last_options(built):
    model, processor = built
    kind, image = type(processor), picture(288, 288)
    first = tv.attach(model, processor, budget=4, relevance="none")
    second = tv.attach(model, processor, budget=7, relevance="none")
    inputs, _ = users_code(model, processor, image)
    assert visual_tokens(model, inputs) == [7]
    assert type(processor).__mro__[1] is kind and len(model._forward_pre_hooks) == 1
    first.detach()  # was replaced, so it has nothing to put back
    assert visual_tokens(model, users_code(model, processor, image)[0]) == [7]
    second.detach()
    assert type(processor) is kind and not model._forward_pre_hooks


def test_batches_and_several_images(built, attached):
    model, processor = built
    images = [picture(288, 288), picture(200, 320, 1), picture(160, 160, 2)]
    texts = [
        processor.apply_chat_template(conversation(*own), add_generation_prompt=True, tokenize=False)
        for own in (images[:1], images[1:])
    ]
    nested = processor(text=texts, images=[images[:1], images[1:]], padding=True, return_tensors="pt")
    flat = processor(images, texts, return_tensors="pt")
    first, second = visual_tokens(model, nested, (1, 2))
    assert first == 9 and 2 <= second <= 9
    assert set(nested) == set(flat) and all(torch.equal(nested[name], flat[name]) for name in nested)
    answers = model.generate(**nested, **OPTIONS)[:, nested["input_ids"].shape[1] :]
    for own, answer in zip((images[:1], images[1:]), attached.adapter.decode(answers)):
        assert answer.strip() == attached.ask(own, QUESTION, max_new_tokens=4)


def test_text_alone_takes_the_processors_own_way(built, attached):
    model, processor = built
    inputs = processor(text=["user : what is there ? :"], return_tensors="pt")
    assert "pixel_values" not in inputs and "inputs_embeds" not in inputs
    assert model.generate(**inputs, **OPTIONS).shape[1] == inputs["input_ids"].shape[1] + 4


def test_placeholders_must_match_the_images(built, attached):
    _, processor = built
    with pytest.raises(ValueError, match=r"got 2 images for \[1\] placeholders"):
        processor(text=[f"{small.WORDS[small.IMAGE]} total ?"], images=[picture(64, 64)] * 2)


def test_positions_survive_half_precision():
    model, processor = models.built("qwen3_vl")
    processor = models.users_processor("qwen3_vl", processor)
    tv.attach(model, processor, budget=9, relevance="none")
    text = processor.apply_chat_template(conversation(1), add_generation_prompt=True, tokenize=False)
    inputs = processor(text=text, images=picture(300, 500), return_tensors="pt")
    exact = inputs["position_ids"].clone()
    assert exact.is_floating_point() and not torch.equal(exact, exact.bfloat16().float())
    cast = inputs.to("cpu", torch.bfloat16)
    assert cast["pixel_values"].dtype == torch.bfloat16 and torch.equal(cast["position_ids"], exact)
    assert model.to(torch.bfloat16).generate(**cast, **OPTIONS).shape[1] > 4


def test_training_goes_through(built, attached):
    model, processor = built
    text = processor.apply_chat_template(conversation(1), tokenize=False)
    inputs = processor(text=[f"{text} total 4 2"], images=[picture(128, 128)], return_tensors="pt")
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    loss.backward()
    tower = next(value for name, value in model.named_parameters() if "visual" in name or "vision_tower" in name)
    assert torch.isfinite(loss) and tower.grad is not None and float(tower.grad.abs().sum()) > 0
    model.zero_grad()


CHAT = "<|im_start|>system\nYou help the user.<|im_end|>\n<|im_start|>user\n"
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
END = "<|im_end|>\n<|im_start|>assistant\n"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<image>"]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (f"{CHAT}{PICTURE}What is the total?{END}", "What is the total?"),
        (f"{CHAT}What is on {PICTURE} here?{END}", "What is on here?"),
        (f"{CHAT}{PICTURE}Who?{END}Me.<|im_end|>\n<|im_start|>user\nWhen?{END}", "When?"),
        ("USER: <image>\nWhat is the total? ASSISTANT:", "What is the total?"),
        (f"{CHAT}{PICTURE}Does a user pay the total?{END}", "Does a user pay the total?"),
        ("<image> What is the total?", "What is the total?"),
        (PICTURE, ""),
        ("", ""),
    ],
)
def test_the_question_is_the_users_last_turn(text, question):
    assert question_in(text, SPECIAL) == question


def test_clear_errors(built):
    model, processor = built
    with pytest.raises(ValueError, match=r"attach: model must be one of qwen3_vl, .*got 'siglip'"):
        tv.attach(small.siglip(), processor)
    with pytest.raises(ValueError, match=r"attach: model must be one of qwen3_vl, .*got 'Linear'"):
        tv.attach(torch.nn.Linear(1, 1), processor)
    with pytest.raises(TypeError, match=r"attach: processor must be the model's processor.*got TokenizersBackend|Pre"):
        tv.attach(model, processor.tokenizer)
    with pytest.raises(ValueError, match="allocator must be one of"):
        tv.attach(model, processor, allocator="circles")
    assert not hasattr(model, "texturevlm_adapter") and not model._forward_pre_hooks
