"""Packed rows: geometry survives what happens to a tensor between a processor and a model."""

import pytest
import torch

from texturevlm.vlm.places import COLUMNS, PICTURE, Geometry, is_packed, mrope_positions, pack, unpack


def geometry(count, *, begins=None):
    pairs = [torch.rand(count, 2) * 300 - 0.5, torch.randint(1, 5000, (count, 2)).float()]
    pairs += [torch.rand(count, 2) * 90, torch.randint(1, 90, (count, 2)).float()]
    return Geometry(*pairs, torch.rand(count, 1) * 40, torch.zeros(count, 1) if begins is None else begins)


@pytest.mark.parametrize("dtype, exact", [(torch.float32, True), (torch.bfloat16, True), (torch.float16, False)])
def test_numbers_survive_a_cast(dtype, exact):
    given = geometry(50)
    rows = pack(torch.rand(50, 7), given, torch.ones(50, 1))
    assert rows.shape == (50, 7 + COLUMNS) and is_packed(rows, 7) and not is_packed(rows[:, :7], 7)
    _, back, weight = unpack(rows.to(dtype), 7)
    for name in vars(given):
        difference = float((getattr(back, name) - getattr(given, name)).abs().max())
        assert difference == 0 if exact else difference < 1e-5
    assert torch.equal(weight.float(), torch.ones(50, 1))


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_do_not_depend_on_padding(side):
    """Text, a picture on a grid of 3 × 5 with two tokens, text: on either side of the padding."""
    begins = torch.tensor([[PICTURE], [0.0]])
    token = torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    grid = torch.tensor([[3.0, 5.0]] * 2)
    tokens = {9: Geometry(token, grid, token, grid, torch.zeros(2, 1), begins)}
    ids, pad = [1, 9, 9, 2, 3], [0, 0]
    row = pad + ids if side == "left" else ids + pad
    mask = torch.tensor([[int(one != 0) for one in row]])
    found, delta = mrope_positions(torch.tensor([row]), mask, tokens)
    live = found[:, 0, mask[0].bool()]
    assert live.tolist() == [[0, 1, 1, 6, 7], [0, 1.5, 3, 6, 7], [0, 2, 5, 6, 7]]
    assert delta.tolist() == [[8 - 5]]


def test_too_few_placeholders_are_named():
    with pytest.raises(ValueError, match=r"one placeholder per visual token \(3\), got 1"):
        mrope_positions(torch.tensor([[1, 9]]), None, {9: geometry(3)})
