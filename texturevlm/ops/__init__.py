"""Operations on tensors: each has a plain PyTorch reference that is its specification, and faster backends."""

from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup import lookup, lookup_grad, sample_patches
from texturevlm.ops.mip import channels_last, mipmap, update_region

__all__ = [
    "DeviceTexture",
    "channels_last",
    "lookup",
    "lookup_grad",
    "mipmap",
    "sample_patches",
    "update_region",
]
