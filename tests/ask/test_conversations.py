"""What was prepared for one prompt is not changed by the next: caches, optimiser steps, batches joined by hand."""

import copy

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import OPTIONS, conversation, inputs_of, picture


@pytest.fixture(params=list(models.FAMILIES), scope="module")
def attached(request):
    model, processor = models.built(request.param)
    return model, tv.attach(model, processor, budget=9, relevance="none")


def prefilled(model, processor, image):
    inputs = inputs_of(processor, conversation(image))
    return inputs, model(**inputs, use_cache=True).past_key_values


def test_a_conversation_goes_on_from_its_cache_after_another_was_prepared(attached):
    """Sizes of the images differ, and so does where the text behind them resumes."""
    model, processor = attached
    more = torch.tensor([[9, 10, 11]])
    with torch.no_grad():
        inputs, cache = prefilled(model, processor, picture(64, 300))
        wanted = model(input_ids=more, past_key_values=copy.deepcopy(cache)).logits
        inputs_of(processor, conversation(picture(800, 90, 1)))
        assert torch.equal(model(input_ids=more, past_key_values=cache).logits, wanted)
        whole = {**inputs, "input_ids": torch.cat([inputs["input_ids"], more], 1)}
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
        whole |= processor.adapter.id_inputs(whole["input_ids"])
        assert (model(**whole).logits[:, -3:] - wanted).abs().max() < 1e-4


def test_generation_goes_on_from_a_cache_after_another_was_prepared(attached):
    model, processor = attached
    inputs = inputs_of(processor, conversation(picture(64, 300)))
    found = model.generate(**inputs, **OPTIONS, return_dict_in_generate=True)
    wanted = model.generate(**inputs, **OPTIONS | {"max_new_tokens": 8})
    inputs_of(processor, conversation(picture(800, 90, 1)))
    mask = torch.ones_like(found.sequences)
    again = model.generate(found.sequences, attention_mask=mask, past_key_values=found.past_key_values, **OPTIONS)
    assert torch.equal(again, wanted)


def test_two_batches_prepared_before_one_step_of_the_optimiser(attached):
    """No part of the model runs in the processor, so both see the weights of their own forward pass."""
    model = copy.deepcopy(attached[0])
    processor = attached[1]
    ran = []
    tower = next(module for name, module in model.named_modules() if name.endswith(("visual", "vision_tower")))
    tower.register_forward_hook(lambda *_: ran.append(1))
    first, second = (inputs_of(processor, conversation(picture(128, 128, seed))) for seed in range(2))
    assert not ran and not any(value.requires_grad for value in first.values())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(**second).logits.detach()
    for batch in (first, second):
        optimiser.zero_grad()
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        grads = [one.grad.abs().sum() for name, one in tower.named_parameters() if "patch_embed" in name]
        assert torch.isfinite(loss) and float(sum(grads)) > 0
        optimiser.step()
    fresh = inputs_of(processor, conversation(picture(128, 128, 1)))
    assert torch.equal(model(**second).logits, model(**fresh).logits)
    assert (model(**second).logits - before).abs().max() > 1e-4


def test_batches_are_put_together_by_concatenation(attached):
    """As pipelines and many collators do; one image is smaller than the budget."""
    model, processor = attached
    images = [picture(288, 288), picture(20, 20, 1)]
    parts = [inputs_of(processor, conversation(image)) for image in images]
    length = max(part["input_ids"].shape[1] for part in parts)
    rows = ("pixel_values", "image_grid_thw")

    def padded(value):
        return torch.nn.functional.pad(value, (length - value.shape[1], 0))

    together = {
        name: torch.cat([part[name] if name in rows else padded(part[name]) for part in parts]) for name in parts[0]
    }
    found = model.generate(**together, **OPTIONS)[:, -4:]
    for part, own in zip(parts, found):
        assert torch.equal(model.generate(**part, **OPTIONS)[0, -4:], own)


def test_beams_and_several_answers(attached):
    """The first beam is at least as likely as the greedy answer, by a forward pass without cache."""
    model, processor = attached
    inputs = inputs_of(processor, conversation(picture(100, 300)))
    options = OPTIONS | {"suppress_tokens": list(range(8))}

    def score(ids):
        ids = ids[None]
        more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **processor.adapter.id_inputs(ids)}
        with torch.no_grad():
            logits = model(**{**inputs, **more}).logits[0, -5:-1]
        return float(logits.log_softmax(-1).gather(1, ids[0, -4:, None]).sum())

    beams = model.generate(**inputs, **options, num_beams=3, num_return_sequences=2)
    (greedy,) = model.generate(**inputs, **options)
    assert beams.shape == (2, inputs["input_ids"].shape[1] + 4)
    assert score(beams[0]) > score(beams[1]) and score(beams[0]) >= score(greedy) - 1e-4
