"""Models that attend hierarchically, on small random models of the real classes."""

import pickle

import pytest
import torch

from tests.vlm import small
from tests.vlm.test_reducing import _sample as one_of
from texturevlm.types import Allocation
from texturevlm.vlm import adapt
from texturevlm.vlm.hook import budgeted, check_hooks, hooks_of
from texturevlm_lab.attention import AttentionOptions, attend_hierarchically, language
from texturevlm_lab.attention.block_layout import FINE, WHOLE
from texturevlm_lab.attention.implementation import IMPLEMENTATION
from texturevlm_lab.attention.language import AttentionRun
from texturevlm_lab.attention.options import check_attention
from texturevlm_lab.attention.token_order import visual_order

QUESTION = "what is the total ?"
GREEDY = {"max_new_tokens": 4, "do_sample": False, "suppress_tokens": [small.IMAGE, small.VIDEO]}
OTHERS = {name: one for name, one in small.MORE.items() if name not in ("gemma3", "qwen3_vl_moe", "glm4v_moe")}
FAMILIES = {**small.BUILDERS, **small.LLAVAS, **OTHERS}
COUNT = 20
SIZES = {"block": 4, "group": 4, "neighbours": 0}


@pytest.fixture(params=["qwen3_vl", "llava"], scope="module")
def built(request):
    return small.built(FAMILIES, request.param)


def inputs_for(adapter, *, prompts=(QUESTION,), counts=(COUNT,)):
    textures = [small.picture(96, 96) for _ in prompts]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, counts)]
    return adapter.prepare(list(prompts), textures, allocations)


def logits(adapter, inputs):
    with torch.no_grad():
        return adapter.model(**inputs).logits


@pytest.mark.parametrize("share", [1, 2])
def test_reading_everything_is_the_dense_model(adapter, share):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    live = inputs["attention_mask"].bool()
    dense = logits(adapter, inputs)[live]
    answer = adapter.model.generate(**inputs, **GREEDY)
    attend_hierarchically(adapter, AttentionOptions(fine=1.0, share=share, **SIZES))
    torch.testing.assert_close(logits(adapter, inputs)[live], dense)
    assert torch.equal(adapter.model.generate(**inputs, **GREEDY), answer)
    adapter.restore()
    adapter.bind(adapter.model)
    attend_hierarchically(adapter, AttentionOptions(fine=0.1, share=share, **SIZES))
    assert (logits(adapter, inputs)[live] - dense).abs().max() > 1e-3


def test_a_prompt_in_a_padded_batch_is_read_as_alone(adapter):
    """Which queries share a choice does not depend on the padding."""
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 17))
    attend_hierarchically(adapter, AttentionOptions(fine=0.2, **SIZES))
    together = logits(adapter, inputs)
    assert not inputs["attention_mask"][1].all()
    wanted = logits(adapter, one_of(adapter, inputs, 1))[0]
    torch.testing.assert_close(together[1, -len(wanted) :], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("qwen3_vl", "llava")])
def test_every_family(name):
    adapter = adapt(*small.built(FAMILIES, name))
    texture = small.picture(96, 96)
    inputs = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    dense = logits(adapter, inputs)
    attend_hierarchically(adapter, AttentionOptions(fine=1.0, **SIZES))
    torch.testing.assert_close(logits(adapter, inputs), dense)
    adapter.restore()


@pytest.mark.parametrize("fine", [1.0, 0.2])
def test_gradients_go_through_a_model(adapter, fine):
    """At full detail they are those of the dense model."""
    inputs, weight = inputs_for(adapter), adapter.language_of(adapter.model).layers[0].self_attn.k_proj.weight

    def gradient():
        return torch.autograd.grad(adapter.model(**inputs).logits.square().mean(), weight)[0]

    dense = gradient()
    attend_hierarchically(adapter, AttentionOptions(fine=fine, **SIZES))
    away = float((gradient() - dense).abs().max() / dense.abs().max())
    assert away < 1e-4 if fine == 1 else 1e-3 < away < 10


@pytest.mark.parametrize("kind", ["hierarchical", "window", "linear", "latent"])
def test_decoding_from_the_cache_is_a_forward_pass_over_prompt_and_answer(adapter, kind):
    """With a group per query, which no other query of the prompt can influence."""
    inputs = inputs_for(adapter)
    options = AttentionOptions(fine=0.3, kind=kind, **SIZES | {"group": 1})
    attend_hierarchically(adapter, options)
    found = adapter.model.generate(**inputs, **GREEDY, return_dict_in_generate=True, output_logits=True)
    added = found.sequences[:, inputs["input_ids"].shape[1] :]
    whole = dict(inputs, input_ids=found.sequences, attention_mask=torch.ones_like(found.sequences))
    if "mm_token_type_ids" in whole:
        kinds = whole["mm_token_type_ids"]
        whole["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, added.shape[1]))
    wanted = logits(adapter, whole)[:, -added.shape[1] - 1 : -1]
    torch.testing.assert_close(torch.stack(found.logits, 1), wanted, atol=1e-4, rtol=1e-4)


def test_layers_share_a_choice(adapter, monkeypatch):
    given, plain = [], language.attend_laid_out
    monkeypatch.setattr(
        language,
        "attend_laid_out",
        lambda *a, chosen, **o: given.append(chosen) or plain(*a, chosen=chosen, **o),
    )
    attend_hierarchically(adapter, AttentionOptions(fine=0.1, share=2, **SIZES))
    logits(adapter, inputs_for(adapter))
    assert [one is None for one in given] == [True, False, True]


def test_blocks_are_neighbours_in_the_image(adapter):
    """The grid in reading order becomes 2 × 2 squares."""
    rows, columns = adapter.grid_for((96, 96))
    texture = small.picture(96, 96)
    boxes = torch.tensor([[x, y, x + 1, y + 1] for y in range(4) for x in range(4)])
    boxes = boxes * torch.tensor([96 / columns, 96 / rows, 96 / columns, 96 / rows])
    grid = Allocation.of_boxes(boxes[None], (96, 96), adapter.side)
    inputs = adapter.prepare(QUESTION, texture, grid)
    ids = inputs["input_ids"]
    visual = ids == small.IMAGE
    first = int(visual[0].nonzero()[0])
    found = visual_order(adapter, ids, visual, {"get_image_features": inputs["pixel_values"]}) - first
    assert found[0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    twice = ids.repeat(2, 1), visual.repeat(2, 1), {"get_image_features": inputs["pixel_values"]}
    assert torch.equal(visual_order(adapter, *twice) - first, found.expand(2, -1))  # beams
    plain = visual_order(adapter, ids, visual, {}) - first
    assert plain[0].tolist() == list(range(16))  # no places: as they stand


def test_each_image_of_a_prompt_has_a_quadtree_of_its_own(adapter):
    """Beside another image, of another size and with tokens elsewhere, the order is that of the image alone."""
    sizes, counts = ((96, 160), (160, 96)), (COUNT, 11)
    textures = [small.picture(*size) for size in sizes]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, counts)]

    def order(textures, allocations):
        inputs = adapter.prepare(QUESTION, textures, allocations)
        ids = inputs["input_ids"]
        found = visual_order(adapter, ids, ids == small.IMAGE, {"get_image_features": inputs["pixel_values"]})
        return torch.searchsorted((ids[0] == small.IMAGE).nonzero()[:, 0], found[0].long())

    alone = [order(*pair) for pair in zip(textures, allocations)]
    assert torch.equal(order(textures, allocations), torch.cat([alone[0], counts[0] + alone[1]]))


def test_visual_tokens_are_summarised_and_text_is_read(adapter):
    run = AttentionRun(adapter, AttentionOptions(**SIZES))
    inputs = inputs_for(adapter)
    run._before_model(None, (), inputs)
    embeds = torch.zeros(*inputs["input_ids"].shape, 1)
    run._before_language(None, (), {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]})
    last = run.layout.state[0, -1].tolist()
    assert run.layout.visual == COUNT // 4 and set(last[COUNT // 4 :]) == {FINE} and WHOLE in last[: COUNT // 4]


def test_the_model_is_as_before(adapter):
    inputs = inputs_for(adapter)
    before, dense = adapter.language_of(adapter.model).config._attn_implementation, logits(adapter, inputs)
    attend_hierarchically(adapter, AttentionOptions(fine=0.0, **SIZES))
    assert adapter.language_of(adapter.model).config._attn_implementation == IMPLEMENTATION
    with pytest.raises(ValueError, match="must attend densely, got one that is hooked"):
        attend_hierarchically(adapter, AttentionOptions())
    pickle.loads(pickle.dumps(adapter.model))
    text = {"input_ids": torch.tensor([[small.IDS[word] for word in QUESTION.split()]])}
    with_hooks = logits(adapter, text)
    adapter.restore()
    assert adapter.language_of(adapter.model).config._attn_implementation == before
    assert torch.equal(logits(adapter, text), with_hooks)  # text alone is dense
    adapter.bind(adapter.model)
    assert torch.equal(logits(adapter, inputs), dense)


def test_bad_options():
    for given, message in (
        ("sparse", "load_vlm: attention must be one of dense, hierarchical, window, linear, latent, got 'sparse'"),
        ({"fines": 1}, "option of attention must be one of block, fine, .* got 'fines'"),
        ({"fine": 2}, "fine must be between 0 and 1, got 2"),
        ({"block": 48}, "block must be a power of two, got 48"),
        ({"share": 0}, "share must be at least 1, got 0"),
        ({"kind": "latent", "block": 16, "rank": 17}, "rank must be between 1 and 16, got 17"),
    ):
        with pytest.raises(ValueError, match=message):
            AttentionOptions.of("load_vlm", given)
    assert AttentionOptions.of("load_vlm", "dense") is None
    config = small.gemma3()[0].config
    with pytest.raises(ValueError, match="attention must be dense for gemma3, whose layers attend in windows"):
        check_attention("load_vlm", config)
    own = small.llava()[0].config
    both = budgeted("VLM", hooks_of("VLM", {"attention": {"fine": 0.2}, "reduce": "tome"}), 8)[1]
    with pytest.raises(ValueError, match="VLM: reduce must not be given with attention, got tome"):
        check_hooks("VLM", own, both)
