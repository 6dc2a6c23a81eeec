"""Bytes of images ↔ floating-point values, in one pass over memory: a corpus spends a tenth of its time there."""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.check import check_shapes
from texturevlm.cuda import THREADS, Layout, launch
from texturevlm.ops import backend as backends

_UNPACK, _PACK = Layout("pixels.cu", "Unpack"), Layout("pixels.cu", "Pack")
AT_ONCE = 4  # values per thread


def planes_of(pixels: Tensor, *, backend: str = "auto") -> Tensor:
    """Bytes (B, H, W, 3) → (B, 3, H, W) float32, 0 to 1, bit for bit as `Texture.open` scales them."""
    check_shapes("planes_of", pixels=(pixels, "B H W 3"))
    if pixels.dtype != torch.uint8:
        raise TypeError(f"planes_of: pixels must be uint8, got {pixels.dtype}")
    batch, height, width, colours = pixels.shape
    planes = torch.empty((batch, colours, height, width), device=pixels.device)
    if backends.choose("planes_of", planes, backend) == "reference":
        most = torch.full((), 255.0, device=pixels.device)  # a number would become a factor, which rounds otherwise
        return torch.div(pixels.permute(0, 3, 1, 2), most, out=planes)
    parameters = _UNPACK.pack(bytes=_aligned(pixels), planes=planes, area=height * width)
    blocks = (-(-height * width // (AT_ONCE * THREADS)), batch)
    launch("pixels.cu", "pixels_unpack", pixels.device, blocks, parameters)
    return planes


def bytes_of(values: Tensor, *, backend: str = "auto") -> Tensor:
    """Values, 0 to 1, of any shape → the nearest bytes, of the same shape; what lies outside is clamped."""
    if backends.choose("bytes_of", values, backend) == "reference":
        return values.float().mul(255).round_().clamp_(0, 255).byte()
    values = _aligned(values.float())
    found = torch.empty_like(values, dtype=torch.uint8)
    parameters = _PACK.pack(values=values, bytes=found, count=values.numel())
    launch("pixels.cu", "pixels_pack", values.device, -(-values.numel() // (AT_ONCE * THREADS)), parameters)
    return found


def _aligned(tensor: Tensor) -> Tensor:
    """Contiguous, and beginning where four values can be read at once: a part of another tensor may not."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % (AT_ONCE * tensor.element_size()) == 0 else tensor.clone()
