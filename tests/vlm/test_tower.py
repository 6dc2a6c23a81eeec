"""Tokens that leave before the tower or in it, on small random models of the real classes."""

import pytest
import torch

from tests.vlm import small
from tests.vlm.test_reducing import COUNT, GREEDY, QUESTION, _sample, inputs_for, kept_counts, logits, spied
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm_lab.rivals import METHODS, Reduction, steps_of
from texturevlm_lab.rivals.hooks.places import PLACES_OF
from texturevlm_lab.rivals.hooks.reducing import reduced

FAMILIES = {
    **small.BUILDERS,
    "llava": small.llava,
    **{name: small.MORE[name] for name in ("internvl", "smolvlm", "glm4v")},
}
stride = METHODS["stride"].stages[0].reduce


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    return small.built(FAMILIES, request.param)


def blocks_of(adapter):
    return adapter.tower.blocks if isinstance(adapter, QwenAdapter) else adapter.tower.layers


def tower_counts(adapter, inputs, steps):
    """Tokens that each block of the tower has."""
    counts, front = [], 0 if isinstance(adapter, QwenAdapter) else adapter.tower.in_front
    hooks = []
    for block in blocks_of(adapter):
        hooks.append(block.mlp.register_forward_hook(lambda _, args, out: counts.append(out.shape[-2])))
    logits(adapter, inputs, steps)
    for one in hooks:
        one.remove()
    return [(count - front) / adapter.merge**2 for count in counts]


@pytest.mark.parametrize("method", ["tome", "pvc", "pixelprune", "pace"])
def test_keeping_everything_is_the_unreduced_model(adapter, method):
    if method == "pace" and "llm" not in PLACES_OF[adapter.config.model_type]:
        pytest.skip("pace acts in the language model, too")
    inputs = inputs_for(adapter)
    expected = logits(adapter, inputs)
    torch.testing.assert_close(logits(adapter, inputs, steps_of("ask", method, 1.0)), expected)
    assert not torch.allclose(logits(adapter, inputs, steps_of("ask", method, 4))[:, -1], expected[:, -1])


def test_the_tower_has_fewer_tokens_from_where_they_leave(adapter):
    inputs = inputs_for(adapter)
    depth = len(blocks_of(adapter))
    assert tower_counts(adapter, inputs, steps_of("ask", "pixelprune", 6)) == [6] * depth
    found = tower_counts(adapter, inputs, steps_of("ask", "pvc", 6))
    middle = round(adapter.tower_depth / 2)
    assert found == [COUNT] * middle + [6] * (depth - middle)
    falling = tower_counts(adapter, inputs, steps_of("ask", "tome", 4))
    assert falling[0] == COUNT and falling[-1] == 4 and falling == sorted(falling, reverse=True)
    assert set(kept_counts(adapter, inputs, steps_of("ask", "tome", 4))) == {4}


def test_dropping_before_the_tower_is_choosing_fewer_tokens(adapter, monkeypatch):
    """Rows that are dropped before the first block might as well not be there."""
    texture = small.picture(96, 96)
    whole = small.chosen(texture, adapter.side, COUNT)
    found = spied(monkeypatch, (stride, "pixels"))
    inputs, steps = adapter.prepare(QUESTION, texture, whole), steps_of("ask", "spy", 7)
    with_drop, embeds = logits(adapter, inputs, steps), _embeds(adapter, steps, inputs)
    context, kept = found[0][0], found[0][1].kept
    place = whole.centre[0].flip(-1) / 96 * torch.tensor(adapter.grid_for((96, 96))) - 0.5
    own = torch.cdist(context.position[kept, 1:], place).argmin(-1)  # a prompt has an order of its own
    fields = (getattr(whole, name)[:, own] for name in ("centre", "ddx", "ddy", "score", "valid", "source"))
    fewer = adapter.prepare(QUESTION, texture, Allocation(*fields, whole.size, whole.patch))
    torch.testing.assert_close(embeds[kept], _embeds(adapter, (), fewer), atol=5e-5, rtol=1e-4)
    if isinstance(adapter, QwenAdapter):  # elsewhere tokens are counted, so that later ones have other positions
        torch.testing.assert_close(with_drop[:, -1], logits(adapter, fewer)[:, -1], atol=5e-5, rtol=1e-4)


def _embeds(adapter, steps, inputs, mark=small.IMAGE):
    """The visual embeddings that the language model is given."""
    given = {}
    hook = adapter.language_of(adapter.model).register_forward_pre_hook(
        lambda _, __, kwargs: given.update(kwargs), with_kwargs=True
    )
    logits(adapter, inputs, steps)
    hook.remove()
    return given["inputs_embeds"][inputs["input_ids"] == mark]


def pairs(context, keep):
    """Merge token 0 into 1, 2 into 3 … until so many are left."""
    goes = torch.arange(len(context))
    for first in range(0, 2 * (len(context) - keep), 2):
        goes[first] = first + 1
    return Reduction.merging((goes == torch.arange(len(context))).nonzero()[:, 0], goes)


def test_merging_copies_changes_nothing(adapter, monkeypatch):
    """Twice the same footprint: merged they are attended to as often as before, + log(2), so nothing else changes."""
    texture = small.picture(96, 96)
    once = small.chosen(texture, adapter.side, 6)
    names = ("centre", "ddx", "ddy", "score", "valid", "source")
    twice = Allocation(*(getattr(once, name).repeat_interleave(2, 1) for name in names), once.size, once.patch)
    inputs = adapter.prepare(QUESTION, texture, twice)
    for depth in (0.3, 0.6):
        found = spied(monkeypatch, (pairs, "tower", ("keys",), depth))
        merged = _embeds(adapter, steps_of("ask", "spy", 9), inputs)  # the last six stay as they are
        torch.testing.assert_close(merged, _embeds(adapter, (), inputs), atol=2e-5, rtol=1e-4)
        keys = found[0][0].keys
        torch.testing.assert_close(keys[:, 0::2], keys[:, 1::2])
        assert not torch.allclose(keys[:, 0], keys[:, 2])


def test_a_merged_token_is_one_and_weighs_two(adapter, monkeypatch):
    """Behind the tower its members are alike, and in the language model there is one of them with + log(2)."""
    found = spied(monkeypatch, (pairs, "tower", (), 0.5), (stride, "projector"))
    inputs = inputs_for(adapter)
    embeds = _embeds(adapter, steps_of("ask", "spy", 12), inputs)
    behind = found[1][0]
    middle = len(found[0][1].kept)
    assert int((behind.size == 2).sum()) == COUNT - middle
    assert torch.equal(embeds[0], embeds[1])
    assert float(behind.size.sum()) == COUNT
    torch.testing.assert_close(behind.features[0], embeds[1])


@pytest.mark.parametrize("method", ["tome", "pvc", "pixelprune", "pace"])
def test_a_batch_is_as_one_prompt_after_the_other(adapter, method):
    if method == "pace" and "llm" not in PLACES_OF[adapter.config.model_type]:
        pytest.skip("pace acts in the language model, too")
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?", QUESTION), counts=(COUNT, 9, COUNT))
    steps = steps_of("ask", method, 0.3)
    found = logits(adapter, inputs, steps)
    for sample in range(3):
        expected = logits(adapter, _sample(adapter, inputs, sample), steps)
        torch.testing.assert_close(found[sample, -1], expected[0, -1], atol=1e-4, rtol=1e-4)


def test_pictures_of_a_prompt_share_its_budget(adapter, monkeypatch):
    found = spied(monkeypatch, (stride, "tower", (), 0.5))
    textures = [small.picture(96, 96), small.picture(96, 96)]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, (15, 5))]
    inputs = adapter.prepare(QUESTION, textures, allocations)
    assert set(kept_counts(adapter, inputs, steps_of("ask", "spy", 8))) == {8}
    assert sorted(len(result.kept) for _, result in found) == [2, 6]
    with pytest.raises(ValueError, match="keep of spy must be at least the number of pictures of a prompt, 2, got 1"):
        logits(adapter, inputs, steps_of("ask", "spy", 1))


@pytest.mark.parametrize("method", ["tome", "pixelprune"])
def test_beams_and_decoding(adapter, method):
    inputs = inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(COUNT, 9))
    steps, length = steps_of("ask", method, 5), inputs["input_ids"].shape[1]
    with torch.no_grad(), reduced(adapter, steps):
        found = adapter.model.generate(**inputs, **GREEDY, output_logits=True, return_dict_in_generate=True)
    torch.testing.assert_close(found.logits[0], logits(adapter, inputs, steps)[:, -1], atol=1e-4, rtol=1e-4)
    with torch.no_grad(), reduced(adapter, steps):
        together = adapter.model.generate(**inputs, **GREEDY, num_beams=3)[:, length:]
        for sample in range(2):
            own = _sample(adapter, inputs, sample)
            alone = adapter.model.generate(**own, **GREEDY, num_beams=3)[:, own["input_ids"].shape[1] :]
            assert torch.equal(together[sample], alone[0])


def test_steps_in_and_behind_the_tower(adapter):
    """What the tower's last attention says of tokens that are left is for those tokens."""
    inputs = inputs_for(adapter)
    both = [("tome", 10), ("visionzip", 5)]
    assert set(kept_counts(adapter, inputs, steps_of("ask", both))) == {5}
    tower = tower_counts(adapter, inputs, steps_of("ask", both))
    assert tower[-1] == 10


def test_downsampled_tokens_lie_where_their_area_lies(adapter, monkeypatch):
    """A flat picture, shrunk by two, is as if tokens twice as wide had been chosen."""
    side = adapter.side
    texture = Texture.open(torch.nn.functional.interpolate(torch.rand(1, 3, 2, 2), scale_factor=2 * side)).mipmapped()
    fine, coarse = (small.full_grid(texture, side, scale=scale) for scale in (1.0, 2.0))
    monkeypatch.setattr(type(adapter), "grid_for", lambda _, size: (4, 4))
    found = spied(monkeypatch, (METHODS["pace"].stages[0].reduce, "pixels", ("pixels",)))
    small_rows = _embeds(adapter, steps_of("ask", "spy", 4), adapter.prepare(QUESTION, texture, fine))
    kept = found[0][1].kept
    assert kept.tolist() == [0, 2, 8, 10]
    expected = _embeds(adapter, (), adapter.prepare(QUESTION, texture, coarse))
    torch.testing.assert_close(small_rows[kept], expected, atol=2e-3, rtol=2e-3)


def test_downsampled_tokens_of_a_video_show_all_their_frames(adapter, monkeypatch):
    """Two frames that differ are one token: neither takes the place of the other."""
    if not adapter.videos:
        pytest.skip("no videos")
    side = adapter.side
    frames = torch.nn.functional.interpolate(torch.rand(2, 3, 2, 2), scale_factor=2 * side)
    texture = Texture.open(frames).mipmapped()
    fine, coarse = (small.full_grid(texture, side, scale=scale, frames=range(1)) for scale in (1.0, 2.0))
    monkeypatch.setattr(type(adapter), "grid_for", lambda _, size: (4, 4))
    found = spied(monkeypatch, (METHODS["pace"].stages[0].reduce, "pixels", ("pixels",)))
    small_rows = _embeds(adapter, steps_of("ask", "spy", 4), adapter.prepare(QUESTION, texture, fine), small.VIDEO)
    expected = _embeds(adapter, (), adapter.prepare(QUESTION, texture, coarse), small.VIDEO)
    torch.testing.assert_close(small_rows[found[0][1].kept], expected, atol=2e-3, rtol=2e-3)


def test_the_model_is_as_before(adapter):
    inputs = inputs_for(adapter)
    before = logits(adapter, inputs)
    with pytest.raises(ZeroDivisionError), reduced(adapter, steps_of("ask", "tome", 4)):
        raise ZeroDivisionError
    assert torch.equal(logits(adapter, inputs), before)


def test_images_and_videos_in_one_prompt_are_refused(adapter):
    if not adapter.videos:
        pytest.skip("no videos")
    video, image = Texture.open(torch.rand(4, 3, 64, 64)), small.picture(64, 64)
    allocations = [small.full_grid(video, adapter.side, frames=range(0, 4, 2)), small.full_grid(image, adapter.side)]
    inputs = adapter.prepare(QUESTION, [video, image], allocations)
    with pytest.raises(ValueError, match="must have images or videos, not both, where tokens leave before the proj"):
        logits(adapter, inputs, steps_of("ask", "tome", 0.5))


def test_a_tower_without_a_mask_is_refused(adapter, monkeypatch):
    if isinstance(adapter, QwenAdapter):
        pytest.skip("its tower needs none")
    monkeypatch.setattr(adapter.tower.tower.config, "_attn_implementation", "flex_attention")
    with pytest.raises(ValueError, match="tome needs attn_implementation of the tower to be sdpa or eager, got flex"):
        logits(adapter, inputs_for(adapter), steps_of("ask", "tome", 4))
