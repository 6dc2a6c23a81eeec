"""The processor in the workers of a DataLoader, forked or started afresh, and in transformers' own pipeline."""

import pytest
import torch
from torch.utils.data import DataLoader

import texturevlm as tv
from tests.ask import models
from tests.ask.models import conversation, inputs_of, picture


class Collator:
    """As users write it."""

    def __init__(self, processor):
        self.processor = processor

    def __call__(self, samples):
        batch = [conversation(picture(64 + 32 * seed, 96, seed)) for seed in samples]
        return inputs_of(self.processor, batch, processor_kwargs={"padding": True, "padding_side": "right"})


class Prepared(torch.utils.data.Dataset):
    """The processor inside the data set."""

    def __init__(self, processor):
        self.processor = processor

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return dict(inputs_of(self.processor, conversation(picture(96, 96, index))))


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("family", "context", "workers"), [("qwen3_vl", "fork", 2), ("llava", "spawn", 1)])
def test_workers_give_what_the_main_process_gives(family, context, workers):
    model, processor = models.built(family)
    attached = tv.attach(model, processor, budget=9, relevance="none")
    collate = Collator(attached)
    loader = DataLoader(
        range(4), batch_size=2, num_workers=workers, multiprocessing_context=context, collate_fn=collate, timeout=300
    )
    found = list(loader)
    assert len(found) == 2
    for batch, samples in zip(found, ([0, 1], [2, 3])):
        assert same(batch, collate(samples))
        with torch.no_grad():
            assert torch.isfinite(model(**batch).logits).all()


def test_the_default_collator_stacks_samples():
    """It needs samples of one shape, as of an unmodified LLaVA."""
    model, processor = models.built("llava")
    attached = tv.attach(model, processor, budget=9, relevance="none")
    (batch,) = DataLoader(Prepared(attached), batch_size=4)
    assert batch["input_ids"].shape[:2] == (4, 1)
    flat = {name: value.flatten(0, 1) for name, value in batch.items()}
    with torch.no_grad():
        found = model(**flat).logits
        for index in range(4):
            alone = model(**Prepared(attached)[index]).logits[0]
            assert (found[index] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["qwen3_vl", "llava", "llava_onevision"])
def test_a_pipeline_in_batches_gives_what_it_gives_alone(family):
    from transformers import pipeline

    model, processor = models.built(family)
    attached = tv.attach(model, processor, budget=9, relevance="none")
    attached.tokenizer.padding_side = "left"
    pipe = pipeline("image-text-to-text", model=model, processor=attached)
    chats = [conversation(picture(288, 288)), conversation(picture(20, 20, 1)), conversation(picture(100, 400, 2))]
    options = {"generate_kwargs": {"do_sample": False, "max_new_tokens": 4}, "return_full_text": False}
    alone = [pipe(text=chat, **options)[0]["generated_text"] for chat in chats]
    batched = [one[0]["generated_text"] for one in pipe(text=chats, batch_size=2, **options)]
    assert batched == alone and len(set(alone)) > 1
    asked = tv.VLM(model, attached)
    images = [chat[0]["content"][0]["image"] for chat in chats]
    assert [one.strip() for one in alone] == [asked.ask(one, models.QUESTION, max_new_tokens=4) for one in images]
