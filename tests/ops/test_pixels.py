"""Bytes become the values that `Texture.open` gives, and values the nearest bytes; kernels do it bit for bit."""

import pytest
import torch

import texturevlm as tv
from tests.conftest import poison
from texturevlm.ops.pixels import _aligned, bytes_of, planes_of

SIZES = [(1, 1), (1, 5), (7, 3), (8, 8), (5, 4), (37, 53), (33, 64)]


def pixels_of(batch, size, device="cpu"):
    return torch.randint(0, 256, (batch, *size, 3), dtype=torch.uint8, device=device)


def values_of(count, device="cpu"):
    """Everything between two bytes, ties among them, and what lies outside."""
    ties = (torch.arange(256) + 0.5) / 255
    edges = torch.tensor([-0.2, -0.0, 1.0, 1.0000001, 1.7])
    return torch.cat([torch.rand(count), ties, edges])[-count:].to(device)


def check(device):
    for size in SIZES:
        pixels = pixels_of(3, size, device)
        assert torch.equal(planes_of(pixels, backend="cuda"), planes_of(pixels, backend="reference"))
    for count in (1, 3, 4, 5, 261, 4099):
        values = values_of(count, device)
        assert torch.equal(bytes_of(values, backend="cuda"), bytes_of(values, backend="reference"))
    values, flat = values_of(261, device)[1:], pixels_of(1, (16, 17), device).flatten()
    pixels = flat[1 : 1 + 8 * 8 * 3].view(1, 8, 8, 3)  # neither begins at a multiple of four
    assert torch.equal(bytes_of(values, backend="cuda"), bytes_of(values, backend="reference"))
    assert torch.equal(planes_of(pixels, backend="cuda"), planes_of(pixels, backend="reference"))
    for part in (values, pixels):
        assert _aligned(part).data_ptr() % (4 * part.element_size()) == 0 != part.data_ptr() % (4 * part.element_size())


def test_bytes_are_scaled_as_an_opened_image_is():
    pixels = pixels_of(1, (9, 7))
    opened = tv.Texture.open(pixels[0].numpy()).levels[0]
    assert torch.equal(planes_of(pixels), opened)


def test_every_byte_comes_back():
    every = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(bytes_of(planes_of(every)).permute(0, 2, 3, 1), every)
    assert bytes_of(torch.tensor([-1.0, 2.0, 0.5 / 255, 1.5 / 255])).tolist() == [0, 255, 0, 2]


def test_the_kernels_do_the_same(emulated):
    check("cpu")
    strided = pixels_of(2, (6, 9)).transpose(1, 2)
    assert torch.equal(planes_of(strided, backend="cuda"), planes_of(strided, backend="reference"))


def test_what_is_not_bytes_is_refused():
    with pytest.raises(TypeError, match=r"planes_of: pixels must be uint8, got torch\.float32"):
        planes_of(torch.rand(1, 4, 4, 3))
    with pytest.raises(ValueError, match="planes_of: pixels must be"):
        planes_of(torch.zeros(1, 4, 4, 4, dtype=torch.uint8))


@pytest.mark.gpu
def test_on_a_gpu():
    poison()
    check("cuda")
