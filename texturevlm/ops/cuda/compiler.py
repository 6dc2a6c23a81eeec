"""CUDA source to machine code, without a compiler on the user's machine: NVRTC, with a cache on disk.

A cache entry is named by a hash of everything that went into it and begins with a hash of what came out, so a new
version of a kernel never meets an old binary and a damaged file is compiled again rather than loaded.
"""

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent
HEADERS = tuple(sorted(header.name for header in SOURCES.glob("*.cuh")))
DIGEST_BYTES = 32

# Every kernel there is: its source, and what must be defined to compile it. CI compiles them all without a GPU.
SCALARS = {"float32": 32, "float16": 16, "bfloat16": 17}
PACKS = (1, 2, 4)
KERNELS: dict[str, tuple[str, ...]] = {
    "mip.cu": ("mip_even", "mip_any", "mip_more", "mip_backward"),
    "lookup.cu": ("lookup", "lookup_backward"),
    "patches.cu": ("sample_patches", "refresh_patches", "sample_patches_backward"),
    "texture.cu": ("fill", "fetch"),
    "distance.cu": ("distance_rows", "distance_columns", "distance_within"),
    "segment.cu": ("superpixels_refine", "superpixels_assign", "region_sums", "boundaries"),
    "channels.cu": ("channels_near", "channels_regions"),
    "coarse.cu": ("channels_coarse", "channels_text"),
    "text.cu": ("text_strokes", "text_letters", "text_lines"),
    "text_tiles.cu": ("text_tiles",),
    "select.cu": ("select_sums", "select_tokens", "select_best"),
    "information.cu": ("information_losses", "information_maps"),
    "cover.cu": ("cover_begin", "cover_spans", "cover_gains", "cover_reach", "cover_tokens"),
    "density.cu": ("density_scale", "density_rows", "density_table", "density_tiles"),
    "change.cu": ("change_measure", "change_take", "change_post"),
    "change_decide.cu": ("change_decide", "change_learn"),
    "scout_seen.cu": ("scout_seen",),
    "scout_question.cu": ("scout_words", "scout_films"),
    "scout_spots.cu": ("scout_inputs", "scout_along"),
    "scout.cu": ("scout_film", "scout_lift", "scout_scores", "scout_chance"),
}
FLOAT_ALONE = (
    *("distance.cu", "segment.cu", "channels.cu", "coarse.cu", "text.cu", "text_tiles.cu"),
    *("select.cu", "information.cu", "cover.cu", "density.cu", "change.cu", "change_decide.cu", "scout_question.cu"),
)


def variants(source: str) -> list[dict[str, int]]:
    """The definitions under which a source is compiled."""
    scalars = [{"SCALAR": bits} for bits in SCALARS.values()]
    if source == "texture.cu":
        return [{**scalar, "PACK": pack} for scalar in scalars for pack in PACKS]
    return scalars[:1] if source in FLOAT_ALONE else scalars


def compile_source(source: str, architecture: str, definitions: dict[str, int]) -> bytes:
    """The cubin of one source file for one GPU architecture ("sm_90"), from the cache if it is there."""
    headers = {name: (SOURCES / name).read_text(encoding="utf-8") for name in HEADERS}
    code = (SOURCES / source).read_text(encoding="utf-8")
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
