"""Visual tokens that leave the cache while an answer is decoded, on small random models of the real classes."""

import pytest
import torch
from transformers import DynamicCache

from tests.vlm import small
from tests.vlm.test_reducing import COUNT, GREEDY, QUESTION, _sample, inputs_for
from texturevlm_lab.rivals import METHODS, Method, ReduceStage, steps_of
from texturevlm_lab.rivals.fastv import last_token_attention
from texturevlm_lab.rivals.hooks import decode
from texturevlm_lab.rivals.hooks.reducing import reduced

FAMILIES = {**small.BUILDERS, "llava": small.llava, "internvl": small.internvl}


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    return small.built(FAMILIES, request.param)


def halved(context, keep):
    return max(keep, len(context) // 2)


@pytest.fixture(autouse=True)
def eager_methods(monkeypatch):
    """These lose tokens for sure: the attention of random weights is spread over nearly all tokens."""
    now, halving = (ReduceStage(last_token_attention, "decode", ("asked",), 0.5, rate) for rate in (None, halved))
    monkeypatch.setitem(METHODS, "now", Method((now,)))
    monkeypatch.setitem(METHODS, "halving", Method((halving,)))


def decoded(adapter, inputs, steps, **more):
    cache = DynamicCache()
    options = {**GREEDY, "output_logits": True, "return_dict_in_generate": True, "past_key_values": cache, **more}
    with torch.no_grad(), reduced(adapter, steps):
        found = adapter.model.generate(**inputs, **options)
    return found, [layer.keys.shape[2] for layer in cache.layers]


def test_the_budget_stays_in_every_layer(adapter):
    """The first token comes from the whole prompt, the cache of every layer has the budget behind the second."""
    inputs = inputs_for(adapter)
    length = inputs["input_ids"].shape[1]
    plain, whole = decoded(adapter, inputs, ())
    found, few = decoded(adapter, inputs, steps_of("ask", "now", 6))
    assert whole == [length + 3] * 3
    assert few == [length + 3 - (COUNT - 6)] * 3
    for step in range(2):  # tokens leave behind the step that decided
        torch.testing.assert_close(found.logits[step], plain.logits[step])
    assert not torch.allclose(found.logits[3], plain.logits[3])


@pytest.mark.parametrize("method", ["dyrate", "halving"])
@pytest.mark.parametrize("keep", [1.0, 1000])
def test_keeping_everything_is_the_unreduced_model(adapter, method, keep):
    inputs = inputs_for(adapter)
    plain, whole = decoded(adapter, inputs, ())
    found, same = decoded(adapter, inputs, steps_of("ask", method, keep))
    assert same == whole
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(plain.logits))


def test_the_rate_is_followed_down_to_the_budget(adapter):
    inputs = inputs_for(adapter)
    words = inputs["input_ids"].shape[1] - COUNT - 1
    for steps, stay in ((2, 10), (3, 5), (4, 4), (5, 4)):  # the first token comes from the whole prompt
        few = decoded(adapter, inputs, steps_of("ask", "halving", 4), max_new_tokens=steps)[1]
        assert few == [words + steps + stay] * 3


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


def test_a_batch_is_as_one_prompt_after_the_other(adapter):
    """Prompts of several lengths, which lose different numbers of tokens."""
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    steps, options = steps_of("ask", "halving", 4), {"max_new_tokens": 6}
    both, _ = decoded(adapter, inputs, steps, **options)
    for sample in range(2):
        alone, _ = decoded(adapter, _sample(adapter, inputs, sample), steps, **options)
        found, wanted = torch.stack(both.logits, 1)[sample], torch.stack(alone.logits, 1)[0]
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_beams_of_a_prompt_lose_the_same_tokens(adapter, monkeypatch):
    """`generate` exchanges the caches of beams, not what we know of them."""
    dropped = []
    drop = decode._drop
    monkeypatch.setattr(decode, "_drop", lambda held, cache, stay: dropped.append(stay) or drop(held, cache, stay))
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    length, options = inputs["input_ids"].shape[1], {"num_beams": 3, "max_new_tokens": 6}
    both, _ = decoded(adapter, inputs, steps_of("ask", "halving", 4), **options)
    assert dropped and all(len(stay) == 6 for stay in dropped)
    for stay in dropped:
        assert all(torch.equal(stay[beam], stay[beam // 3 * 3]) for beam in range(6))
    for sample in range(2):
        own = _sample(adapter, inputs, sample)
        alone, _ = decoded(adapter, own, steps_of("ask", "halving", 4), **options)
        assert torch.equal(both.sequences[sample, length:], alone.sequences[0, own["input_ids"].shape[1] :])


def test_behind_another_step(adapter):
    inputs = inputs_for(adapter)
    steps = steps_of("ask", [("fastv", 10), ("halving", 4)])
    _, few = decoded(adapter, inputs, steps, max_new_tokens=8)
    words = inputs["input_ids"].shape[1] - COUNT + 7
    assert 4 <= few[-1] - words <= 10
    assert len(set(few)) == 1 or few[0] > few[-1]
