"""Losses: right for hard tokens, with gradients that improve soft ones."""

import math

import pytest
import torch
from studies.losses import half_of_height, illegibility, over_budget, overlap, reconstruction, roughness
from studies.raster import box_shares, covered, insides, shown
from texturevlm.train.answer import surprise

from tests.vlm import small
from texturevlm import vlm
from texturevlm.evaluate.objects import painted
from texturevlm.ops.legibility import legibility
from texturevlm.train import Tiles, soften
from texturevlm.types import Texture

SIZE = (64, 96)
BOXES = [(8.0, 8.0, 40.0, 30.0), (30.0, 20.0, 90.0, 60.0)]


def descend(loss, *tensors, steps=60, rate=0.1):
    """The loss before and after a few steps of Adam."""
    optimiser = torch.optim.Adam(tensors, lr=rate)
    first = loss()
    for _ in range(steps):
        optimiser.zero_grad()
        found = loss()
        found.backward()
        optimiser.step()
    return first.item(), loss().item()


def test_overlap_of_hard_tokens_is_the_overlap_of_pixels():
    tiles = Tiles.lattice(SIZE, patch=8, sides=(16.0, 8.0))
    tokens = soften(tiles, torch.randn(1, len(tiles)), 20, temperature=1e-6)
    objects = box_shares(torch.tensor(BOXES), SIZE, SIZE)
    cover, there = painted(tokens.harden(20).boxes[0].tolist(), SIZE), painted(BOXES, SIZE)
    exact = (cover & there).sum() / (cover | there).sum()
    assert 1 - overlap(tokens, objects[None]).item() == pytest.approx(exact.item(), abs=1e-3)


def test_overlap_moves_scores_and_footprints_onto_objects():
    tiles = Tiles.lattice(SIZE, patch=8, sides=(8.0,))
    objects = box_shares(torch.tensor(BOXES), SIZE, (16, 24))[None]
    scores = torch.zeros(1, len(tiles), requires_grad=True)
    before, after = descend(lambda: overlap(soften(tiles, scores, 40), objects).sum(), scores)
    assert after < before - 0.3
    one = Tiles.lattice(SIZE, patch=8, sides=(96.0,))
    shift, zoom = torch.zeros(1, 1, 2, requires_grad=True), torch.full((1, 1), -1.0, requires_grad=True)
    target = box_shares(torch.tensor([(44.0, 28.0, 74.0, 48.0)]), SIZE, (32, 48))[None]

    def missed():
        return overlap(soften(one, torch.zeros(1, 1), 1, shift=shift, zoom=zoom), target).sum()

    before, after = descend(missed, shift, zoom, steps=200, rate=0.02)
    assert after < 0.15 < 0.6 < before


def test_cover_is_what_every_footprint_leaves():
    """By all cells of all footprints, moved and enlarged, some over the border; with its gradients."""
    tiles = Tiles.lattice(SIZE, patch=8, sides=(32.0, 8.0))
    given = [torch.randn(2, len(tiles), dtype=torch.float64), torch.randn(2, len(tiles), 2, dtype=torch.float64)]
    given = [*given, torch.randn(2, len(tiles), dtype=torch.float64)]
    scores, shift, zoom = (one.requires_grad_() for one in given)
    tokens = soften(tiles, scores, 20, shift=shift, zoom=zoom)
    every = 1 - (1 - tokens.weight[..., None, None] * insides(tokens, (7, 11))).prod(1)
    found = covered(tokens, (7, 11))
    torch.testing.assert_close(found, every, atol=1e-3, rtol=0)
    towards = torch.randn_like(found)
    for name, one in zip(("scores", "shift", "zoom"), (scores, shift, zoom)):
        mine, exact = (
            torch.autograd.grad((map_ * towards).sum(), one, retain_graph=True)[0] for map_ in (found, every)
        )
        torch.testing.assert_close(mine, exact, atol=2e-2, rtol=1e-2, msg=name)


def test_shares_of_what_is_shown():
    tiles = Tiles.tree(SIZE, patch=8, first=(2, 3), factors=(2,))
    tokens = soften(tiles, torch.randn(2, len(tiles)), 15)
    torch.testing.assert_close(shown(tokens, (16, 24)).sum(1), torch.ones(2, 16, 24))
    over = Tiles.lattice(SIZE, patch=8, sides=(96.0, 8.0))  # one tile, and small ones over it
    hard = soften(over, torch.linspace(1, 0, len(over))[None], 4, temperature=1e-6)
    share = shown(hard, (8, 12))[0]
    assert share[0, 0, 0] < 1e-3 and share[1, 0, 0] > 0.99 and share[0, 7, 11] > 0.99
    assert covered(hard, (8, 12)).min() > 0.99


def test_reconstruction_wants_detail_where_it_is():
    image = torch.full((1, 3, *SIZE), 0.5)
    image[..., 32:, 64:] = torch.rand(1, 3, 32, 32)
    texture = Texture.open(image).mipmapped()
    tiles = Tiles.tree(SIZE, patch=8, first=(2, 3), factors=(2, 2))
    scores = torch.zeros(1, len(tiles), requires_grad=True)

    def lost():
        return reconstruction(soften(tiles, scores, 12, temperature=0.3), texture, SIZE).sum()

    before, after = descend(lost, scores, steps=15)
    assert after < before
    assert scores[0, :6].argmax() == 5
    everything = soften(tiles, torch.zeros(1, len(tiles)), 96)
    assert reconstruction(everything, texture, SIZE).item() < 1e-3
    fine = reconstruction(everything, texture, SIZE, bands=(0.0, 0.0, 0.0, 0.0))
    assert fine.item() == 0


def test_illegibility_is_the_curve():
    tiles = Tiles.lattice(SIZE, patch=8, sides=(32.0,))
    everything = soften(tiles, torch.zeros(1, len(tiles)), len(tiles))  # samples of 4 pixels
    mass = torch.zeros(1, 8, 12)
    mass[0, 3, 5] = 1
    half = half_of_height(torch.full((1, 8, 12), 22.0))
    wanted = 1 - legibility(torch.tensor(4.0), 4.0)
    assert illegibility(everything, mass, half).item() == pytest.approx(wanted.item(), abs=1e-3)
    nested = Tiles.tree(SIZE, patch=8, first=(2, 3), factors=(2, 2))
    scores = torch.zeros(1, len(nested), requires_grad=True)
    small_print = half_of_height(torch.full((1, 8, 12), 8.0))
    before, after = descend(lambda: illegibility(soften(nested, scores, 12), mass, small_print).sum(), scores)
    assert after < before - 0.3


def test_budget_and_roughness():
    assert over_budget(torch.ones(2, 10), 12).tolist() == [0, 0]
    assert over_budget(torch.ones(1, 18), 12).item() == pytest.approx(0.25)
    assert roughness(torch.ones(1, 3, 4)).item() == 0
    assert roughness(torch.arange(3.0).expand(1, 2, 3)).item() == 1
    assert roughness(torch.zeros(2, 1, 1)).tolist() == [0, 0]


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
def test_surprise_is_the_likelihood_of_the_answer(family):
    adapter = vlm.adapt(*{**small.BUILDERS, **small.LLAVAS}[family]())
    texture = small.picture(128, 128)
    tiles = Tiles.tree((128, 128), patch=adapter.side, first=(2, 2), factors=(2,))
    scores = torch.randn(1, len(tiles), requires_grad=True)
    placeholder = "<|image_pad|>" if family == "llava" else ""
    question = f"{placeholder} what is the total ?"
    found = surprise(adapter, question, "3 7", texture, soften(tiles, scores, 7, temperature=0.5))
    found.backward()
    assert scores.grad.isfinite().all() and scores.grad.abs().max() > 0
    cold = soften(tiles, scores.detach(), 7, temperature=1e-6)
    with torch.no_grad():
        total = 0.0
        for place, word in enumerate(("3", "7")):  # one word after the other, by the ordinary path
            inputs = adapter.prepare(question + " 3" * place, texture, cold.harden(7))
            if place and family == "qwen3_vl":  # the chat template puts words behind a question
                break
            total -= adapter.model(**inputs).logits[0, -1].log_softmax(-1)[small.IDS[word]].item() / 2
        if family == "llava":
            assert surprise(adapter, question, "3 7", texture, cold).item() == pytest.approx(total, abs=1e-4)
        else:
            assert surprise(adapter, question, "3", texture, cold).item() == pytest.approx(2 * total, abs=1e-3)
    assert math.isfinite(found.item())
    with pytest.raises(ValueError, match="answer must have words"):
        surprise(adapter, question, "", texture, cold)
    adapter.restore()
