import pytest
import torch

from tests.video.moving import scene, with_box
from texturevlm.channels.structure import luma
from texturevlm.video.carry import MAX_TRUSTED, find_flow, warp

SIZE = (96, 128)


def shifted(dx, dy):
    """The scene, and the scene moved so that the new one at x looks like the old one at x + (dx, dy)."""
    old = luma(scene(SIZE, stripes=False))  # what repeats itself has no one movement
    vector = torch.tensor([dx, dy]).view(1, 2, 1, 1).expand(1, 2, *SIZE)
    return old, warp(old, vector), vector


@pytest.mark.parametrize("by", [(0.0, 0.0), (1.5, -0.7), (4.0, 3.0), (-9.0, 5.0)])
def test_a_shift_is_found(by):
    old, new, vector = shifted(*by)
    flow = find_flow(old, new)
    inner = (slice(None), slice(None), slice(16, -16), slice(16, -16))
    error = (flow.vector - vector)[inner].norm(dim=1)
    assert error.median() < 0.15 and (error < 1).float().mean() > 0.9
    assert flow.trusted[:, 16:-16, 16:-16].float().mean() > 0.9


def test_what_is_carried_lands_where_the_thing_went():
    ground = scene(SIZE)
    old, new = (luma(with_box(ground, x, 30, side=32)) for x in (40, 46))
    mark = torch.zeros(1, 1, *SIZE)
    mark[..., 30:62, 40:72] = 1
    carried = warp(mark, find_flow(old, new).vector)[0, 0]
    assert carried[34:58, 50:74].mean() > 0.9 and carried[34:58, 36:44].mean() < 0.3


def test_what_appears_is_not_trusted():
    ground = scene(SIZE)
    old, new = luma(ground), luma(with_box(ground, 40, 30, side=40, seed=5))
    flow = find_flow(old, new)
    assert flow.trusted[0, 35:65, 45:75].float().mean() < 0.6
    assert flow.trusted[0, :, 100:].float().mean() > 0.95


def test_without_flow_nothing_moves_and_what_differs_is_not_trusted():
    old, new, _ = shifted(6.0, 0.0)
    flow = find_flow(old, new, method="none")
    assert flow.vector.abs().max() == 0 and flow.trusted.float().mean() < 0.8
    assert find_flow(old, old, method="none").trusted.all()


def test_large_movement_is_not_trusted():
    old, new, _ = shifted(MAX_TRUSTED + 8.0, 0.0)
    flow = find_flow(old, new)
    assert not flow.trusted[flow.vector.norm(dim=1) > MAX_TRUSTED].any()


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (5, 3), (17, 33)])
@pytest.mark.parametrize("method", ["lucas_kanade", "none"])
def test_any_size_and_flat_ground(size, method):
    flat = torch.full((1, 1, *size), 0.5)
    flow = find_flow(flat, flat, method=method)
    assert flow.vector.shape == (1, 2, *size) and flow.vector.abs().max() == 0 and flow.trusted.all()
