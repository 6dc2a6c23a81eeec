"""Which files are opened by pages, and by which reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from texturevlm.check import check_choice
from texturevlm.image import MAX_BYTES, MAX_PIXELS, SCHEMES
from texturevlm.paths import IMAGE_SUFFIXES, is_url
from texturevlm.types import COLOURS, Texture
from texturevlm.virtual.pages import POOL_BYTES, VirtualPages
from texturevlm.virtual.ranges import NoRangesError, open_ranges
from texturevlm.virtual.sources import MapSource, PageSource, SlideSource, TiffSource, is_large_tiff

PAGED_PIXELS = 1 << 24  # a file of fewer pixels is read whole: 200 MB as float32
SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide")  # OpenSlide's, of which many are TIFF
MAPS = (".vrt", ".jp2", ".img")
TIFFS = {".tif", ".tiff"}
READERS: dict[str, Callable[..., PageSource]] = {"tiff": TiffSource, "slide": SlideSource, "map": MapSource}


def open_paged(
    source: Any,
    *,
    reader: str | None = None,
    pool_bytes: int = POOL_BYTES,
    device: torch.device | str | None = None,
) -> Texture:
    """A texture whose pages are read when they are sampled.

    source:     a file with levels and pages (a tiled TIFF, a slide, a map), the URL of a TIFF file, or a PageSource
    reader:     tiff (tifffile), slide (OpenSlide) or map (rasterio); None: by the name of the file
    pool_bytes: of pages that are kept in memory
    """
    if isinstance(source, (str, os.PathLike)):
        name = reader or _reader_of(os.fspath(source))
        check_choice("Texture.open", "reader", name, tuple(READERS))
        source = READERS[name](source)
    pages = VirtualPages(source, pool_bytes=pool_bytes, device=device or "cpu")
    return Texture(pages.coarse, COLOURS, pages.size, pages=pages)


def open_if_paged(source: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Texture | None:
    """What `Texture.open` reads by pages: a slide or a map by its name, a large TIFF file with levels; else None.

    Files with the suffix of another kind of image are not looked into, and of URLs only those that end as TIFF files
    and slides do; a server without ranges of bytes is left to a download, if the file is small enough for one.
    """
    name = os.fspath(source)
    if name.startswith("data:"):
        return None
    url, suffix = is_url(name), _suffix(name)
    if suffix in IMAGE_SUFFIXES - TIFFS or (url and suffix not in TIFFS.union(SLIDES)):
        return None
    if not url and not Path(name).is_file():
        return None
    if suffix in (*SLIDES, *MAPS):
        return open_paged(source, device=device)
    try:
        ranges = open_ranges(name)
        large = is_large_tiff(ranges, PAGED_PIXELS, MAX_PIXELS)
    except ImportError:
        if not SCHEMES.match(name):
            raise
        return None  # without the packages for pages it is downloaded
    except NoRangesError as error:
        if error.size is None or error.size > MAX_BYTES:
            raise
        return None
    if large:
        return open_paged(TiffSource(name, ranges=ranges), device=device)
    ranges.file.close()
    return None


def _suffix(name: str) -> str:
    return Path(urlsplit(name).path if is_url(name) else name).suffix.lower()


def _reader_of(name: str) -> str:
    suffix = _suffix(name)
    if is_url(name):
        return "tiff"  # OpenSlide and rasterio's blocks want a file; many slides are TIFF files
    return "slide" if suffix in SLIDES else "map" if suffix in MAPS else "tiff"
