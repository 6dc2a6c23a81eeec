"""A pyramid inside the GPU's texture units: a layered mipmapped array, filled once, sampled many times.

Four channels share a layer, so that one fetch brings all four, filtered across texels and levels by hardware that
machine learning leaves idle. Channels that hold labels come last, in layers of their own, and are never filtered.
The filter weights have 8 fractional bits: values differ from exact trilinear by up to 0.007 on white noise.
"""

import struct
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_count
from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.launch import (
    MAX_LEVELS,
    THREADS,
    address,
    bind,
    check,
    launch,
    pack_pyramid,
    padded,
    scalar_bits,
)
from texturevlm.ops import backend as backends
from texturevlm.ops.mip import check_pyramid
from texturevlm.ops.sampling import check_nearest

DISABLE_TRILINEAR_OPTIMIZATION = 0x20  # without it the hardware rounds levels and is off by up to 0.13
NORMALIZED_COORDINATES = 0x02
_FILL = struct.Struct(f"={MAX_LEVELS}QQ{MAX_LEVELS}i2i")
_FETCH = struct.Struct("=8QI7i3f4x")
LAYERS_PER_THREAD = {True: 5, False: 2}  # half, float: measured best on an H200


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
        batch, channels, height, width = levels[0].shape
        check_nearest("DeviceTexture", nearest, channels)
        self.shape = (batch, channels, height, width)
        self.levels, self.half, self.pack = len(levels), half, pack
        self.device, self.dtype = levels[0].device, levels[0].dtype
        slots, filtered = _slots(channels, pack, nearest)
        self.layers, self._first_unfiltered = len(slots) // pack, filtered // pack
        check_count("DeviceTexture", "height", height, 1, backends.MAX_TEXTURE_EXTENT)
        check_count("DeviceTexture", "width", width, 1, backends.MAX_TEXTURE_EXTENT)
        check_count("DeviceTexture", "layers of the batch", self.layers * batch, 1, backends.MAX_LAYERS)
        self._slots = device_constant(slots, torch.int16, self.device)
        with torch.cuda.device(self.device):
            handles = _create(self.shape, self.levels, self.layers * batch, half, pack)
        self._surfaces, self._filtered, self._unfiltered = handles[1], *handles[2]
        self._release = weakref.finalize(self, _destroy, self.device.index or 0, *handles)
        self._release.atexit = False  # the process takes everything with it
        self.fill(levels)

    def __copy__(self) -> "DeviceTexture":
        return self

    def __deepcopy__(self, memo: Any) -> "DeviceTexture":
        return self

    def __reduce__(self) -> str:
        raise TypeError("DeviceTexture: lives in a GPU's memory and cannot be pickled; pickle the levels")

    def fill(self, levels: Sequence[Tensor]) -> None:
        """Write new contents of the same shape, in place: captured graphs that sample it go on working."""
        check_pyramid("DeviceTexture.fill", levels)
        if levels[0].shape != self.shape or len(levels) != self.levels or levels[0].device != self.device:
            raise ValueError(
                f"DeviceTexture.fill: levels must be {self.levels} levels of {self.shape} on {self.device}, "
                f"got {len(levels)} of {tuple(levels[0].shape)} on {levels[0].device}"
            )
        starts, blocks = [], 0
        for level in levels:
            starts.append(blocks)
            blocks += -(-level.shape[2] // 8) * -(-level.shape[3] // 32)
        parameters = pack_pyramid(levels, ()) + _FILL.pack(
            *padded(self._surfaces), address(self._slots), *padded(starts), self.layers, int(self.half)
        )
        scalar = scalar_bits(levels[0].dtype)
        grid = (blocks, self.layers * self.shape[0])
        launch("texture.cu", "fill", self.device, grid, parameters, SCALAR=scalar, PACK=self.pack)

    def fetch(
        self,
        points: Tensor,
        lod: Tensor | None,
        ddx: Tensor | None,
        ddy: Tensor | None,
        patch: int | None,
        max_anisotropy: int,
    ) -> Tensor:
        """Sample points (patch None) or footprints. What the operations call."""
        points = points.float().contiguous()
        lod, ddx, ddy = (None if tensor is None else tensor.float().contiguous() for tensor in (lod, ddx, ddy))
        batch, count = points.shape[:2]
        _, channels, height, width = self.shape
        side = patch or 1
        shape = (batch, count, channels) if patch is None else (batch, count, channels, side, side)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        if values.numel() == 0:
            return values
        samples = check_count("DeviceTexture.fetch", "number of samples", batch * count * side * side, 1, (1 << 31) - 1)
        parameters = _FETCH.pack(
            self._filtered,
            self._unfiltered,
            *(address(tensor) for tensor in (self._slots, points, ddx, ddy, lod, values)),
            samples,
            count,
            side,
            channels,
            self.layers,
            self._first_unfiltered,
            self.levels,
            LAYERS_PER_THREAD[self.half],
            1 / width,
            1 / height,
            max_anisotropy,
        )
        grid = (-(-samples // THREADS), -(-self.layers // LAYERS_PER_THREAD[self.half]))
        scalar = scalar_bits(self.dtype)
        launch("texture.cu", "fetch", self.device, grid, parameters, SCALAR=scalar, PACK=self.pack)
        return values


def fetch_from(
    function: str,
    texture: Any,
    points: Tensor,
    *,
    lod: Tensor | None = None,
    ddx: Tensor | None = None,
    ddy: Tensor | None = None,
    patch: int | None = None,
    max_anisotropy: int = 1,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """What `lookup`, `lookup_grad` and `sample_patches` do with a texture that is filled already."""
    if not isinstance(texture, DeviceTexture):
        raise TypeError(
            f"{function}: levels must be a sequence of (B, C, H, W) tensors, finest first, or a DeviceTexture, "
            f"got {texture!r:.60}"
        )
    check_choice(function, "backend", backend, ("auto", "texture"))
    if nearest:
        raise ValueError(f"{function}: nearest must be given to the DeviceTexture when it is made, not here")
    if points.device != texture.device or points.shape[0] != texture.shape[0]:
        raise ValueError(
            f"{function}: points must be ({texture.shape[0]}, N, 2) on {texture.device} like the texture, "
            f"got {tuple(points.shape)} on {points.device}"
        )
    where = (points, lod, ddx, ddy)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in where):
        raise ValueError(f"{function}: gradients need the levels; pass them instead of the DeviceTexture")
    return texture.fetch(points, lod, ddx, ddy, patch, max_anisotropy)


def _slots(channels: int, pack: int, nearest: Sequence[int]) -> tuple[list[int], int]:
    """Which channel each slot of each layer holds (-1: padding), and how many slots are filtered."""
    labels = sorted(set(nearest))
    amounts = [channel for channel in range(channels) if channel not in set(labels)]
    slots: list[int] = []
    for group in (amounts, labels):
        slots += group + [-1] * (-len(group) % pack)
        if group is amounts:
            filtered = len(slots)
    return slots, filtered


def _create(shape: Sequence[int], levels: int, layers: int, half: bool, pack: int) -> tuple[int, list[int], list[int]]:
    """A mipmapped array, a surface object per level to write it, and two texture objects to read it."""
    from cuda.bindings import driver

    _, _, height, width = shape
    description = driver.CUDA_ARRAY3D_DESCRIPTOR()
    description.Width, description.Height, description.Depth = width, height, layers
    formats = driver.CUarray_format
    description.Format = formats.CU_AD_FORMAT_HALF if half else formats.CU_AD_FORMAT_FLOAT
    description.NumChannels = pack
    description.Flags = driver.CUDA_ARRAY3D_LAYERED | driver.CUDA_ARRAY3D_SURFACE_LDST
    bind(torch.cuda.current_device())
    status, array = driver.cuMipmappedArrayCreate(description, levels)
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        torch.cuda.empty_cache()  # PyTorch may be holding what we need
        status, array = driver.cuMipmappedArrayCreate(description, levels)
    check(status, f"making a {width}×{height} texture of {layers} layers")
    surfaces: list[int] = []
    textures: list[int] = []
    try:
        for level in range(levels):
            surfaces.append(_surface_object(array, level))
        for filtered in (True, False):
            textures.append(_texture_object(array, levels, filtered))
    except Exception:
        _destroy(torch.cuda.current_device(), int(array), surfaces, textures)
        raise
    return int(array), surfaces, textures


def _surface_object(array: Any, level: int) -> int:
    from cuda.bindings import driver

    status, plane = driver.cuMipmappedArrayGetLevel(array, level)
    check(status, "reaching a texture's level")
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
    resource.res.array.hArray = plane
    status, surface = driver.cuSurfObjectCreate(resource)
    check(status, "making a surface object")
    return int(surface)


def _texture_object(array: Any, levels: int, filtered: bool) -> int:
    from cuda.bindings import driver

    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    resource.res.mipmap.hMipmappedArray = array
    modes = driver.CUfilter_mode
    mode = modes.CU_TR_FILTER_MODE_LINEAR if filtered else modes.CU_TR_FILTER_MODE_POINT
    view = driver.CUDA_TEXTURE_DESC()
    view.addressMode = [driver.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP] * 3
    view.filterMode = view.mipmapFilterMode = mode
    view.flags = NORMALIZED_COORDINATES | DISABLE_TRILINEAR_OPTIMIZATION
    view.maxAnisotropy = 1
    view.minMipmapLevelClamp, view.maxMipmapLevelClamp = 0.0, float(levels - 1)
    status, texture = driver.cuTexObjectCreate(resource, view, None)
    check(status, "making a texture object")
    return int(texture)


def _destroy(device: int, array: int, surfaces: Sequence[int], textures: Sequence[int]) -> None:
    from cuda.bindings import driver

    with torch.cuda.device(device):
        bind(device)
        for texture in textures:
            driver.cuTexObjectDestroy(texture)
        for surface in surfaces:
            driver.cuSurfObjectDestroy(surface)
        driver.cuMipmappedArrayDestroy(driver.CUmipmappedArray(array))
