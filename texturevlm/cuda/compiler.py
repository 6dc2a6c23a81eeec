"""CUDA source to machine code, without a compiler on the user's machine: NVRTC, with a cache on disk.

A cache entry is named by a hash of everything that went into it and begins with a hash of what came out, so a new
version of a kernel never meets an old binary and a damaged file is compiled again rather than loaded.
"""

import hashlib
import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
# Every source and header of the package by its file name, whichever folder it lies in: the names are unique.
SOURCES = {path.name: path for path in sorted(PACKAGE.rglob("*.cu"))}
HEADERS = {path.name: path for path in sorted(PACKAGE.rglob("*.cuh"))}
DIGEST_BYTES = 32

SCALARS = {"float32": 32, "float16": 16, "bfloat16": 17}
# The lowest compute capability that the kernels compile for, per element type.
LOWEST = {"float32": (7, 5), "float16": (7, 5), "bfloat16": (8, 0)}
PACKS = (1, 2, 4)
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(const __grid_constant__ (\w+)')
INCLUDE = re.compile(r'#include "([^"]+)"')
ELEMENT = re.compile(r"\bscalar[24]?\b")


def kernels(source: str) -> dict[str, str]:
    """The kernels of a source file, each with the name of the struct that it takes."""
    return dict(KERNEL.findall(read_source(source)))


def read_source(name: str) -> str:
    """The text of a source or header of the package."""
    return (SOURCES.get(name) or HEADERS[name]).read_text(encoding="utf-8")


def variants(source: str) -> list[dict[str, int]]:
    """The definitions under which a source is compiled: one per element type, if it has elements of any type."""
    scalars = [{"SCALAR": bits} for bits in SCALARS.values()]
    if source == "texture.cu":
        return [{**scalar, "PACK": pack} for scalar in scalars for pack in PACKS]
    return scalars if _any_element_type(source) else scalars[:1]


def _any_element_type(name: str) -> bool:
    code = read_source(name)
    included = [header for header in INCLUDE.findall(code) if header != "scalar.cuh"]
    return ELEMENT.search(INCLUDE.sub("", code)) is not None or any(map(_any_element_type, included))


def compile_source(source: str, architecture: str, definitions: dict[str, int]) -> bytes:
    """The cubin of one source file for one GPU architecture ("sm_90"), from the cache if it is there."""
    headers = {name: read_source(name) for name in HEADERS}
    code = read_source(source)
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    everything = "\0".join([code, *headers.values(), *options, str(nvrtc_version())])
    folder = cache_folder()
    if folder is None:
        return _nvrtc(source, code, headers, options)
    entry = folder / (hashlib.sha256(everything.encode()).hexdigest() + ".cubin")
    if (cubin := read_entry(entry)) is not None:
        return cubin
    cubin = _nvrtc(source, code, headers, options)
    write_entry(entry, cubin)
    return cubin


def cache_folder() -> Path | None:
    """$TEXTUREVLM_CACHE, else the user's cache folder; None for a user without a home."""
    if folder := os.environ.get("TEXTUREVLM_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "texturevlm"
    except RuntimeError:
        return None


def read_entry(entry: Path) -> bytes | None:
    """What a cache entry holds; None if it is missing, unreadable or damaged."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    digest, cubin = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def write_entry(entry: Path, cubin: bytes) -> None:
    """Written beside its place and moved there in one step: another process sees all of it or nothing."""
    temporary = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            temporary = file.name
            file.write(hashlib.sha256(cubin).digest() + cubin)
        os.replace(temporary, entry)
    except OSError:  # a read-only or full disk costs a compilation each time, nothing else
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@lru_cache(maxsize=None)
def nvrtc_version() -> tuple[int, int]:
    """NVRTC's version; RuntimeError with the reason if it cannot be loaded."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the loader raises its own kinds of error where the library is missing
        raise RuntimeError(f"NVRTC cannot be loaded ({error}): pip install 'texturevlm[cuda]'") from error
    if int(status) != 0:
        raise RuntimeError(f"NVRTC does not answer (status {int(status)})")
    return major, minor


def _nvrtc(name: str, code: str, headers: dict[str, str], options: list[str]) -> bytes:
    from cuda.bindings import nvrtc

    texts, names = [text.encode() for text in headers.values()], [header.encode() for header in headers]
    _, program = nvrtc.nvrtcCreateProgram(code.encode(), name.encode(), len(texts), texts, names)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status) != 0:
            log = _buffer(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise RuntimeError(f"{name} does not compile with {' '.join(options)}:\n{log.decode(errors='replace')}")
        return _buffer(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _buffer(size_of: Any, read: Any, program: Any) -> bytes:
    _, size = size_of(program)
    data = b" " * size
    read(program, data)
    return data
