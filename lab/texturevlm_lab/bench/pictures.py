"""The input of benchmarks: images made here."""

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.ops.pixels import bytes_of

SIDE = 1024  # of a square image


def smooth_noise(size: tuple[int, int], device: str = "cpu") -> Tensor:
    """Noise of many scales, as natural images have: (1, 3, H, W), 0 to 1."""
    image = torch.zeros(1, 3, *size, device=device)
    for cells in (4, 16, 64, 256):
        image += functional.interpolate(torch.rand(1, 3, cells, cells, device=device), size, mode="bilinear") / 4
    return image


def photograph(batch: int, height: int, width: int) -> Tensor:
    """Smooth blobs, and lines of strokes on a light ground in the upper half: (B, 3, H, W)."""
    image = functional.interpolate(torch.rand(batch, 3, 24, 24), (height, width), mode="bilinear")
    image[..., : height // 2, :] = 0.95
    letters = (torch.rand(batch, 1, height // 2, width // 4) > 0.5).float().repeat_interleave(4, -1)
    lines = (torch.arange(height // 2) % 20 < 12).float()[:, None]
    marked = (letters * lines * (torch.arange(letters.shape[-1]) % 400 < 330)) > 0
    image[..., : height // 2, : letters.shape[-1]] *= 1 - 0.9 * marked
    return image


def page(batch: int, height: int, width: int) -> Tensor:
    """Lines of words of strokes on white, in paragraphs, with a margin: (B, 3, H, W)."""
    strokes = (torch.rand(batch, 1, height, -(-width // 3)) > 0.4).float().repeat_interleave(3, -1)[..., :width]
    words = (torch.rand(batch, 1, height // 28 + 1, width // 30 + 1) > 0.2).float()
    words = words.repeat_interleave(28, -2)[..., :height, :].repeat_interleave(30, -1)[..., :width]
    rows, columns = torch.arange(height), torch.arange(width)
    lines = (rows % 28 < 12) & (rows % 280 < 224) & (rows > height // 12)
    inside = lines[:, None] & (columns > width // 12) & (columns < width - width // 12)
    return (1 - 0.9 * strokes * words * inside).expand(-1, 3, -1, -1).contiguous()


def as_bytes(images: Tensor) -> Tensor:
    """(B, 3, H, W), 0 to 1 → (B, H, W, 3) uint8."""
    return bytes_of(images).permute(0, 2, 3, 1).contiguous()
