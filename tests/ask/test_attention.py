"""Two looks: the attention is the model's own, and the second look goes where it points."""

import pytest
import torch

from tests.ask import models
from tests.ask.models import QUESTION
from tests.vlm import small
from texturevlm.ask import VLM
from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.types import Allocation


def eager_attention(adapter, question, textures, allocations, layer):
    """transformers' own weights of all layers, which only its slow attention gives."""
    inputs = adapter.prepare(question, textures, allocations)
    visual = inputs["input_ids"][0] == small.IMAGE
    last = int(visual.nonzero()[-1])
    adapter.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = adapter.model(**inputs, output_attentions=True).attentions[layer]
    adapter.model.set_attn_implementation("sdpa")
    found = weights[0, :, last + 1 :, visual].mean((0, 1))
    each = [adapter.length(one.budget) for one in allocations]
    parts = [part[: one.budget] for part, one in zip(found.split(each), allocations)]
    return [part / torch.cat(parts).sum() for part in parts]


def test_attention_is_that_of_the_eager_model(adapter):
    textures = [small.picture(96, 128), small.picture(64, 64)]
    allocations = [small.full_grid(one, adapter.side, scale=2.0) for one in textures]  # slots in reading order
    ours = question_attention(adapter, QUESTION, textures, allocations)
    theirs = eager_attention(adapter, QUESTION, textures, allocations, layer=1)
    assert float(torch.cat(ours).sum()) == pytest.approx(1, abs=1e-5)
    for one, other in zip(ours, theirs):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) < 1e-5
    assert float(torch.cat(ours).std()) > 1e-5


def test_attention_comes_in_the_allocation_s_slots(adapter):
    texture = small.picture(96, 128)
    allocation = small.full_grid(texture, adapter.side, scale=2.0)
    order = torch.randperm(allocation.budget, generator=torch.Generator().manual_seed(3))
    (one,) = question_attention(adapter, QUESTION, [texture], [allocation])
    (other,) = question_attention(adapter, QUESTION, [texture], [allocation.each(lambda column: column[:, order])])
    assert float((one[order] - other).abs().max()) < 1e-6


def test_the_model_is_left_as_it_was(adapter):
    texture = small.picture(96, 96)
    inputs = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    with torch.no_grad():
        before = adapter.model(**inputs).logits
        question_attention(adapter, QUESTION, [texture], [small.full_grid(texture, adapter.side)])
        after = adapter.model(**inputs).logits
    assert torch.equal(before, after)
    assert not adapter.model.model.language_model.layers[1].self_attn._forward_pre_hooks


def boxes(*given):
    return Allocation.of_boxes(torch.tensor([given], dtype=torch.float32), (64, 128), 32)


def test_decided_attention_is_followed_and_undecided_one_spread():
    halves = boxes((0, 0, 64, 64), (64, 0, 128, 64))
    (decided,) = pointed_at([torch.tensor([1.0, 0.0])], [halves])
    assert float(decided.sum()) == pytest.approx(1) and float(decided[0, :, 64:].sum()) == 0
    (leaning,) = pointed_at([torch.tensor([0.9, 0.1])], [halves])
    assert 0.1 < float(leaning[0, :, 64:].sum()) < 0.5  # more than what it got: that is where it is undecided
    (even,) = pointed_at([torch.tensor([0.5, 0.5])], [halves])
    assert float(even[0, :, 64:].sum()) == pytest.approx(0.5)


def test_worth_is_spread_over_the_footprint_and_images_keep_their_share():
    small_and_large = boxes((0, 0, 32, 32), (64, 0, 128, 64))
    one, other = pointed_at([torch.tensor([0.25, 0.25]), torch.tensor([0.25, 0.25])], [small_and_large] * 2)
    assert float(one.sum()) == pytest.approx(0.5) and float(other.sum()) == pytest.approx(0.5)
    assert float(one[0, 0, 0]) == pytest.approx(4 * float(one[0, 0, 100]))


def test_no_attention_at_all_points_nowhere():
    (nothing,) = pointed_at([torch.zeros(2)], [boxes((0, 0, 64, 64), (64, 0, 128, 64))])
    assert float(nothing.abs().sum()) == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_second_look_goes_where_the_attention_points(monkeypatch, side):
    asked = VLM(*models.built("qwen3_vl"), budget=40)
    session = asked.prepare(models.noise(512, 512))
    points = []

    def pointing(adapter, question, textures, allocations):
        (allocation,) = allocations
        points.append(int(allocation.valid.sum()))
        there = allocation.centre[0, :, 0] < 256 if side == "left" else allocation.centre[0, :, 0] > 256
        found = (there & allocation.valid[0]).float()
        return [found / found.sum()]

    monkeypatch.setattr("texturevlm.ask.attention.question_attention", pointing)
    (chosen,) = session.choose(QUESTION, looks=2)
    allocation = chosen.given
    assert points == [10] and allocation.budget == 40 and int(allocation.valid.sum()) == 40
    fine = allocation.level[0] < allocation.level[0, :10].min() - 0.1
    x = allocation.centre[0, fine, 0]
    assert len(x) >= 15
    assert float(((x < 256) if side == "left" else (x > 256)).float().mean()) > 0.8


def test_two_looks_at_several_images_stay_within_the_budget(adapter):
    asked = models.asked(adapter, budget=24)
    session = asked.prepare([models.noise(300, 200), models.noise(150, 150, seed=1)])
    chosen = session.choose(QUESTION, looks=2)
    used = [one.tokens for one in chosen]
    assert sum(used) <= 24 and min(used) >= 1
    assert {one.relevance.scorer for one in chosen} == {"attention"}
    assert isinstance(session.ask(QUESTION, looks=2, max_new_tokens=3), str)
