"""Soft selection: the budget holds, gradients reach everything, and temperature zero is the hard choice."""

import pytest
import torch
from studies.losses import rebuilt
from studies.raster import covered
from studies.relax import WAYS

from tests.vlm import small
from texturevlm import vlm
from texturevlm.rebuilding import rebuild
from texturevlm.sampling import sample
from texturevlm.train import Tiles, soften

SIZE = (64, 96)


def apart():
    return Tiles.lattice(SIZE, patch=8, sides=(32.0, 16.0, 8.0))


def nested():
    return Tiles.tree(SIZE, patch=8, first=(2, 3), factors=(2, 2))


KINDS = {"apart": apart, "nested": nested}


def picture():
    return small.picture(*SIZE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [2.0, 0.1])
def test_the_budget_holds_in_expectation(kind, way, temperature):
    tiles = KINDS[kind]()
    tokens = soften(tiles, torch.randn(3, len(tiles)), 24, way=way, temperature=temperature)
    torch.testing.assert_close(tokens.expected, torch.full((3,), 24.0), rtol=1e-4, atol=0)
    assert tokens.weight.min() >= -1e-6 and tokens.weight.max() <= 1 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_temperature_zero_is_the_hard_choice(kind, way):
    tiles = KINDS[kind]()
    scores = torch.randn(2, len(tiles))
    tokens = soften(tiles, scores, 24, way=way, temperature=1e-6)
    hard = tokens.harden(24)
    torch.testing.assert_close(tokens.weight, tiles.chosen(scores, 24).float(), atol=1e-4, rtol=0)
    assert hard.budget == 24 and hard.valid.all() and hard.size == SIZE
    used = [sorted(map(tuple, tokens.boxes[image][tokens.weight[image] > 0.5].tolist())) for image in range(2)]
    assert used == [sorted(map(tuple, hard.boxes[image].tolist())) for image in range(2)]


def test_nested_tiles_always_cover_the_image_once():
    tiles = nested()
    scores = torch.randn(4, len(tiles)) * 5
    hard = soften(tiles, scores, 33).harden(33)
    assert (hard.coverage == 1).all() and int(hard.valid.sum()) == 4 * 33
    torch.testing.assert_close((hard.area * hard.valid).sum(1), torch.full((4,), float(SIZE[0] * SIZE[1])))
    soft = soften(tiles, scores, 33, temperature=1.0)
    area = soft.step.prod(-1) * tiles.patch**2
    torch.testing.assert_close((soft.weight * area).sum(1), torch.full((4,), float(SIZE[0] * SIZE[1])))


def test_a_wanted_child_of_an_unwanted_parent_is_not_reached():
    tiles = nested()
    scores = torch.full((1, len(tiles)), -5.0)
    scores[0, 1] = 3.0  # of the six coarsest
    scores[0, 6:] = 9.0  # all that they could be cut into
    boxes = soften(tiles, scores, 9).harden(9).boxes[0]
    fine = boxes[(boxes[:, 2] - boxes[:, 0]) < 20]
    assert len(fine) == 4 and fine[:, 0].min() == 32 and fine[:, 2].max() == 64 and fine[:, 3].max() == 32


def test_a_budget_beyond_all_tiles_leaves_slots_unused():
    hard = soften(apart(), torch.randn(1, len(apart())), 500).harden(500)
    assert hard.budget == 500 and int(hard.valid.sum()) == len(apart())
    hard = soften(nested(), torch.randn(1, len(nested())), 500).harden(500)
    assert int(hard.valid.sum()) == 96 and (hard.coverage == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_scores_positions_and_levels(kind):
    tiles, texture = KINDS[kind](), picture()
    given = {
        "scores": torch.randn(1, len(tiles), requires_grad=True),
        "shift": (torch.randn(1, len(tiles), 2) * 0.1).requires_grad_(),
        "zoom": (torch.randn(1, len(tiles)) * 0.1).requires_grad_(),
    }
    tokens = soften(tiles, budget=24, **given)
    (tokens.sample(texture).pixels.square().mean((2, 3, 4)) * tokens.weight).sum().backward()
    scored = torch.ones(len(tiles), dtype=torch.bool) if tiles.cut is None else tiles.cut > 0
    for name, tensor in given.items():
        reached = tensor.grad[:, scored] if name == "scores" else tensor.grad
        assert reached.isfinite().all() and (reached != 0).float().mean() > 0.9, name


def test_gradients_of_positions_and_levels_are_those_of_the_picture():
    """Finite differences in float64 of what one token shows."""
    tiles = Tiles.lattice((40, 40), patch=4, sides=(20.0,))
    texture = small.picture(40, 40).to(dtype=torch.float64)
    shift = (torch.rand(1, 4, 2, dtype=torch.float64) * 0.2).requires_grad_()
    zoom = (torch.rand(1, 4, dtype=torch.float64) * 0.3 + 0.1).requires_grad_()
    scores = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)

    def shows(scores, shift, zoom):
        tokens = soften(tiles, scores, 2, shift=shift, zoom=zoom, temperature=0.5)
        return (tokens.sample(texture).pixels.mean((2, 3, 4)) * tokens.weight).sum()

    torch.autograd.gradcheck(shows, (scores, shift, zoom), eps=1e-7, atol=1e-5)


def test_what_the_tokens_deliver_is_what_the_hard_ones_do():
    tiles, texture = nested(), picture()
    tokens = soften(tiles, torch.randn(1, len(tiles)), 24, temperature=1e-6)
    hard = rebuild(texture, tokens.harden(24))
    torch.testing.assert_close(rebuilt(tokens, texture, SIZE), hard, atol=0.35, rtol=0)  # bilinear against bicubic
    coarse = [torch.nn.functional.avg_pool2d(one, 8) for one in (rebuilt(tokens, texture, SIZE), hard)]
    torch.testing.assert_close(coarse[0], coarse[1], atol=0.03, rtol=0)
    few = soften(apart(), torch.randn(1, len(apart())), 10, temperature=1e-6)
    share = covered(few, SIZE).mean()
    torch.testing.assert_close(share, few.harden(10).coverage[0], atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def qwen():
    adapter = vlm.adapt(*small.qwen3_vl())
    yield adapter
    adapter.restore()


def test_gradients_pass_through_a_vision_tower(qwen):
    tiles, texture = Tiles.tree((128, 128), patch=qwen.side, first=(1, 1), factors=(2, 2)), small.picture(128, 128)
    given = {
        "scores": torch.randn(1, len(tiles), requires_grad=True),
        "shift": (torch.randn(1, len(tiles), 2) * 0.1).requires_grad_(),
        "zoom": (torch.randn(1, len(tiles)) * 0.1).requires_grad_(),
    }
    tokens = soften(tiles, budget=7, **given)
    embeds = qwen.encode(texture, tokens.allocation()).embeds
    (embeds * tokens.weight[..., None]).square().sum().backward()
    for name, tensor in given.items():
        assert tensor.grad.isfinite().all() and tensor.grad.abs().max() > 0, name


def test_the_tower_sees_the_hard_tokens_at_temperature_zero(qwen):
    tiles, texture = Tiles.tree((128, 128), patch=qwen.side, first=(1, 1), factors=(2, 2)), small.picture(128, 128)
    tokens = soften(tiles, torch.randn(1, len(tiles)), 10, temperature=1e-6)
    with torch.no_grad():
        inputs = qwen.prepare("what is the total ?", texture, tokens.allocation(), weights=tokens.weight)
        soft = qwen.model(**inputs).logits
        hard = qwen.model(**qwen.prepare("what is the total ?", texture, tokens.harden(10))).logits
    torch.testing.assert_close(soft, hard, atol=1e-3, rtol=1e-3)
    warm = soften(tiles, tokens.score, 10, temperature=1.0)
    with torch.no_grad():
        inputs = qwen.prepare("what is the total ?", texture, warm.allocation(), weights=warm.weight)
        assert qwen.model(**inputs).logits.shape != soft.shape  # more candidates count while it is warm


def test_hard_tokens_are_ordinary_ones():
    tokens = soften(nested(), torch.randn(1, len(nested()), requires_grad=True), 24)
    hard = tokens.harden(24)
    assert not hard.centre.requires_grad
    assert sample(picture(), hard).pixels.shape == (1, 24, 3, 8, 8)
    assert type(hard).from_json(hard.to_json()).boxes.equal(hard.boxes)


def test_complaints():
    with pytest.raises(ValueError, match=r"scores must be \(B, 126\), one a tile, got \(1, 3\)"):
        soften(nested(), torch.zeros(1, 3), 24)
    with pytest.raises(ValueError, match="budget must be at least 6, got 5"):
        soften(nested(), torch.zeros(1, 126), 5)
    with pytest.raises(ValueError, match="factors must be equal for a soft budget"):
        soften(Tiles.tree(SIZE, patch=8, first=(1, 1), factors=(2, 3)), torch.zeros(1, 41), 5)
