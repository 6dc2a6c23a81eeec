"""LLaVA-1.5 and LLaVA-OneVision, and weighted embeddings: identity, padding, beams, gradients."""

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.types import Texture

QUESTION = "what is the total ?"
SIDE = 16
TEMPLATE = small.TEMPLATE.replace("<|vision_start|>", "").replace("<|vision_end|>", "")


@pytest.fixture(params=list(small.LLAVAS), scope="module")
def adapter(request):
    model, processor = small.LLAVAS[request.param]()
    processor.tokenizer.chat_template = TEMPLATE
    return vlm.adapt(model, processor)


def logits(adapter, inputs):
    with torch.no_grad():
        return adapter.model(**inputs).logits


def difference(one, other):
    return float((one - other).detach().abs().max())


def stock(adapter, images):
    """The model's own input for one prompt and several images of the tower's size."""
    each = adapter.length(36)
    words = adapter.tokenizer.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}] * len(images) + [{"type": "text", "text": QUESTION}]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = adapter.tokenizer(words.replace("<|image_pad|>", "<|image_pad|>" * each), return_tensors="pt")["input_ids"]
    pixels = adapter.normalised(torch.cat(images))
    if each == 36:
        return {"input_ids": ids, "pixel_values": pixels}
    sizes = torch.tensor([[96, 96]] * len(images))
    return {
        "input_ids": ids,
        "pixel_values": pixels[:, None],
        "image_sizes": sizes,
        "batch_num_images": torch.tensor([len(images)]),
    }


def test_full_grid_gives_the_unmodified_logits(adapter):
    """Two images, since LLaVA-OneVision cuts a single one into several of its own accord."""
    pictures = [small.picture(96, 96), small.picture(96, 96)]
    allocations = [small.full_grid(one, SIDE) for one in pictures]
    ours = adapter.prepare(QUESTION, pictures, allocations)
    inputs = stock(adapter, [one.levels[0] for one in pictures])
    assert difference(logits(adapter, ours), logits(adapter, inputs)) < 1e-5
    # With beams, one image twice: older transformers (5.17) repeat the pictures one by one, A A B B, and mix them up.
    for shown, beams in ((pictures, 1), (pictures[:1] * 2, 3)):
        inputs = stock(adapter, [one.levels[0] for one in shown])
        options = {"max_new_tokens": 4, "do_sample": False, "num_beams": beams}
        answer = adapter.generate(QUESTION, shown, allocations, **options)
        theirs = adapter.model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
        assert torch.equal(answer, theirs)


def test_what_was_chosen_and_where_matters(adapter):
    texture = small.picture(70, 120)
    one, other = (small.chosen(texture, SIDE, 9, seed=seed) for seed in (0, 1))
    plain = Texture.open(torch.full((1, 3, 70, 120), 0.3)).mipmapped()
    for shown in (texture, plain):
        both = [logits(adapter, adapter.prepare(QUESTION, shown, allocation)) for allocation in (one, other)]
        assert difference(*both) > 1e-3


def test_batches_are_padded_on_the_left(adapter):
    pictures = [small.picture(50, 64), small.picture(32, 32), small.picture(64, 40)]
    chosen = [small.chosen(one, SIDE, count) for one, count in zip(pictures, (6, 3, 9))]
    prompts = [QUESTION, "and there ?"]
    together = adapter.generate(
        prompts, [pictures[:2], pictures[2]], [chosen[:2], chosen[2]], max_new_tokens=4, do_sample=False
    )
    for answer, one in zip(
        together, ((prompts[0], pictures[:2], chosen[:2]), (prompts[1], pictures[2], chosen[2])), strict=True
    ):
        assert torch.equal(answer, adapter.generate(*one, max_new_tokens=4, do_sample=False)[0])


def test_cached_generation_is_that_of_whole_prompts(adapter):
    """The uncached answer is made by hand."""
    texture = small.picture(64, 40)
    allocation = small.chosen(texture, SIDE, 9)
    cached = adapter.generate(QUESTION, texture, allocation, max_new_tokens=4, do_sample=False)
    inputs = adapter.prepare(QUESTION, texture, allocation)
    for token in cached[0]:
        step = logits(adapter, inputs)[:, -1:].argmax(-1)
        assert int(step) == int(token)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], step], 1)
        inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(step)], 1)


def test_gradients_and_restore(adapter):
    image = torch.rand(1, 3, 40, 70, requires_grad=True)
    texture = Texture((image,)).mipmapped()
    allocation = small.chosen(texture, SIDE, 6)
    adapter.model(**adapter.prepare(QUESTION, texture, allocation)).logits.sum().backward()
    assert image.grad.abs().sum() > 0
    adapter.model.zero_grad()
    assert vlm.adapt(adapter.model) is adapter
    assert not adapter.tower.embeddings._forward_hooks
    assert adapter.encode(texture, allocation).embeds.shape == (1, 6, 32)


def test_a_video_is_refused(adapter):
    texture = small.picture(32, 32, batch=2)
    allocation = small.full_grid(texture, SIDE, frames=[0, 1])
    with pytest.raises(ValueError, match="give its frames as images"):
        adapter.prepare(QUESTION, texture, allocation)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "llava", "llava_onevision"])
def test_weighted_embeddings(family):
    """Weights of one change nothing, others do, and gradients reach the relevance."""
    model, processor = (small.BUILDERS | small.LLAVAS)[family]()
    adapter = vlm.adapt(model, processor)
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    plain = logits(adapter, adapter.prepare(QUESTION, texture, vlm.own_grid(adapter, texture)))
    ones = torch.ones(1, 24, 32)
    assert torch.equal(logits(adapter, vlm.weighted(adapter, QUESTION, texture, ones)), plain)
    relevance = torch.rand(1, 24, 32, requires_grad=True)
    inputs = vlm.weighted(adapter, QUESTION, texture, relevance)
    found = model(**inputs).logits
    assert difference(found, plain) > 1e-2
    found[0, -1, 3].backward()
    assert relevance.grad.abs().min() > 0
    other = small.picture(*texture.size)  # a token of weight zero says nothing about its pixels
    silent = [vlm.weighted(adapter, QUESTION, one, torch.zeros(1, 6, 8)) for one in (texture, other)]
    assert difference(*(logits(adapter, inputs) for inputs in silent)) < 1e-5
