"""A pyramid inside the GPU's texture units: a layered mipmapped array, filled once, sampled many times.

Four channels share a layer, so that one fetch brings all four, filtered across texels and levels by hardware that
machine learning leaves idle. Channels that hold labels come last, in layers of their own, and are never filtered.
The filter weights have 8 fractional bits: values differ from exact trilinear by up to 0.007 on white noise.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_count, check_shapes
from texturevlm.cuda import THREADS, Layout, address, bind, checked, device_constant, launch, scalar_bits
from texturevlm.ops import backend as backends
from texturevlm.ops.lookup_reference import Where
from texturevlm.ops.mip import check_nearest, check_pyramid
from texturevlm.ops.packed import pack_pyramid, packed_boxes

DISABLE_TRILINEAR_OPTIMIZATION = 0x20  # without it the hardware rounds levels and is off by up to 0.13
NORMALIZED_COORDINATES = 0x02
LAYERS_PER_THREAD = {True: 5, False: 2}  # half, float: measured best on an H200
_FILL = Layout("texture.cu", "Fill")
_PACK_FETCH = Layout("texture.cu", "Fetch").in_order(
    "filtered", "unfiltered", "channel_of_slot", "centre", "ddx", "ddy", "lod", "values", "samples", "per_image",
    "patch", "channels", "layers", "first_unfiltered", "levels", "layers_per_thread", "across", "down",
    "max_anisotropy",
)  # fmt: skip


class DeviceTexture:
    """The levels of a pyramid as a hardware texture.

    levels:  finest first, each (B, C, H_l, W_l), on a CUDA GPU
    half:    keep texels in half precision (half the memory, twice the speed) rather than float; by default so, unless
             there are labels, which half precision cannot tell apart beyond 2048
    pack:    channels per layer: 1, 2 or 4
    nearest: channels that hold labels, fetched by nearest texel
    The memory is the GPU's own and goes back with the last reference to this object, so it must outlive every captured
    graph that samples it. It cannot be made while a graph is being captured.
    """

    def __init__(
        self, levels: Sequence[Tensor], *, half: bool | None = None, pack: int = 4, nearest: Sequence[int] = ()
    ) -> None:
        check_pyramid("DeviceTexture", levels)
        backends.require_kernels("DeviceTexture", levels[0])
        check_choice("DeviceTexture", "pack", str(check_count("DeviceTexture", "pack", pack, 1)), ("1", "2", "4"))
        half = not nearest if half is None else half
        if half and nearest:
            raise ValueError("DeviceTexture: half must not be given with labels in nearest: they would be rounded")
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("DeviceTexture: levels must be put into a texture before a graph is captured, not within")
        batch, channels, height, width = self.shape = tuple(levels[0].shape)
        check_nearest("DeviceTexture", nearest, channels)
        self.levels, self.half, self.pack = len(levels), half, pack
        self.device, self.dtype = levels[0].device, levels[0].dtype
        slots, filtered = _slots(channels, pack, nearest)
        self.layers = len(slots) // pack
        check_count("DeviceTexture", "height", height, 1, backends.MAX_TEXTURE_EXTENT)
        check_count("DeviceTexture", "width", width, 1, backends.MAX_TEXTURE_EXTENT)
        check_count("DeviceTexture", "layers of the batch", self.layers * batch, 1, backends.MAX_LAYERS)
        self._slots = device_constant(slots, torch.int16, self.device)
        with torch.cuda.device(self.device):
            handles = _create(self.shape, self.levels, self.layers * batch, half, pack)
        self._surfaces, self._textures = handles[1:]
        per_thread = LAYERS_PER_THREAD[half]
        self._geometry = (channels, self.layers, filtered // pack, self.levels, per_thread, 1 / width, 1 / height)
        self._release = weakref.finalize(self, _destroy, self.device.index or 0, *handles)
        self._release.atexit = False  # the process takes everything with it
        self.fill(levels)

    def __copy__(self) -> DeviceTexture:
        return self

    def __deepcopy__(self, memo: Any) -> DeviceTexture:
        return self

    def __reduce__(self) -> str:
        raise TypeError("DeviceTexture: lives in a GPU's memory and cannot be pickled; pickle the levels")

    def fill(self, levels: Sequence[Tensor], boxes: Tensor | None = None) -> None:
        """Write new contents of the same shape, in place: captured graphs that sample it go on working.

        boxes: (B, N, 4) whole numbers, as for `update_region`: only what they touch is written; None: everything
        """
        check_pyramid("DeviceTexture.fill", levels)
        if levels[0].shape != self.shape or len(levels) != self.levels or levels[0].device != self.device:
            raise ValueError(
                f"DeviceTexture.fill: levels must be {self.levels} levels of {self.shape} on {self.device}, "
                f"got {len(levels)} of {tuple(levels[0].shape)} on {levels[0].device}"
            )
        if boxes is not None:
            check_shapes("DeviceTexture.fill", levels=(levels[0], "B C H W"), boxes=(boxes, "B N 4"))
            if boxes.is_floating_point() or boxes.dtype == torch.bool:
                raise TypeError(f"DeviceTexture.fill: boxes must hold whole numbers, got {boxes.dtype}")
            if boxes.numel() == 0:
                return
            boxes = packed_boxes(boxes)
        blocks = [-(-level.shape[2] // 8) * -(-level.shape[3] // 32) for level in levels]
        parameters = _FILL.pack(
            pyramid=pack_pyramid(levels, ()),
            surface=self._surfaces,
            channel_of_slot=self._slots,
            first_block=list(accumulate(blocks[:-1], initial=0)),
            layers=self.layers,
            half_texels=int(self.half),
            boxes=boxes,
            count=0 if boxes is None else boxes.shape[1],
        )
        grid = (sum(blocks), self.layers * self.shape[0])
        scalar = scalar_bits(levels[0].dtype)
        launch("texture.cu", "fill", self.device, grid, parameters, SCALAR=scalar, PACK=self.pack)

    def fetch(self, where: Where, patch: int | None, max_anisotropy: int) -> Tensor:
        """Sample points (patch None) or footprints. What the operations call."""
        points, lod, ddx, ddy = (None if tensor is None else tensor.float().contiguous() for tensor in where)
        batch, count = where.points.shape[:2]
        side = patch or 1
        shape = (batch, count, self.shape[1]) if patch is None else (batch, count, self.shape[1], side, side)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        if values.numel() == 0:
            return values
        samples = check_count("DeviceTexture.fetch", "number of samples", batch * count * side * side, 1, (1 << 31) - 1)
        tensors = [address(tensor) for tensor in (self._slots, points, ddx, ddy, lod, values)]
        parameters = _PACK_FETCH(*self._textures, *tensors, samples, count, side, *self._geometry, max_anisotropy)
        grid = (-(-samples // THREADS), -(-self.layers // LAYERS_PER_THREAD[self.half]))
        scalar = scalar_bits(self.dtype)
        launch("texture.cu", "fetch", self.device, grid, parameters, SCALAR=scalar, PACK=self.pack)
        return values


def _slots(channels: int, pack: int, nearest: Sequence[int]) -> tuple[list[int], int]:
    """Which channel each slot of each layer holds (-1: padding), and how many slots are filtered."""
    labels = sorted(set(nearest))
    amounts = [channel for channel in range(channels) if channel not in labels]
    filtered, unfiltered = (group + [-1] * (-len(group) % pack) for group in (amounts, labels))
    return filtered + unfiltered, len(filtered)


def _create(shape: Sequence[int], levels: int, layers: int, half: bool, pack: int) -> tuple[int, list[int], list[int]]:
    """A mipmapped array, a surface object per level to write it, and two texture objects to read it."""
    from cuda.bindings import driver

    description = driver.CUDA_ARRAY3D_DESCRIPTOR()
    description.Height, description.Width, description.Depth = *shape[2:], layers
    formats = driver.CUarray_format
    description.Format = formats.CU_AD_FORMAT_HALF if half else formats.CU_AD_FORMAT_FLOAT
    description.NumChannels = pack
    description.Flags = driver.CUDA_ARRAY3D_LAYERED | driver.CUDA_ARRAY3D_SURFACE_LDST
    device = torch.cuda.current_device()
    bind(device)
    doing = f"making a {shape[3]}×{shape[2]} texture of {layers} layers"
    try:
        array = checked(driver.cuMipmappedArrayCreate(description, levels), doing)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()  # PyTorch may be holding what we need
        array = checked(driver.cuMipmappedArrayCreate(description, levels), doing)
    surfaces: list[int] = []
    textures: list[int] = []
    try:
        for level in range(levels):
            surfaces.append(_surface_object(array, level))
        for mode in (driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR, driver.CUfilter_mode.CU_TR_FILTER_MODE_POINT):
            textures.append(_texture_object(array, levels, mode))
    except Exception:
        _destroy(device, int(array), surfaces, textures)
        raise
    return int(array), surfaces, textures


def _surface_object(array: Any, level: int) -> int:
    from cuda.bindings import driver

    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = checked(driver.cuMipmappedArrayGetLevel(array, level), "reaching a texture's level")
    return int(checked(driver.cuSurfObjectCreate(resource), "making a surface object"))


def _texture_object(array: Any, levels: int, mode: Any) -> int:
    from cuda.bindings import driver

    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    resource.res.mipmap.hMipmappedArray = array
    view = driver.CUDA_TEXTURE_DESC()
    view.addressMode = [driver.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * 3
    view.filterMode = view.mipmapFilterMode = mode
    view.flags = NORMALIZED_COORDINATES | DISABLE_TRILINEAR_OPTIMIZATION
    view.maxAnisotropy = 1
    view.minMipmapLevelClamp, view.maxMipmapLevelClamp = 0.0, float(levels - 1)
    return int(checked(driver.cuTexObjectCreate(resource, view, None), "making a texture object"))


def _destroy(device: int, array: int, surfaces: Sequence[int], textures: Sequence[int]) -> None:
    from cuda.bindings import driver

    with torch.cuda.device(device):
        bind(device)
        for texture in textures:
            driver.cuTexObjectDestroy(texture)
        for surface in surfaces:
            driver.cuSurfObjectDestroy(surface)
        driver.cuMipmappedArrayDestroy(driver.CUmipmappedArray(array))
