"""`ask`: every kind of image, question and batch gets the answer of the plain call; details are those of the model."""

import base64
import io

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, picture
from texturevlm.ask.processor import TextureProcessor
from texturevlm.vlm.adapter import ATTRIBUTE

SHORT = {"max_new_tokens": 4}
OTHER = "is there 3 ?"


@pytest.fixture(scope="module", params=["qwen3_vl", "llava"])
def vlm(request):
    return tv.VLM(*models.built(request.param), budget=9, relevance="none")


@pytest.fixture(scope="module")
def qwen():
    return tv.VLM(*models.built("qwen3_vl"), budget=9, relevance="none")


def sure(vlm, images, question, **options):
    """Log-probabilities of an answer: prompts that differ have others."""
    return torch.tensor(vlm.ask(images, question, return_details=True, **SHORT, **options).logprobs)


def test_every_kind_of_image_gets_the_same_answer(qwen, tmp_path):
    image, buffer = picture(64, 96), io.BytesIO()
    image.save(buffer, "PNG")
    image.save(tmp_path / "image.png")
    array = np.asarray(image)
    inline = base64.b64encode(buffer.getvalue()).decode()
    sources = [image, array, torch.tensor(array).permute(2, 0, 1), tv.Texture(image), buffer.getvalue()]
    sources += [tmp_path / "image.png", str(tmp_path / "image.png"), f"data:image/png;base64,{inline}"]
    wanted = sure(qwen, image, QUESTION)
    assert all(torch.allclose(sure(qwen, source, QUESTION), wanted, atol=1e-4) for source in sources)
    assert not torch.allclose(sure(qwen, picture(64, 96, seed=1), QUESTION), wanted, atol=1e-2)
    assert qwen.ask(array[..., 0], QUESTION, **SHORT)  # grey
    for block in ({"base64": inline}, {"path": str(tmp_path / "image.png")}, {"image": array}, {"image": sources[2]}):
        messages = conversation()
        messages[0]["content"].insert(0, {"type": "image", **block})
        assert torch.allclose(sure(qwen, None, messages), wanted, atol=1e-4)


def test_a_list_of_questions_gets_the_answers_of_each(vlm):
    one, other = picture(64, 96), picture(160, 100, seed=1)
    alone = [vlm.ask(one, QUESTION, **SHORT), vlm.ask(one, OTHER, **SHORT)]
    assert vlm.ask(one, [QUESTION, OTHER], **SHORT) == alone
    assert vlm.ask([one, other], [QUESTION], **SHORT) == [vlm.ask([one, other], QUESTION, **SHORT)]
    lists = [[one], [one, other], [other]]
    wanted = [vlm.ask(own, QUESTION, **SHORT) for own in lists]
    assert len(set(wanted)) > 1
    assert vlm.ask(lists, [QUESTION] * 3, **SHORT) == wanted
    many = [QUESTION] * 9 + [OTHER]  # more than are answered together
    assert vlm.ask(one, many, **SHORT) == [alone[0]] * 9 + [alone[1]]


def test_messages_say_the_same_as_a_text_and_more(vlm):
    image, other = picture(64, 96), picture(96, 64, seed=1)
    wanted = sure(vlm, image, QUESTION)
    apart, inside = conversation(), conversation(image)
    for given, messages in ((image, apart), (None, inside), ([image], [{"role": "user", "content": QUESTION}])):
        assert torch.allclose(sure(vlm, given, messages), wanted, atol=1e-4)
    history = [*conversation(question=OTHER), {"role": "assistant", "content": "3"}]
    for before in ([{"role": "system", "content": "what is there"}], history):
        assert not torch.allclose(sure(vlm, image, [*before, *apart]), wanted, atol=1e-3)
    both = [*conversation(image, question=OTHER), {"role": "assistant", "content": "3"}, *conversation(other)]
    first = sure(vlm, None, both)
    marked = [*conversation(None, question=OTHER), both[1], *conversation(None)]
    assert torch.allclose(sure(vlm, [image, other], marked), first, atol=1e-4)
    assert vlm.ask(both, **SHORT) == vlm.ask(None, both, **SHORT)
    with pytest.raises(TypeError, match="ask: question must be text or messages, got NoneType"):
        vlm.ask(image)
    wanted = [vlm.ask(None, both, **SHORT), vlm.ask(image, QUESTION, **SHORT)]
    assert vlm.ask(None, [both, inside], **SHORT) == vlm.ask([both, inside], **SHORT) == wanted


def plain_logprobs(vlm, answer, images, question):
    """Of the tokens of an answer, by one forward pass over prompt and answer."""
    session = vlm.prepare(images)
    prompt = conversation(*images, question=question)
    adapter, textures = vlm.adapter, [image.texture for image in session.pictures]
    inputs = adapter.prepare(prompt, textures, [one.allocation for one in answer.placements])
    ids = torch.tensor([adapter.tokenizer.convert_tokens_to_ids(answer.tokens)])
    start = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs |= adapter.id_inputs(inputs["input_ids"])
    with torch.no_grad():
        logits = vlm.model(**inputs).logits[0, start - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids.T)[:, 0]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "top_k": 5}])
def test_log_probabilities_are_those_of_a_plain_forward_pass(vlm, options):
    images = [[picture(64, 96)], [picture(160, 100, seed=1), picture(64, 64)]]
    questions = [QUESTION, f"{OTHER} {QUESTION}"]
    options = options | {
        "suppress_tokens": vlm.adapter.visual_ids
    }  # in a plain forward pass they would stand for images
    found = vlm.ask(images, questions, return_details=True, **SHORT, **options)
    for own, question, answers in zip(images, questions, found, strict=True):
        for answer in answers if "num_beams" in options else [answers]:
            assert len(answer.tokens) == 4 and len(answer.placements) == len(own)
            wanted = plain_logprobs(vlm, answer, own, question)
            assert torch.allclose(torch.tensor(answer.logprobs), wanted, atol=1e-4)
            assert answer.logprob == pytest.approx(float(wanted.sum()), abs=1e-3)
    texts = vlm.ask(images, questions, **SHORT, **options)
    if "do_sample" not in options:
        assert texts == [[str(one) for one in own] if isinstance(own, list) else str(own) for own in found]


def test_details_of_a_captured_answer_are_the_same():
    model, processor = models.built("qwen3_vl")
    for captured in (False, True):
        vlm = tv.VLM(model, processor, budget=30, relevance="none", captured=captured)
        answer = vlm.ask(picture(64, 96), QUESTION, return_details=True, **SHORT)
        assert (vlm.graphs.fixed is not None) == captured
        wanted = plain_logprobs(vlm, answer, [picture(64, 96)], QUESTION)
        assert torch.allclose(torch.tensor(answer.logprobs), wanted, atol=1e-4)
        assert list(answer.seconds) == ["open", "choose", "first_token", "decode"]
        assert all(seconds > 0 for seconds in answer.seconds.values())


def test_an_answer_that_ends_early_has_its_own_tokens_only(qwen):
    def answers(**options):
        return qwen.ask(images, [QUESTION] * 2, return_details=True, max_new_tokens=8, **options)

    images = [[picture(64, 96)], [picture(160, 100, seed=1)]]
    whole = answers()
    end = next(token for token in whole[0].tokens if token not in whole[1].tokens)
    length = whole[0].tokens.index(end) + 1
    assert length < 8
    to_ids = qwen.processor.tokenizer.convert_tokens_to_ids
    token, ids = to_ids(end), to_ids(whole[0].tokens + whole[1].tokens)
    never = next(one for one in range(64) if one not in ids)
    stop = {"stopping_criteria": [lambda ids, scores, **_: ids[:, -1] == token], "eos_token_id": never}
    for first, second in (answers(eos_token_id=token), answers(eos_token_id=[never, token]), answers(**stop)):
        assert first.tokens == whole[0].tokens[:length] and second.tokens == whole[1].tokens
        assert first.logprobs == pytest.approx(whole[0].logprobs[:length], abs=1e-4)


def test_a_stream_gives_the_answer_in_pieces(vlm):
    image = picture(64, 96)
    pieces = list(vlm.ask(image, QUESTION, stream=True, max_new_tokens=6))
    assert len(pieces) > 1 and "".join(pieces).strip() == vlm.ask(image, QUESTION, max_new_tokens=6)
    streamed = vlm.ask(None, conversation(image), stream=True, max_new_tokens=6)
    assert "".join(streamed).strip() == vlm.ask(image, QUESTION, max_new_tokens=6)
    for question, options, named in (
        ([QUESTION], {}, "a list of questions"),
        (QUESTION, {"return_details": True}, "return_details"),
        (QUESTION, {"num_beams": 2}, "num_beams"),
        (QUESTION, {"num_return_sequences": 2, "do_sample": True}, "num_return_sequences"),
    ):
        with pytest.raises(ValueError, match=f"ask: stream must be False with {named}, got True"):
            vlm.ask(image, question, stream=True, **options)


def test_ask_and_attach_take_what_the_other_returns(tmp_path):
    model, given = models.built("qwen3_vl")
    processor = tv.attach(model, given, budget=5, relevance="none")
    vlm = tv.VLM(model, processor)
    assert vlm.model is model and vlm.processor is processor and vlm.budget == 5
    again = tv.attach(vlm.model, vlm.processor, budget=64)
    assert (again.budget, again.relevance) == (64, "none")
    assert tv.VLM(vlm.model, vlm.processor, budget=7).config.tokens.relevance == "none"
    assert vlm.ask(picture(64, 64), QUESTION, **SHORT)
    tv.detach(model)
    assert not hasattr(model, ATTRIBUTE)
    with pytest.raises(ValueError, match="ask: model was detached"):
        vlm.ask(picture(64, 64), QUESTION)
    processor.save_pretrained(tmp_path)
    loaded = tv.VLM(model, TextureProcessor.from_pretrained(tmp_path))
    assert loaded.budget == 5 and loaded.ask(picture(64, 64), QUESTION, **SHORT)
    assert loaded.detach() is model and not hasattr(model, ATTRIBUTE)


def test_a_processor_of_one_model_serves_another_and_stays_attached_to_the_first():
    first, given = models.built("qwen3_vl")
    second, _ = models.built("qwen3_vl")
    processor = tv.attach(first, given, budget=5, relevance="none")
    vlm = tv.VLM(second, processor)
    assert vlm.processor is not processor and vlm.budget == 5
    vlm.detach()
    assert hasattr(first, ATTRIBUTE) and not hasattr(second, ATTRIBUTE)


def test_what_is_shown(qwen):
    for part in ("Qwen3VLForConditionalGeneration", "0.168 million", "float32 on cpu", "budget=9", "relevance='none'"):
        assert part in repr(qwen)
    named = tv.VLM(*models.built("qwen3_vl"), budget=9, allocator=tv.ALLOCATORS["fit"])
    assert " at 0x" not in repr(named) and "allocator=" in repr(named)
    answer = qwen.ask(picture(64, 96), QUESTION, return_details=True, **SHORT)
    assert str(answer) == answer.text and repr(answer.text) in repr(answer) and "6 visual tokens" in repr(answer)
    fewer = qwen.ask(picture(64, 96), QUESTION, reduce=["tome", ("fastv", 3)], keep=4, return_details=True, **SHORT)
    assert "6 visual tokens, 3 of them kept" in repr(fewer) and (fewer.visual_tokens, fewer.kept) == (6, 3)
    assert answer.kept == answer.visual_tokens and "reduce" not in repr(qwen)
    told = repr(tv.VLM(*models.built("qwen3_vl"), budget=9, reduce="visionzip", keep=4))
    assert "reduce='visionzip', keep=4" in told and "attention" not in told
    told = repr(tv.VLM(*models.built("qwen3_vl"), tower_attention="window"))
    assert "tower_attention='window'" in told and "reduce" not in told


@pytest.mark.parametrize(
    ("images", "question", "message"),
    [
        (None, QUESTION, "ask: images must be given, or be inside the messages, got none"),
        (None, conversation(None), "ask: images must be given, or be inside the messages, got none"),
        (picture(8, 8), conversation(picture(8, 8)), "must be given apart or inside the messages, got both"),
        ([picture(8, 8)] * 3, conversation(None), r"one image block per image \(3\), got 1"),
        ([[picture(8, 8)]], [QUESTION] * 2, r"images must be one list per question \(2\), got 1"),
        (picture(8, 8), [], "got an empty list"),
        (picture(8, 8), [[], QUESTION], "question must be text or messages, got an empty list"),
        (picture(8, 8), 3, "question must be text or messages, got int"),
        (picture(8, 8), [{"content": QUESTION}], "each message must be a dict with a role and with content"),
        (picture(8, 8), [{"role": "user", "content": [QUESTION]}], "each message must be a dict .* blocks with a type"),
        (picture(8, 8), [{"role": "user"}], "each message must be a dict with a role and with content"),
        (
            picture(8, 8),
            [{"role": "system", "content": "no"}],
            "one with the role user, got the roles system",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_model_runs(qwen, monkeypatch, images, question, message):
    monkeypatch.setattr(qwen.model, "generate", None)
    with pytest.raises((ValueError, TypeError), match=message):
        qwen.ask(images, question)
