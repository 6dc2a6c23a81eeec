"""Operations on tensors: each has a plain PyTorch reference that is its specification, and faster backends."""

from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup import lookup, lookup_grad, sample_patches
from texturevlm.ops.mip import channels_last, mipmap, update_region
from texturevlm.ops.pyramid import gaussian_pyramid, laplacian_pyramid, laplacian_reconstruct
from texturevlm.ops.quadtree import quadtree_order

__all__ = [
    "DeviceTexture",
    "channels_last",
    "gaussian_pyramid",
    "laplacian_pyramid",
    "laplacian_reconstruct",
    "lookup",
    "lookup_grad",
    "mipmap",
    "quadtree_order",
    "sample_patches",
    "update_region",
]
