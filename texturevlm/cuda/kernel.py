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
from texturevlm.cuda.struct import constants

(MAX_LEVELS,) = constants("scalar.cuh", "MAX_LEVELS")
THREADS = 256
WARP = 32

_SCALAR_BITS = {getattr(torch, name): bits for name, bits in SCALARS.items()}
_kernels: dict[tuple[Any, ...], Any] = {}
_loading = threading.Lock()
_bound = threading.local()
_libraries: list[Any] = []


def scalar_bits(dtype: torch.dtype) -> int:
    """The SCALAR that a source is compiled with for tensors of this dtype."""
    return _SCALAR_BITS[dtype]


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

        checked((driver.CUresult(status),), f"launching {name}")


@lru_cache(maxsize=None)
def _can_start_early(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)


def checked(result: tuple[Any, ...], doing: str) -> Any:
    """What a driver call returned; raise if it failed. `doing` completes "CUDA error while …"."""
    status, *values = result
    if int(status) == 0:
        return values[0] if values else None
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

    context = checked(driver.cuDevicePrimaryCtxRetain(index), "retaining the primary context")
    checked(driver.cuCtxSetCurrent(context), "binding the context")
    _bound.device = index


def _load(key: tuple[Any, ...], define: dict[str, int]) -> Any:
    from cuda.bindings import driver

    source, name, index = key[:3]
    with _loading:
        if key in _kernels:
            return _kernels[key]
        major, minor = torch.cuda.get_device_capability(index)
        cubin = compile_source(source, f"sm_{major}{minor}", define)
        library = checked(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), f"loading {source}")
        _libraries.append(library)
        kernel = checked(driver.cuLibraryGetKernel(library, name.encode()), f"finding {name} in {source}")
        _kernels[key] = int(kernel)
        return _kernels[key]


_tables: dict[tuple[Any, ...], Tensor] = {}


def device_constant(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of fixed values on a device, the same one for every call.

    values: numbers, or tuples of numbers
    It is never freed, unlike an entry of an lru_cache, so that a captured graph may read it at any time.
    """
    key = (tuple(values), dtype, device)
    if key not in _tables:
        # setdefault: two threads that come here at once must go on with the same tensor.
        _tables.setdefault(key, torch.tensor(key[0], dtype=dtype).to(device))
    return _tables[key]
