"""Launch a kernel on PyTorch's current stream. It is compiled and loaded once per process.

Every kernel takes one struct by value, which the caller packs (struct.py).

Programmatic dependent launch: on GPUs of compute capability 9.0 and later, a kernel launched with `early=True` may
start before the previous kernel on the stream has ended. Three rules make that safe.

Rule 1. A kernel that is launched early calls `wait_for_previous()` in at least one thread, even if it needs nothing
        from the previous kernel: later kernels rely on everything before them being done.
Rule 2. Before `wait_for_previous()`, read only what no earlier kernel on this stream writes, and write only what no
        earlier kernel reads or writes. Exception: see rule 3.
Rule 3. `let_next_start()` allows the next kernel to start early. After the kernel's own `wait_for_previous()` it also
        says that all kernels before this one are done: rule 2 then holds for this kernel only, not for those before.

Without `early=True` both calls have no effect. The emulator (tests/emulator) enforces rule 1.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from texturevlm.cuda.compiler import SCALARS, compile_source
from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.struct import address, constants

__all__ = ["MAX_LEVELS", "THREADS", "address", "bind", "check", "launch", "pack_pyramid", "padded", "scalar_bits"]

(MAX_LEVELS,) = constants("scalar.cuh", "MAX_LEVELS")
THREADS = 256

_kernels: dict[tuple[Any, ...], Any] = {}
_loading = threading.Lock()
_bound = threading.local()
_libraries: list[Any] = []


def scalar_bits(dtype: torch.dtype) -> int:
    """The SCALAR that a source is compiled with for tensors of this dtype."""
    return SCALARS[str(dtype).removeprefix("torch.")]


@lru_cache(maxsize=None)
def _launch_kernel() -> Any:
    """cuLaunchKernelEx through ctypes: four times cheaper than through cuda-bindings, and every operation calls it."""
    function = ctypes.CDLL("libcuda.so.1" if os.name != "nt" else "nvcuda.dll").cuLaunchKernelEx
    function.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    return function


# CUlaunchConfig: grid, block, shared memory, stream, pointer to attributes, number of attributes.
_CONFIG = struct.Struct("=7I4xQQI4x")
# One CUlaunchAttribute: name, padding, a value of 64 bytes, here an int.
_early = ctypes.create_string_buffer(struct.pack("=i4xi60x", 6, 1))  # programmatic stream serialization, allowed
_EARLY_START = ctypes.addressof(_early)


def launch(
    source: str,
    name: str,
    device: torch.device,
    blocks: int | tuple[int, int],
    parameters: bytes,
    *,
    early: bool = False,
    threads: int = THREADS,
    SCALAR: int = 32,
    **define: int,
) -> None:
    """Start a kernel on the current stream of `device`.

    source, name: the file and the kernel in it
    blocks:       the grid, (x, y) or x
    parameters:   the bytes of the kernel's struct
    early:        the kernel may start while the previous one still runs; see the three rules above
    threads:      per block
    SCALAR:       the element type (`scalar_bits`); `define` are more -D definitions for the compiler
    """
    index = device.index
    if torch.cuda.current_device() != index:
        with torch.cuda.device(index):
            return launch(
                source, name, device, blocks, parameters, early=early, threads=threads, SCALAR=SCALAR, **define
            )
    bind(index)
    key = (source, name, index, SCALAR, *define.values())
    kernel = _kernels.get(key) or _load(key, {"SCALAR": SCALAR, **define})
    width, height = blocks if isinstance(blocks, tuple) else (blocks, 1)
    pointer = ctypes.c_char_p(parameters)  # the driver copies the bytes before the call returns
    stream = torch._C._cuda_getCurrentRawStream(index)  # as Triton does; a Stream object would cost 5 µs
    attribute = _EARLY_START if early and _can_start_early(index) else 0
    config = _CONFIG.pack(width, height, 1, threads, 1, 1, 0, stream, attribute, int(attribute != 0))
    status = _launch_kernel()(config, kernel, ctypes.addressof(pointer), None)
    if status:
        from cuda.bindings import driver

        check(driver.CUresult(status), f"launching {name}")


@lru_cache(maxsize=None)
def _can_start_early(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)


def check(status: Any, doing: str) -> None:
    """Raise if a driver call failed; `doing` completes "CUDA error while …"."""
    if int(status) == 0:
        return
    from cuda.bindings import driver

    _, text = driver.cuGetErrorString(status)
    message = f"CUDA error while {doing}: {text.decode() if text else int(status)}"
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise torch.cuda.OutOfMemoryError(message)
    raise RuntimeError(message)


def bind(index: int) -> None:
    """Make PyTorch's context current in this thread. A thread that has not used CUDA yet has none."""
    if getattr(_bound, "device", None) == index:
        return
    from cuda.bindings import driver

    status, context = driver.cuDevicePrimaryCtxRetain(index)
    check(status, "retaining the primary context")
    check(driver.cuCtxSetCurrent(context)[0], "binding the context")
    _bound.device = index


def _load(key: tuple[Any, ...], define: dict[str, int]) -> Any:
    from cuda.bindings import driver

    source, name, index = key[:3]
    with _loading:
        if key in _kernels:
            return _kernels[key]
        major, minor = torch.cuda.get_device_capability(index)
        cubin = compile_source(source, f"sm_{major}{minor}", define)
        status, library = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
        check(status, f"loading {source}")
        status, kernel = driver.cuLibraryGetKernel(library, name.encode())
        check(status, f"finding {name} in {source}")
        _libraries.append(library)
        _kernels[key] = int(kernel)
        return _kernels[key]


def padded(values: Sequence[int]) -> list[int]:
    """As many values as the kernels' arrays over levels have, the rest zero."""
    return [*values, *[0] * (MAX_LEVELS - len(values))]


_POINTERS = [struct.Struct(f"={count}Q{8 * (MAX_LEVELS - count)}x") for count in range(MAX_LEVELS + 1)]
_GEOMETRY = struct.Struct(f"={2 * MAX_LEVELS}q{4 * MAX_LEVELS}i")
_CHANNELS = struct.Struct("=Q2i")


def pack_pointers(pointers: Sequence[int]) -> bytes:
    """The kernels' array of pointers to levels, the rest zero."""
    return _POINTERS[len(pointers)].pack(*pointers)


def pack_pyramid(levels: Sequence[Tensor], nearest: Sequence[int]) -> bytes:
    """`struct Pyramid` of probe.cuh."""
    flags = None
    if nearest:
        names = set(nearest)
        flags = device_constant([int(c in names) for c in range(levels[0].shape[1])], torch.uint8, levels[0].device)
    pointers = pack_pointers([level.data_ptr() for level in levels])
    geometry, channels = _geometry(tuple([(level.shape, level.stride()) for level in levels]))
    return pointers + geometry + _CHANNELS.pack(0 if flags is None else flags.data_ptr(), len(levels), channels)


@lru_cache(maxsize=256)
def _geometry(levels: tuple[tuple[torch.Size, tuple[int, ...]], ...]) -> tuple[bytes, int]:
    """Strides and extents, the same for every image of a size, and the number of channels."""
    shapes, strides = zip(*levels)
    for index, (shape, stride) in enumerate(levels):
        if (shape[2] - 1) * stride[2] + (shape[3] - 1) * stride[3] >= 1 << 31:
            raise ValueError(
                f"levels[{index}] of {tuple(shape)} with strides {stride} has texels further apart than 2³¹ elements, "
                "more than the kernels can count: pass levels.contiguous(), or backend='reference'"
            )
    packed = _GEOMETRY.pack(
        *(value for axis in range(4) for value in padded([stride[axis] for stride in strides])),
        *(value for axis in (2, 3) for value in padded([shape[axis] for shape in shapes])),
    )
    return packed, shapes[0][1]
