"""Mosaics: each quarter shows its own photograph, boxes go where the pixels go, spots belong to one quarter or none."""

import pytest
import torch

from tests.conftest import worst
from texturevlm.train.mosaic import LAST, Draw, drawn, moved, pictures, quarters

SIDE = 48


def plain(photographs, split, window=None):
    """A draw that changes no colours."""
    count = len(photographs)
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(count, 4, 4)
    window = whole if window is None else window
    split = torch.tensor(split).expand(count, 2)
    return Draw(photographs, split, window, torch.ones(count, 3), torch.zeros(count, 3), torch.zeros(count))


def levels(*values):
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, SIDE, SIDE)


def test_a_whole_photograph_is_itself():
    torch.manual_seed(0)
    pixels = torch.randint(256, (5, 3, SIDE, SIDE), dtype=torch.uint8)
    made = pictures(pixels, plain(torch.tensor([[0, 1, 2, 4]]), (0.0, 0.0)))
    assert worst(made[0], pixels[4].float() / 255) < 1e-5


def test_quarters_show_their_own_photographs_up_to_the_edge():
    made = pictures(levels(10, 60, 120, 250), plain(torch.tensor([[3, 1, 0, 2]]), (0.25, 0.5)))[0, 0] * 255
    assert worst(made[: SIDE // 2, : SIDE // 4], torch.tensor(250.0).expand(SIDE // 2, SIDE // 4)) < 1e-3
    assert set(made.round().int().flatten().tolist()) == {10, 60, 120, 250}
    assert made[0, -1].round() == 60 and made[-1, 0].round() == 10 and made[-1, -1].round() == 120


def test_spots_belong_to_one_quarter_or_none():
    inside = quarters(torch.tensor([[0.5, 0.45], [0.0, 0.0]]), 6).view(2, 4, 6, 6)
    assert inside[0].sum((1, 2)).tolist() == [6, 6, 9, 9]  # the row that the split cuts is in none
    assert inside[0, 1, 0].tolist() == [0, 0, 0, 1, 1, 1] and inside[0].sum(0).max() == 1
    assert inside[1].sum((1, 2)).tolist() == [0, 0, 0, 36]


@pytest.mark.parametrize("seed", range(4))
def test_boxes_go_where_the_pixels_go(seed):
    pixels = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)
    pixels[1, :, 12:30, 6:36] = 255
    draw = drawn(torch.tensor([[0, 0, 0, 1]]), seed % 2, torch.Generator().manual_seed(seed))
    draw = plain(draw.photographs, tuple(draw.split[0].tolist()), draw.window)
    made = pictures(pixels, draw)[0, 0]
    x0, y0, x1, y1 = (moved(torch.tensor([[[6, 12, 36, 30]]]) / SIDE, draw)[0, 0] * SIDE).tolist()
    y, x = (made > 0.5).nonzero().T
    found = [x.min(), y.min(), x.max() + 1, y.max() + 1]
    assert all(abs(float(edge) - wanted) <= 1.5 for edge, wanted in zip(found, (x0, y0, x1, y1)))


def test_draws_are_known_from_their_generator_and_stay_inside():
    numbers = torch.arange(400).view(100, 4)
    one, same, other = (drawn(numbers, 0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same)) and not torch.equal(one.window, other.window)
    assert one.window.min() >= 0 and one.window.max() <= 1
    extent = (one.window[..., 2:] - one.window[..., :2]).abs()
    assert extent.min() > 0.4 and (one.window[..., 3] > one.window[..., 1]).all()
    mirrored = (one.window[..., 0] > one.window[..., 2]).float().mean()
    assert 0.4 < mirrored < 0.6 and 0.35 < (one.split[:, 0] > 0).float().mean() < 0.65
    made = pictures(torch.randint(256, (400, 3, SIDE, SIDE), dtype=torch.uint8), one)
    assert made.min() >= 0 and made.max() <= 1 and LAST == 3
