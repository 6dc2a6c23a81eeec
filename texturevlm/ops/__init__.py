"""Operations on tensors: each has a plain PyTorch reference that is its specification, and faster backends.

backend.py says which backend runs. Mip pyramids are made and refreshed by mip.py and read by lookup.py: levels in
memory, in the texture units (device_texture.py) or behind a page table (paged.py). Distance fields, superpixels and
square covers of marked cells serve the channels and the allocators.
"""

from texturevlm.ops.cover import Footprints, cover_limit, empty_footprints, layers_cuda, rows_of
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.distance import distance_field, distance_within_cuda
from texturevlm.ops.lookup import lookup, lookup_grad, sample_patches
from texturevlm.ops.lookup_kernel import refresh_patches_cuda
from texturevlm.ops.lookup_reference import MAX_ANISOTROPY
from texturevlm.ops.mip import (
    channel_reductions,
    channels_last,
    check_pyramid,
    level_extents,
    mipmap,
    share_of_pixels,
    update_region,
)
from texturevlm.ops.mip_kernel import MOVED, UNCHANGED, update_marked_cuda
from texturevlm.ops.packed import Marks, pack_marks
from texturevlm.ops.paged import BYTE, PagedLevels
from texturevlm.ops.pixels import bytes_of, planes_of
from texturevlm.ops.segment import boundaries, region_statistics, region_sums_cuda, seed_grid, superpixels
from texturevlm.ops.split_attention import KEYS_ALIGNED, MASKED, MOST_PARTS, key_parts

__all__ = [
    "BYTE",
    "KEYS_ALIGNED",
    "MASKED",
    "MAX_ANISOTROPY",
    "MOST_PARTS",
    "MOVED",
    "UNCHANGED",
    "DeviceTexture",
    "Footprints",
    "Marks",
    "PagedLevels",
    "boundaries",
    "bytes_of",
    "channel_reductions",
    "channels_last",
    "check_pyramid",
    "cover_limit",
    "distance_field",
    "distance_within_cuda",
    "empty_footprints",
    "key_parts",
    "layers_cuda",
    "level_extents",
    "lookup",
    "lookup_grad",
    "mipmap",
    "pack_marks",
    "planes_of",
    "refresh_patches_cuda",
    "region_statistics",
    "region_sums_cuda",
    "rows_of",
    "sample_patches",
    "seed_grid",
    "share_of_pixels",
    "superpixels",
    "update_marked_cuda",
    "update_region",
]
