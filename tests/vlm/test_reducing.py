"""Models whose visual tokens are reduced, on small random models of the real classes."""

import copy
import sys

import pytest
import torch

from tests.vlm import small
from texturevlm.types import Texture
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.families.qwen_vl import Qwen2_5_VL
from texturevlm_lab.rivals import METHODS, Method, ReduceStage, steps_of
from texturevlm_lab.rivals.hooks.masks import Keys
from texturevlm_lab.rivals.hooks.reducing import reduced
from texturevlm_lab.rivals.hooks.tower_vit import attention_of

QUESTION = "what is the total ?"
VISUAL = [small.IMAGE, small.VIDEO]
GREEDY = {"max_new_tokens": 4, "do_sample": False, "suppress_tokens": VISUAL}
FAMILIES = {**small.BUILDERS, "llava": small.llava, "internvl": small.internvl, "smolvlm": small.smolvlm}
COUNT = 20


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    return small.built(FAMILIES, request.param)


def inputs_for(adapter, *, prompts=(QUESTION,), counts=(COUNT,)):
    """One image per prompt."""
    textures = [small.picture(96, 96) for _ in prompts]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, counts)]
    if len(prompts) == 1:
        return adapter.prepare(prompts[0], textures[0], allocations[0])
    return adapter.prepare(list(prompts), textures, allocations)


def logits(adapter, inputs, steps=()):
    with torch.no_grad(), reduced(adapter, steps):
        return adapter.model(**inputs).logits


def text_of(inputs):
    return (inputs["input_ids"] != small.IMAGE) & (inputs["attention_mask"] == 1)


@pytest.mark.parametrize("method", METHODS)
def test_keeping_everything_is_the_unreduced_model(adapter, method):
    inputs = inputs_for(adapter)
    expected = logits(adapter, inputs)
    for keep in (1.0, COUNT, 1000):
        torch.testing.assert_close(logits(adapter, inputs, steps_of("ask", method, keep)), expected)


def test_a_padded_batch_that_keeps_everything(adapter):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    text = text_of(inputs)
    found = logits(adapter, inputs, steps_of("ask", ["tome", "fastv"], 1.0))
    torch.testing.assert_close(found[text], logits(adapter, inputs)[text])


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_as_one_prompt_after_the_other(adapter, method):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    steps = steps_of("ask", method, 5)
    found = logits(adapter, inputs, steps)
    for sample in range(2):
        expected, counts = logits_and_counts(adapter, _sample(adapter, inputs, sample), steps)
        torch.testing.assert_close(found[sample, -1], expected[0, -1], atol=1e-4, rtol=1e-4)
        assert counts[-1] == (5 if "decode" not in METHODS[method].acts else (COUNT, 9)[sample])


def _sample(adapter, inputs, sample):
    """One prompt of a batch without its padding, with its own pictures."""
    live = inputs["attention_mask"][sample].bool()
    ids = inputs["input_ids"]
    found = {name: value[sample : sample + 1, live] for name, value in inputs.items() if value.shape == ids.shape}
    visual = (ids == small.IMAGE).sum(1)
    if "image_grid_thw" not in inputs:
        return found | {"pixel_values": inputs["pixel_values"][sample : sample + 1]}
    rows = (visual * adapter.merge**2).tolist()
    grids = inputs["image_grid_thw"][sample : sample + 1]
    return found | {"pixel_values": inputs["pixel_values"].split(rows)[sample], "image_grid_thw": grids}


def test_images_of_several_sizes_keep_their_order(adapter):
    """LLaVA's tower runs images with equally many patches together."""
    counts = (COUNT, 9, 9, COUNT)
    inputs = inputs_for(adapter, prompts=(QUESTION,) * 4, counts=counts)
    steps = steps_of("ask", ["visionzip"], 5)
    found = logits(adapter, inputs, steps)[:, -1]
    alone = [logits(adapter, _sample(adapter, inputs, sample), steps)[0, -1] for sample in range(4)]
    torch.testing.assert_close(found, torch.stack(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["visionzip", "fastv", "sparsevlm"])
def test_eager_attention_is_as_sdpa(adapter, method, monkeypatch):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    expected = logits(adapter, inputs, steps_of("ask", method, 5))[:, -1]
    monkeypatch.setattr(adapter.language_of(adapter.model).config, "_attn_implementation", "eager")
    found = logits(adapter, inputs, steps_of("ask", method, 5))[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def logits_and_counts(adapter, inputs, steps):
    """Of one prompt; visual tokens that each layer has."""
    counts = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[1]))
        for layer in adapter.language_of(adapter.model).layers
    ]
    found = logits(adapter, inputs, steps)
    for one in hooks:
        one.remove()
    words = int(text_of(inputs).sum())
    return found, [count - words for count in counts]


def kept_counts(adapter, inputs, steps):
    return logits_and_counts(adapter, inputs, steps)[1]


def test_layers_have_as_many_tokens_as_were_asked_for(adapter):
    inputs = inputs_for(adapter)
    assert kept_counts(adapter, inputs, steps_of("ask", "visionzip", 6)) == [6, 6, 6]
    assert kept_counts(adapter, inputs, steps_of("ask", "fastv", 6)) == [20, 6, 6]
    assert kept_counts(adapter, inputs, steps_of("ask", [("fastv", {"keep": 6, "layer": 2})])) == [20, 20, 6]
    both = steps_of("ask", [("tome", 0.5), ("pyramiddrop", {"keep": 2, "layer": [1, 2, 2]})])
    assert kept_counts(adapter, inputs, both) == [10, 6, 2]


def test_dropped_tokens_do_not_matter_and_kept_ones_are_where_they_were(adapter, monkeypatch):
    """Dropping behind the projector is the same as choosing fewer tokens, but for what the tower mixed."""
    inputs = inputs_for(adapter)
    watched = spied(monkeypatch, (METHODS["stride"].stages[0].reduce,))
    language = adapter.language_of(adapter.model)
    given = {}
    hook = language.register_forward_pre_hook(lambda _, __, kwargs: given.update(kwargs), with_kwargs=True)
    expected = logits(adapter, inputs)
    hook.remove()
    visual = (inputs["input_ids"][0] == small.IMAGE).nonzero()[:, 0]
    found = logits(adapter, inputs, steps_of("ask", "spy", 7))
    kept = watched[0][1].kept
    index = torch.cat([text_of(inputs)[0].nonzero()[:, 0], visual[kept]]).sort().values
    fewer = _fewer(given, index, kept)
    with torch.no_grad():
        hidden = language(**fewer).last_hidden_state
        wanted = adapter.model.lm_head(hidden)
    torch.testing.assert_close(found[:, index], wanted)
    assert not torch.allclose(found[:, -1], expected[:, -1])


def _fewer(given, index, kept):
    fewer = dict(given)
    fewer["inputs_embeds"] = given["inputs_embeds"][:, index]
    fewer |= {"attention_mask": None, "past_key_values": None}
    position = given.get("position_ids")
    if position is None:
        position = torch.arange(given["inputs_embeds"].shape[1])[None]
    fewer["position_ids"] = position[..., index]
    if given.get("visual_pos_masks") is not None:
        fewer["visual_pos_masks"] = given["visual_pos_masks"][:, index]
        fewer["deepstack_visual_embeds"] = [one[kept] for one in given["deepstack_visual_embeds"]]
    return fewer


def spied(monkeypatch, *stages):
    """A method of such stages, (function, place, needs, depth) each, and a list of their contexts and results."""
    found = []

    def spy(function):
        def watched(context, keep):
            result = function(context, keep)
            found.append((context, result))
            return result

        return watched

    own = tuple(ReduceStage(spy(function), *more) for function, *more in stages)
    monkeypatch.setitem(METHODS, "spy", Method(own))
    return found


def eager_weights(adapter, module, inputs):
    """The attention weights of a module, (B, H, N, N) per call, as transformers' own eager attention has them."""
    found, name = [], type(module).__module__
    original = sys.modules[name].eager_attention_forward

    def watched(own, *args, **kwargs):
        out, weights = original(own, *args, **kwargs)
        if own is module:
            found.append(weights)
        return out, weights

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[name], "eager_attention_forward", watched)
        patch.setattr(module.config, "_attn_implementation", "eager")
        logits(adapter, inputs)
    return found


def tower_attention(adapter, *, last):
    if isinstance(adapter, QwenAdapter):
        whole = sorted(adapter.whole_blocks)
        return adapter.tower.blocks[whole[-1 if last else 0]].attn
    return attention_of(adapter.tower.layers[adapter.tower_depth - 1 if last else 0])


@pytest.mark.parametrize("last", [True, False])
def test_received_attention_is_that_of_the_tower(adapter, monkeypatch, last):
    name = "received" if last else "shallow"
    found = spied(monkeypatch, (METHODS["stride"].stages[0].reduce, "projector", (name,)))
    inputs = inputs_for(adapter)
    logits(adapter, inputs, steps_of("ask", "spy", 5))
    (weights,) = eager_weights(adapter, tower_attention(adapter, last=last), inputs)
    mean = weights[0].mean(0)
    if isinstance(adapter, QwenAdapter):
        expected = mean.sum(0).view(COUNT, -1).mean(1)
    else:
        front = adapter.tower.in_front  # a class token, if there is one
        received = mean.shape[1] * mean[0, front:] if front else mean.sum(0)
        expected = received.view(COUNT, -1).mean(1)
    given = getattr(found[0][0], name)
    if isinstance(adapter, Qwen2_5_VL):  # its tower has another order; the next test sees to that
        given, expected = given.sort().values, expected.sort().values
    torch.testing.assert_close(given, expected)


def test_keys_belong_to_their_tokens(adapter, monkeypatch):
    """What changes in one token changes its key most."""
    found = spied(monkeypatch, (METHODS["stride"].stages[0].reduce, "projector", ("keys",)))
    inputs = inputs_for(adapter)
    steps, patches = steps_of("ask", "spy", 5), adapter.merge**2
    logits(adapter, inputs, steps)
    for token in range(COUNT):
        rows = inputs["pixel_values"].clone()
        rows.view(-1, rows.shape[-1])[token * patches : (token + 1) * patches, : adapter.row_width] *= -5
        logits(adapter, {**inputs, "pixel_values": rows}, steps)
        moved = (found[-1][0].keys - found[0][0].keys).norm(dim=-1).mean(0)
        assert int(moved.argmax()) == token


def test_the_question_s_attention_is_that_of_the_layer(adapter, monkeypatch):
    """In a padded batch, after tokens have left already."""
    stride = METHODS["stride"].stages[0].reduce
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    found = spied(monkeypatch, (stride, "llm", ("asked", "keys", "queries"), 0.6))
    logits(adapter, inputs, steps_of("ask", "spy", 5))
    layer = adapter.language_of(adapter.model).layers[1]
    (weights,) = eager_weights(adapter, layer.self_attn, inputs)
    for sample, (context, _) in enumerate(found):
        visual = inputs["input_ids"][sample] == small.IMAGE
        behind = int(visual.nonzero()[-1]) + 1
        torch.testing.assert_close(context.asked, weights[sample].mean(0)[behind:][:, visual])
        assert len(context.asked) == len(context.question)


def test_a_question_before_the_image_is_found(adapter, monkeypatch):
    """As in the reader's template: only special tokens stand behind the image."""
    image = small.TEMPLATE.split("{% else %}")[1].split("{% endif %}")[0]
    image = image if "<|vision_start|>" in adapter.tokenizer.chat_template else "<|image_pad|>"
    asked = "{% for c in messages[0].content if c.type == 'text' %}{{ c.text }} {% endfor %}"
    shown = "{% for c in messages[0].content if c.type == 'image' %}" + image + "{% endfor %}<end>"
    monkeypatch.setattr(adapter.tokenizer, "chat_template", asked + shown)
    found = spied(monkeypatch, (METHODS["stride"].stages[0].reduce, "projector", ("question",)))
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    logits(adapter, inputs, steps_of("ask", "spy", 5))
    table = adapter.model.get_input_embeddings().weight
    for text, (context, _) in zip((QUESTION, "total ?"), found):
        wanted = table[[small.IDS[word] for word in text.split()]]
        torch.testing.assert_close(context.question, wanted)


def test_positions_and_images_of_tokens(adapter, monkeypatch):
    """Two pictures in one prompt."""
    found = spied(monkeypatch, (METHODS["stride"].stages[0].reduce,))
    textures = [small.picture(96, 96), small.picture(96, 96)]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, (7, 4))]
    logits(adapter, adapter.prepare(QUESTION, textures, allocations), steps_of("ask", "spy", 5))
    context = found[0][0]
    assert context.image.tolist() == [0] * 7 + [1] * 4
    rows, columns = adapter.grid_for((96, 96))
    centre = torch.cat([one.centre[0] for one in allocations]).flip(-1)
    wanted = centre / 96 * torch.tensor([rows, columns]) - 0.5
    torch.testing.assert_close(context.position[:, 1:].sort(0).values, wanted.sort(0).values, atol=1e-3, rtol=1e-3)


def test_a_small_picture_beside_a_large_one_gets_its_share(adapter, monkeypatch):
    """Attention sums to 1 in each picture, so a token of a small one gets more of it, which says nothing."""
    (stage,) = METHODS["hired"].stages
    found = spied(monkeypatch, (stage.reduce, stage.place, stage.needs))
    textures = [small.picture(96, 96), small.picture(96, 96)]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, (COUNT, 4))]
    logits(adapter, adapter.prepare(QUESTION, textures, allocations), steps_of("ask", "spy", 12))
    context, reduction = found[0]
    for own in (context.image == 0, context.image == 1):
        torch.testing.assert_close(context.received[own].mean(), torch.tensor(1.0), atol=0.1, rtol=0)
    kept = context.image[reduction.kept].bincount(minlength=2).tolist()
    assert kept[0] >= 8 and kept[1] < 4  # of 20 and 4


@pytest.mark.parametrize("method", ["visionzip", "fastv", "sparsevlm", "pyramiddrop"])
def test_decoding_from_the_cache_is_a_forward_pass_over_prompt_and_answer(adapter, method):
    """In a padded batch; the reduction does not look at the answer."""
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    steps, length = steps_of("ask", method, 5), inputs["input_ids"].shape[1]
    with torch.no_grad(), reduced(adapter, steps):
        found = adapter.model.generate(**inputs, **GREEDY, output_logits=True, return_dict_in_generate=True)
    more = found.sequences[:, length:]
    longer = {**inputs, "input_ids": found.sequences}
    longer["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(more)], 1)
    if "mm_token_type_ids" in inputs:
        longer["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1)
    if not isinstance(adapter, QwenAdapter):  # as `generate` counts them
        longer["position_ids"] = adapter.positions(longer)
    with torch.no_grad(), reduced(adapter, steps, endings=[more.shape[1]] * 2):
        whole = adapter.model(**longer).logits[:, length - 1 : -1]
    torch.testing.assert_close(torch.stack(found.logits, 1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["visionzip", "fastv"])
def test_beams_of_a_batch_are_those_of_its_prompts(adapter, method):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    options = {**GREEDY, "num_beams": 3}
    with torch.no_grad(), reduced(adapter, steps_of("ask", method, 5)):
        together = adapter.model.generate(**inputs, **options)[:, -4:]
        for sample in range(2):
            alone = adapter.model.generate(**_sample(adapter, inputs, sample), **options)[:, -4:]
            assert torch.equal(together[sample], alone[0])


def test_merged_tokens_attend_as_often_as_they_are(adapter):
    """Two tokens with one embedding and one position are as one of size 2."""
    live = torch.ones(1, 3, dtype=torch.bool)
    keys = Keys.of(live, torch.tensor([[1.0, 2.0, 1.0]]))
    query, key, value = torch.randn(3, 1, 1, 3, 8, generator=torch.Generator().manual_seed(0))
    mask = keys.mask(1, 0, torch.float32, "sdpa")
    found = torch.nn.functional.scaled_dot_product_attention(query[:, :, -1:], key, value, attn_mask=mask)
    twice = [0, 1, 1, 2]
    expected = torch.nn.functional.scaled_dot_product_attention(query[:, :, -1:], key[:, :, twice], value[:, :, twice])
    torch.testing.assert_close(found, expected)


def test_the_model_is_as_before(adapter):
    inputs = inputs_for(adapter)
    before = logits(adapter, inputs)
    with pytest.raises(ZeroDivisionError), reduced(adapter, steps_of("ask", "visionzip", 4)):
        raise ZeroDivisionError
    assert torch.equal(logits(adapter, inputs), before)
    copy.deepcopy(adapter.model)


def test_questions_without_images_pass(adapter):
    ids = torch.tensor([[8, 9, 10]])
    with torch.no_grad(), reduced(adapter, steps_of("ask", "visionzip", 4)):
        found = adapter.model(input_ids=ids).logits
    with torch.no_grad():
        torch.testing.assert_close(found, adapter.model(input_ids=ids).logits)


@pytest.mark.parametrize("method", ["visionzip", "tome"])
def test_merged_tokens_weigh_what_they_stand_for_in_every_layer(adapter, method):
    """Both merge all and drop none, so the last token attends as to the whole prompt; while decoding, too."""
    inputs = inputs_for(adapter)
    masks = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, __, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True)
        for layer in adapter.language_of(adapter.model).layers
    ]
    with torch.no_grad(), reduced(adapter, steps_of("ask", method, 5)):
        adapter.model.generate(**inputs, **GREEDY)
    for one in hooks:
        one.remove()
    length = inputs["input_ids"].shape[1]
    found = [float(mask[0, 0, -1].exp().sum()) for mask in masks]
    assert found == pytest.approx([length + step for step in range(4) for _ in range(3)], rel=1e-5)


def test_a_video_that_stands_still_is_merged_along_time(adapter, monkeypatch):
    """Beside an image: tokens of the two are told apart."""
    if not adapter.videos:
        pytest.skip("no videos")
    found = spied(monkeypatch, (METHODS["prunevid"].stages[0].reduce,))
    frame = torch.rand(1, 3, 2 * adapter.side, 2 * adapter.side)
    video, image = Texture.open(frame.expand(6, -1, -1, -1)), small.picture(2 * adapter.side, 2 * adapter.side)
    allocations = [small.full_grid(video, adapter.side, frames=range(0, 6, 2)), small.full_grid(image, adapter.side)]
    inputs = adapter.prepare(QUESTION, [video, image], allocations)
    expected = logits(adapter, inputs)
    torch.testing.assert_close(logits(adapter, inputs, steps_of("ask", "spy", 1.0)), expected)
    found.clear()
    logits(adapter, inputs, steps_of("ask", "spy", 8))
    context, reduction = found[0]
    assert len(context) == 3 * 4 + 4  # two frames are one moment
    assert context.position[:, 0].unique().numel() == 3
    assert reduction.sizes(context.size).tolist() == [3.0] * 4 + [1.0] * 4


def test_flash_attention_refuses_merged_tokens_and_takes_dropped_ones():
    live, size = torch.tensor([[False, True, True]]), torch.tensor([[1.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="must be able to add: sdpa or eager, got flash_attention_2"):
        Keys.of(live, size).mask(3, 0, torch.float32, "flash_attention_2")
    dropped = Keys.of(live, torch.ones(1, 3)).mask(1, 1, torch.float32, "flash_attention_2")
    assert dropped.tolist() == [[False, True, True, True]]
    assert Keys.of(~live | live, torch.ones(1, 3)).mask(3, 0, torch.float32, "flash_attention_2") is None
