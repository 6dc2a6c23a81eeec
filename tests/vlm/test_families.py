"""What every family of vision-language models must do, on small random models of the real classes."""

import copy
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.types import Texture
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.families.vit import VisionTransformer
from texturevlm.vlm.places import Places, unpack
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import still_views

QUESTION = "what is the total ?"
VISUAL = [small.IMAGE, small.VIDEO]  # which a model with random weights might say
GREEDY = {"max_new_tokens": 4, "do_sample": False, "suppress_tokens": VISUAL}
FAMILIES = {**small.BUILDERS, **small.MORE, **small.LLAVAS}


def test_every_family_is_tested():
    assert set(FAMILIES) == set(vlm.FAMILIES)


def test_the_table_in_the_docs_says_what_each_supports():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| .* \| `(\w+)` \| \d+ \| .* \| (\w+) \| (\w+) \| (\w+) \| yes \|$", text, re.MULTILINE)
    said = {name: tuple(one == "yes" for one in columns) for name, *columns in rows}
    assert said == {
        name: (adapter.captured, adapter.two_looks, adapter.videos) for name, adapter in vlm.FAMILIES.items()
    }


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    if not hasattr(small.transformers, vlm.FAMILIES[request.param].architecture):
        pytest.skip(f"{request.param} is not in transformers {small.transformers.__version__}")
    return small.built(FAMILIES, request.param)


def logits(adapter, inputs):
    with torch.no_grad():
        return adapter.model(**inputs).logits


def difference(one, other):
    return float((one - other).detach().abs().max())


def whole(adapter):
    """A picture that the unmodified model reads without resizing, and every cell of its grid."""
    rows, columns = adapter.grid_for((2 * adapter.side, 3 * adapter.side))
    texture = small.picture(rows * adapter.side, columns * adapter.side)
    return texture, small.full_grid(texture, adapter.side)


def mixed(adapter):
    """A prompt with two images and one with one, of three sizes and budgets: arguments of `prepare`, and of each."""
    side = adapter.side
    pictures = [small.picture(3 * side, 4 * side), small.picture(50, 64), small.picture(4 * side, 2 * side)]
    chosen = [small.chosen(one, side, count, seed=count) for one, count in zip(pictures, (6, 3, 8))]
    prompts = [QUESTION, "and there ?"]
    alone = [(prompts[0], pictures[:2], chosen[:2]), (prompts[1], pictures[2], chosen[2])]
    return (prompts, [pictures[:2], pictures[2]], [chosen[:2], chosen[2]]), alone


def stock_inputs(adapter, inputs, textures):
    """The same prompt with the pictures as the model's own processor gives them, and nothing of ours."""
    found = {name: value for name, value in inputs.items() if name.endswith(("ids", "attention_mask"))}
    images = [one.levels[0] for one in textures]
    if "image_grid_thw" in inputs:
        made = adapter.processor.image_processor(
            [one[0].numpy() for one in images],
            do_rescale=False,
            input_data_format="channels_first",
            return_tensors="pt",
        )
        return found | {name: made[name] for name in ("pixel_values", "image_grid_thw")}
    pixels = adapter.normalised(torch.cat(images))
    family = adapter.config.model_type
    if family == "llava_onevision":
        sizes = torch.tensor([pixels.shape[-2:]] * len(images))
        found |= {"image_sizes": sizes, "batch_num_images": torch.tensor([len(images)])}
        return found | {"pixel_values": pixels[:, None]}
    return found | {"pixel_values": pixels[None] if family == "smolvlm" else pixels}


def test_full_grid_gives_the_unmodified_logits(adapter):
    """Two images in one prompt: LLaVA-OneVision cuts a single one into several of its own accord."""
    pictures, grids = zip(whole(adapter), whole(adapter))
    inputs = adapter.prepare(QUESTION, pictures, grids)
    found = stock_inputs(adapter, inputs, pictures)
    ours, passed = logits(adapter, inputs), logits(adapter, found)
    adapter.restore()
    stock = logits(adapter, found)
    assert difference(ours, stock) < 1e-5
    assert torch.equal(passed, stock)  # ordinary input goes through a hooked model unchanged
    other = stock_inputs(adapter, inputs, pictures[::-1])
    assert difference(logits(adapter, other), stock) > 1e-2


@pytest.mark.parametrize("control", ["stretched", "reversed", "floored"])
def test_positions_move_the_logits(adapter, control, monkeypatch):
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    chosen = small.chosen(texture, adapter.side, 8)
    right = logits(adapter, adapter.prepare(QUESTION, texture, chosen))
    given = adapter.places

    def wrong(view, coordinates="fine"):
        found = given(view, coordinates)
        patch = {"stretched": found.patch * 1.3, "reversed": found.patch.flip(0), "floored": found.patch.floor()}[
            control
        ]
        return Places(patch, found.extent, found.token)

    monkeypatch.setattr(adapter, "places", wrong)
    assert difference(logits(adapter, adapter.prepare(QUESTION, texture, chosen)), right) > 1e-3


def test_a_batch_of_mixed_sizes_and_budgets(adapter):
    """Each answer of a batch is what it would be alone, with beams too."""
    batch, alone = mixed(adapter)
    inputs = adapter.prepare(*batch)
    assert inputs["attention_mask"][1, 0] == 0
    together = logits(adapter, inputs)
    for index, one in enumerate(alone):
        single = logits(adapter, adapter.prepare(*one))
        assert difference(together[index, -single.shape[1] :], single[0]) < 1e-4
    for beams in (1, 2):
        answers = adapter.generate(*batch, num_beams=beams, **GREEDY)
        for answer, one in zip(answers, alone, strict=True):
            assert torch.equal(answer, adapter.generate(*one, num_beams=beams, **GREEDY)[0]), beams


def test_right_padding(adapter):
    batch, alone = mixed(adapter)
    inputs = adapter.prepare(*batch)
    padding = int((inputs["attention_mask"][1] == 0).sum())
    for name, value in inputs.items():
        if value.shape == inputs["input_ids"].shape:
            inputs[name] = torch.stack([value[0], value[1].roll(-padding)])
    assert padding > 0 and inputs["attention_mask"][1, -1] == 0
    together = logits(adapter, inputs)
    single = logits(adapter, adapter.prepare(*alone[1]))
    assert difference(together[1, :-padding], single[0]) < 1e-4


def test_cached_generation_is_that_of_whole_prompts(adapter):
    """The uncached answer is made by hand, one forward pass per token."""
    texture = small.picture(4 * adapter.side, 3 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 9)
    cached = adapter.generate(QUESTION, texture, allocation, **GREEDY)
    inputs = adapter.prepare(QUESTION, texture, allocation)
    for token in cached[0]:
        scores = logits(adapter, inputs)[:, -1:]
        scores[..., VISUAL] = -torch.inf
        step = scores.argmax(-1)
        assert int(step) == int(token)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], step], 1)
        inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(step)], 1)
        inputs |= adapter.id_inputs(inputs["input_ids"])


def test_full_grid_generates_what_the_unmodified_model_does(adapter):
    texture, grid = whole(adapter)
    pictures, grids = [texture] * 2, [grid] * 2  # older transformers mix up different ones under beams, A A B B
    inputs = adapter.prepare(QUESTION, pictures, grids)
    found = stock_inputs(adapter, inputs, pictures)
    for beams in (1, 3):
        ours = adapter.generate(QUESTION, pictures, grids, num_beams=beams, **GREEDY)
        stock = adapter.model.generate(**found, num_beams=beams, **GREEDY)[:, found["input_ids"].shape[1] :]
        assert torch.equal(ours, stock), beams


def test_every_beam_sees_all_images_of_its_prompt(adapter):
    batch, _ = mixed(adapter)
    options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 1, "do_sample": False}
    found = adapter.generate(*batch, **options, return_dict_in_generate=True, output_scores=True)
    likely = logits(adapter, adapter.prepare(*batch))[:, -1].log_softmax(-1).topk(2)
    assert torch.equal(found.sequences.view(2, 2), likely.indices)
    assert difference(found.sequences_scores.view(2, 2), likely.values) < 1e-4


def test_gradients_reach_the_pixels_the_footprints_and_the_weights(adapter):
    image = torch.rand(1, 3, 3 * adapter.side, 4 * adapter.side, requires_grad=True)
    texture = Texture((image,)).mipmapped()
    allocation = small.chosen(texture, adapter.side, 6)
    for axis in (allocation.centre, allocation.ddx, allocation.ddy):
        axis.requires_grad_()
    inputs = adapter.prepare(QUESTION, texture, allocation)
    adapter.model(**inputs, labels=inputs["input_ids"]).loss.backward()
    trained = [one for name, one in adapter.model.named_parameters() if "patch_embed" in name and one.dim() > 2]
    for leaf in (image, allocation.centre, allocation.ddx, allocation.ddy, *trained):
        assert leaf.grad.isfinite().all() and leaf.grad.any()
    assert trained and allocation.centre.grad.any(-1).all()  # every footprint matters
    adapter.model.zero_grad()


def hidden_state(model):
    """Everything that hooks could change: attributes and hooks of every module."""
    found = {}
    for name, module in model.named_modules():
        hooks = {key: list(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        found[name] = set(vars(module)), hooks
    return found


def test_restore_gives_the_model_back(built):
    family, processor = built[0].config.model_type, built[1]
    model = FAMILIES[family]()[0]  # one that never ran
    before, weights = hidden_state(model), {name: one.clone() for name, one in model.state_dict().items()}
    adapter = vlm.adapt(model, processor)
    assert vlm.adapt(model) is adapter and hidden_state(model) != before
    texture, grid = whole(adapter)
    inputs = adapter.prepare(QUESTION, [texture] * 2, [grid] * 2)
    found = stock_inputs(adapter, inputs, [texture] * 2)
    adapter.generate(QUESTION, texture, grid, **GREEDY)
    assert adapter.restore() is model
    assert hidden_state(model) == before
    after = model.state_dict()
    assert list(after) == list(weights) and all(torch.equal(after[name], one) for name, one in weights.items())
    fresh = FAMILIES[family]()[0]
    with torch.no_grad():
        assert torch.equal(model(**found).logits, fresh(**found).logits)
    with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
        model(**inputs)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_hooked_model_can_be_copied(built, copied):
    """One that never ran ordinary input: with hidden states, that leaves hooks of transformers' own behind."""
    adapter = vlm.adapt(FAMILIES[built[0].config.model_type]()[0], built[1])
    texture = small.picture(2 * adapter.side, 3 * adapter.side)
    inputs = adapter.prepare(QUESTION, texture, small.chosen(texture, adapter.side, 5))
    wanted = logits(adapter, inputs)
    twin = vlm.adapt(copied(adapter.model))
    assert twin is not adapter and twin.model is not adapter.model
    with torch.no_grad():
        for parameter in twin.model.parameters():
            parameter.mul_(1.5)
    assert difference(logits(twin, inputs), wanted) > 1e-2  # its own weights, not those of the first
    assert torch.equal(logits(adapter, inputs), wanted)
    assert hidden_state(twin.restore()) != hidden_state(adapter.model)
    assert torch.equal(logits(adapter, inputs), wanted)


def test_a_cast_to_bfloat16_moves_no_position(adapter):
    side = adapter.side
    texture = small.picture(4 * side, 60 * side)
    chosen = small.chosen(texture, side, 8)
    inputs = adapter.prepare(QUESTION, texture, chosen)
    rows = inputs["pixel_values"]
    (view,) = still_views("test", PromptImage(texture, chosen), side)
    place = unpack(rows.bfloat16(), adapter.row_width)[1].patch.view(-1, 2)
    assert torch.equal(place, adapter.places(view).patch.flatten(0, 1))
    pixels_only = torch.cat([rows[..., : adapter.row_width].bfloat16().float(), rows[..., adapter.row_width :]], -1)
    assert not torch.equal(rows, rows.bfloat16().float())
    cast = logits(adapter, inputs | {"pixel_values": rows.bfloat16()})
    assert torch.equal(cast, logits(adapter, inputs | {"pixel_values": pixels_only}))


def test_embeddings_may_be_weighted(adapter):
    """Weights of one change nothing, others do, and gradients reach the relevance."""
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    plain = logits(adapter, adapter.prepare(QUESTION, texture, vlm.own_grid(adapter, texture)))
    ones = torch.ones(1, 24, 32)
    assert torch.equal(logits(adapter, vlm.weighted(adapter, QUESTION, texture, ones)), plain)
    relevance = torch.rand(1, 24, 32, requires_grad=True)
    found = adapter.model(**vlm.weighted(adapter, QUESTION, texture, relevance)).logits
    assert difference(found, plain) > 1e-2
    found[0, -1, 3].backward()
    assert relevance.grad.abs().min() > 0
    adapter.model.zero_grad()
    other = small.picture(*texture.size)  # a token of weight zero says nothing about its pixels
    silent = [vlm.weighted(adapter, QUESTION, one, torch.zeros(1, 6, 8)) for one in (texture, other)]
    assert difference(*(logits(adapter, inputs) for inputs in silent)) < 1e-5


def test_a_family_without_videos_says_so(adapter):
    texture = small.picture(2 * adapter.side, 2 * adapter.side, batch=2)
    allocation = small.full_grid(texture, adapter.side, frames=[0, 1])
    if adapter.videos:
        assert torch.isfinite(logits(adapter, adapter.prepare(QUESTION, texture, allocation))).all()
    else:
        with pytest.raises(ValueError, match="give its frames as images"):
            adapter.prepare(QUESTION, texture, allocation)


def test_a_tower_that_ignores_positions_is_refused(built, monkeypatch):
    """As when transformers renames an argument: it would pass through `**kwargs` unnoticed."""
    model, processor = built
    before = hidden_state(model)
    given = QwenAdapter.tower_arguments

    def renamed(self, *columns):
        return {f"{name}_renamed": value for name, value in given(self, *columns).items()}

    def nowhere(self, table, patch, reach):
        return table.mean(0).expand(*patch.shape[:2], -1)

    for cls in type(vlm.adapter_for(model.config)).__mro__:
        if "tower_arguments" in vars(cls):
            monkeypatch.setattr(cls, "tower_arguments", renamed)
    monkeypatch.setattr(VisionTransformer, "_positions", nowhere)
    with pytest.raises(RuntimeError, match=r"vision tower of \w+ ignores .* under transformers 5"):
        vlm.adapt(model, processor)
    assert hidden_state(model) == before
    monkeypatch.undo()
    vlm.adapt(model, processor).restore()


def test_a_second_adapter_that_fails_leaves_the_first_in_place(built, monkeypatch):
    model = FAMILIES[built[0].config.model_type]()[0]
    before = hidden_state(model)
    first = vlm.adapt(model, built[1])
    texture = small.picture(2 * first.side, 3 * first.side)
    inputs = first.prepare(QUESTION, texture, small.chosen(texture, first.side, 5))
    wanted = logits(first, inputs)
    other = copy.copy(built[1])
    with monkeypatch.context() as patched:
        patched.setattr(type(first), "probe", lambda self: self.refuse("everything"))
        with pytest.raises(RuntimeError, match="ignores everything"):
            vlm.adapt(model, other)
    assert vlm.adapt(model) is first and torch.equal(logits(first, inputs), wanted)
    second = vlm.adapt(model, other)
    assert second is not first and torch.equal(logits(second, inputs), wanted)
    assert hidden_state(second.restore()) == before


def test_a_tower_that_ignores_one_argument_is_refused(built, monkeypatch):
    model, processor = built
    kind = type(vlm.adapter_for(model.config))
    if not issubclass(kind, QwenAdapter):
        pytest.skip("positions of this family are not arguments of its tower")
    given, before = kind.tower_arguments, hidden_state(model)
    adapter = vlm.adapt(model, processor)
    names = list(adapter.tower_arguments(torch.zeros(4, 2), torch.ones(4, 2), torch.tensor([True] + [False] * 3)))
    adapter.restore()
    assert {"position_ids", "cu_seqlens"} <= set(names)
    for renamed in names:

        def wrong(self, *columns, renamed=renamed):
            found = given(self, *columns)
            return {f"{name}_renamed" if name == renamed else name: value for name, value in found.items()}

        monkeypatch.setattr(kind, "tower_arguments", wrong)
        with pytest.raises(RuntimeError, match=r"ignores (its argument \w+|the positions .*) under transformers 5"):
            vlm.adapt(model, processor)
        assert hidden_state(model) == before, renamed


def test_several_threads_may_run_one_model(adapter):
    """They meet where each has told the tower what to read, and the tower has not read it yet."""
    pictures = [small.picture(3 * adapter.side, 4 * adapter.side) for _ in range(3)]
    inputs = [
        adapter.prepare(QUESTION, one, small.chosen(one, adapter.side, count, seed=count), weights=weight)
        for one, count, weight in zip(pictures, (4, 6, 8), (torch.full((1, 4), 0.5), None, torch.full((1, 8), 2.0)))
    ]
    wanted, before = [logits(adapter, one) for one in inputs], hidden_state(adapter.model)
    tower = getattr(adapter.tower, "tower", adapter.tower)
    hook = tower.register_forward_pre_hook(lambda *_: time.sleep(0.01))
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(partial(logits, adapter), inputs * 3))
    finally:
        hook.remove()
    for one, other in zip(found, wanted * 3):
        assert difference(one, other) < 1e-5
    assert hidden_state(adapter.model) == before
