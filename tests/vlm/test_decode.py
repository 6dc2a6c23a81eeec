"""Visual tokens that leave the cache while an answer is decoded, on small random models of the real classes."""

import pytest
import torch
from transformers import DynamicCache

from tests.vlm import small
from tests.vlm.test_reducing import COUNT, GREEDY, QUESTION, _sample, inputs_for
from texturevlm.reduce import METHODS, Method, ReduceStage, steps_of
from texturevlm.reduce.fastv import last_token_attention
from texturevlm.vlm.reducing import reduced

FAMILIES = {**small.BUILDERS, "llava": small.llava, "internvl": small.internvl}


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    model, processor = FAMILIES[request.param]()
    if request.param == "llava":
        processor.tokenizer.chat_template = small.BARE
    return model, processor


def decoded(adapter, inputs, steps, **more):
    cache = DynamicCache()
    options = {**GREEDY, "output_logits": True, "return_dict_in_generate": True, "past_key_values": cache, **more}
    with torch.no_grad(), reduced(adapter, steps):
        found = adapter.model.generate(**inputs, **options)
    return found, [layer.keys.shape[2] for layer in cache.layers]


def test_the_budget_stays_in_every_layer(adapter, monkeypatch):
    """The first token comes from the whole prompt, the cache of every layer has the budget behind the second."""
    always = ReduceStage(last_token_attention, "decode", ("asked",), 0.5)  # without a rate: at once
    monkeypatch.setitem(METHODS, "now", Method((always,)))
    inputs = inputs_for(adapter)
    length = inputs["input_ids"].shape[1]
    plain, whole = decoded(adapter, inputs, ())
    found, few = decoded(adapter, inputs, steps_of("ask", "now", 6))
    assert whole == [length + 3] * 3
    assert few == [length + 3 - (COUNT - 6)] * 3
    for step in range(2):  # tokens leave behind the step that decided
        torch.testing.assert_close(found.logits[step], plain.logits[step])
    assert not torch.allclose(found.logits[3], plain.logits[3])


@pytest.mark.parametrize("keep", [1.0, 1000])
def test_keeping_everything_is_the_unreduced_model(adapter, keep):
    inputs = inputs_for(adapter)
    plain, whole = decoded(adapter, inputs, ())
    found, same = decoded(adapter, inputs, steps_of("ask", "dyrate", keep))
    assert same == whole
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(plain.logits))


def test_never_fewer_than_the_budget_and_never_more_than_attention_is_spread_over(adapter):
    inputs = inputs_for(adapter)
    words = inputs["input_ids"].shape[1] - COUNT + 3
    for keep in (3, 12):
        few = decoded(adapter, inputs, steps_of("ask", "dyrate", keep))[1]
        assert len(set(few)) == 1
        assert keep <= few[0] - words <= COUNT


def test_what_stays_is_what_the_newest_token_attends_to(adapter, monkeypatch):
    """By transformers' own eager attention of the deciding layer."""
    found = []

    def spy(context, keep):
        found.append(context)
        return last_token_attention(context, keep)

    monkeypatch.setitem(METHODS, "spy", Method((ReduceStage(spy, "decode", ("asked",), 0.6),)))
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    out, _ = decoded(adapter, inputs, steps_of("ask", "spy", 5), max_new_tokens=3)
    language = adapter.language_of(adapter.model)
    longer = out.sequences[:, : inputs["input_ids"].shape[1] + 1]
    monkeypatch.setattr(language.config, "_attn_implementation", "eager")
    with torch.no_grad():
        plain = adapter.model.generate(
            **inputs, **{**GREEDY, "max_new_tokens": 2}, output_attentions=True, return_dict_in_generate=True
        )
    assert torch.equal(plain.sequences[:, : longer.shape[1]], longer)
    weights = plain.attentions[1][2]  # second step, layer 2
    for sample, context in enumerate(found[:2]):
        visual = inputs["input_ids"][sample] == small.IMAGE
        expected = weights[sample].mean(0)[0, : len(visual)][visual]
        torch.testing.assert_close(context.asked[0], expected, atol=1e-5, rtol=1e-4)


def test_a_batch_and_its_beams_are_as_one_prompt_after_the_other(adapter):
    """With prompts of several lengths, which lose different numbers of tokens."""
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    length, options = inputs["input_ids"].shape[1], {"max_new_tokens": 6}
    for beams in (1, 3):
        both, _ = decoded(adapter, inputs, steps_of("ask", "dyrate", 4), num_beams=beams, **options)
        for sample in range(2):
            own = _sample(adapter, inputs, sample)
            alone, _ = decoded(adapter, own, steps_of("ask", "dyrate", 4), num_beams=beams, **options)
            assert torch.equal(both.sequences[sample, length:], alone.sequences[0, own["input_ids"].shape[1] :])


def test_behind_another_step(adapter):
    inputs = inputs_for(adapter)
    steps = steps_of("ask", [("fastv", 10), ("dyrate", 4)])
    _, few = decoded(adapter, inputs, steps, max_new_tokens=8)
    words = inputs["input_ids"].shape[1] - COUNT + 7
    assert 4 <= few[-1] - words <= 10
    assert len(set(few)) == 1 or few[0] > few[-1]
