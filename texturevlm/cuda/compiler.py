"""Compile CUDA sources with NVRTC, without a compiler on the user's machine, and cache the binaries on disk.

A cache entry is named by a hash of its inputs, so a changed kernel never meets an old binary. It begins with a hash of
its content, so a damaged file is compiled again and not loaded.
"""

import hashlib
import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).parent.parent
# All sources and headers by file name, those of the package and of `add_sources`.
SOURCES: dict[str, Path] = {}
HEADERS: dict[str, Path] = {}
DIGEST_BYTES = 32

SCALARS = {"float32": 32, "float16": 16, "bfloat16": 17}
# The lowest compute capability that the kernels compile for, per element type.
LOWEST = {"float32": (7, 5), "float16": (7, 5), "bfloat16": (8, 0)}
INCLUDE = re.compile(r'#include "([^"]+)"')


def add_sources(folder: Path) -> None:
    """Let kernels in a folder, and below it, be found by their file names, as those of the package are.

    folder: of another package. ValueError if a name is taken: a kernel would be compiled in the place of another
    """
    for known, pattern in ((SOURCES, "*.cu"), (HEADERS, "*.cuh")):
        for path in sorted(folder.rglob(pattern)):
            if known.setdefault(path.name, path) != path:
                raise ValueError(
                    f"add_sources: folder must bring names of its own, got {path} beside {known[path.name]}"
                )


def read_source(name: str) -> str:
    """The text of a source or header."""
    return (SOURCES.get(name) or HEADERS[name]).read_text(encoding="utf-8")


def compile_source(source: str, architecture: str, definitions: dict[str, int]) -> bytes:
    """The cubin of a source for a GPU architecture ("sm_90"), from the cache if possible."""
    code = read_source(source)
    headers = _included(code)
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    everything = "\0".join([code, *headers.values(), *options, str(nvrtc_version())])
    folder = cache_folder()
    entry = folder and folder / (hashlib.sha256(everything.encode()).hexdigest() + ".cubin")
    cubin = read_entry(entry) if entry else None
    if cubin is None:
        cubin = _nvrtc(source, code, headers, options)
        if entry:
            _write_entry(entry, cubin)
    return cubin


def _included(code: str) -> dict[str, str]:
    """The text of each header that a source includes, at any depth: others, of other packages, change no binary."""
    found: dict[str, str] = {}
    left = INCLUDE.findall(code)
    while left:
        if (name := left.pop()) not in found:
            found[name] = read_source(name)
            left += INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def cache_folder() -> Path | None:
    """$TEXTUREVLM_CACHE, or the user's cache folder; None if the user has no home."""
    if folder := os.environ.get("TEXTUREVLM_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "texturevlm"
    except RuntimeError:
        return None


def read_entry(entry: Path) -> bytes | None:
    """The cubin in a cache entry; None if the entry is missing, unreadable or damaged."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    digest, cubin = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def _write_entry(entry: Path, cubin: bytes) -> None:
    """Write a cache entry in one step (write beside, then rename), so that other processes see all of it or nothing."""
    temporary = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            temporary = file.name
            file.write(hashlib.sha256(cubin).digest() + cubin)
        os.replace(temporary, entry)
    except OSError:  # a read-only or full disk only means that the next process compiles again
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@lru_cache(maxsize=None)
def nvrtc_version() -> tuple[int, int]:
    """NVRTC's version; RuntimeError with the reason if it cannot be loaded."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # if the library is missing, the loader raises errors of its own
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
            log = b" " * int(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{name} does not compile with {' '.join(options)}:\n{log.decode(errors='replace')}")
        cubin = b" " * int(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


add_sources(PACKAGE_FOLDER)
