"""Which files are opened by pages, and by which reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from texturevlm.check import check_choice
from texturevlm.image import MAX_PIXELS, SCHEMES
from texturevlm.paths import is_url
from texturevlm.types import COLOURS, Texture
from texturevlm.virtual.maps import MapSource
from texturevlm.virtual.pages import POOL_BYTES, VirtualPages
from texturevlm.virtual.slides import SlideSource
from texturevlm.virtual.source import PageSource
from texturevlm.virtual.tiff import TiffSource, is_tiff

PAGED_PIXELS = 1 << 24  # a file of fewer pixels is read whole: 200 MB as float32
SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide")  # OpenSlide's, of which many are TIFF
MAPS = (".vrt", ".jp2", ".img")
READERS: dict[str, Callable[..., PageSource]] = {"tiff": TiffSource, "slide": SlideSource, "map": MapSource}


def open_paged(
    source: Any,
    *,
    reader: str | None = None,
    pool_bytes: int = POOL_BYTES,
    device: torch.device | str | None = None,
) -> Texture:
    """A texture whose pages are read when they are sampled.

    source:     a path of a file with levels and pages (a tiled TIFF, a slide, a map), or a PageSource
    reader:     tiff (tifffile), slide (OpenSlide) or map (rasterio); None: by the name of the file
    pool_bytes: of pages that are kept in memory
    """
    if isinstance(source, (str, os.PathLike)):
        name = reader or _reader_of(source)
        check_choice("Texture.open", "reader", name, tuple(READERS))
        source = READERS[name](source)
    pages = VirtualPages(source, pool_bytes=pool_bytes, device=device or "cpu")
    return Texture(pages.coarse, COLOURS, pages.size, pages=pages)


def is_paged(source: Any) -> bool:
    """Whether `Texture.open` reads this by pages: a slide or a map by its name, or a large TIFF file with levels."""
    if not isinstance(source, (str, os.PathLike)) or SCHEMES.match(os.fspath(source)) or is_url(source):
        return False
    if not Path(source).is_file():
        return False
    if Path(source).suffix.lower() in (*SLIDES, *MAPS):
        return True
    if not is_tiff(source):
        return False
    try:
        from tifffile import TiffFile
    except ImportError:
        return False  # Pillow reads it, or says that it is too large
    try:
        with TiffFile(source) as tiff:
            first = tiff.pages.first
            pixels = first.imagewidth * first.imagelength
            most = PAGED_PIXELS if len(tiff.series[0].levels) > 1 else MAX_PIXELS
            return bool(first.is_tiled and pixels > most)
    except Exception:  # tifffile raises anything for damaged files, and Pillow says what is wrong
        return False


def _reader_of(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    return "slide" if suffix in SLIDES else "map" if suffix in MAPS else "tiff"
