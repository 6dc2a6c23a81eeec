"""A flat image file → a TIFF file with levels and pages (pyvips, extra `large`), in bounded memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from texturevlm.check import check_count
from texturevlm.extras import extra
from texturevlm.virtual.mips import PAGE, USUAL_PAGES

QUALITY = 85  # of the JPEG pages; from 90 on libvips stores red, green and blue as they are, in four times the bytes
SUFFIX = ".pyramid.tif"


def pyramid_path(source: str | os.PathLike[str]) -> Path:
    """Where the pyramid of a file is written by default: beside it."""
    return Path(source).with_suffix(SUFFIX)


def build_pyramid(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    page: int = PAGE,
    quality: int = QUALITY,
    lossless: bool = False,
) -> Path:
    """Write an image file as a pyramid of pages: red, green and blue of 8 bits, upright, over white.

    source:   any file that libvips reads
    out:      a .tif file; None: beside the source. It appears when it is complete, and replaces an older one
    page:     side of a page in texels, a multiple of 16
    quality:  of JPEG, 1 to 100
    lossless: pages by Deflate instead
    """
    path, target = Path(source), pyramid_path(source) if out is None else Path(out)
    check_count("build_pyramid", "page", page, *USUAL_PAGES)
    check_count("build_pyramid", "quality", quality, 1, 100)
    if page % 16:
        raise ValueError(f"build_pyramid: page must be a multiple of 16, got {page}")
    if target.suffix.lower() not in (".tif", ".tiff"):
        raise ValueError(f"build_pyramid: out must end in .tif, got {target}")
    if not path.is_file():
        raise FileNotFoundError(f"build_pyramid: no such file: {path}")
    if target.exists() and target.samefile(path):
        raise ValueError(f"build_pyramid: out must be another file than the source, got {target}")
    with path.open("rb"):  # for the system's own error
        pass
    pyvips = extra("build_pyramid: needs", "large", "pyvips")
    try:
        image = _colours(pyvips, path)
    except pyvips.Error as error:
        raise ValueError(f"build_pyramid: {path} cannot be read: {_said(error)}") from None
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tif", dir=target.parent)
    os.close(handle)
    part, stored = Path(name), {"compression": "deflate"} if lossless else {"compression": "jpeg", "Q": quality}
    try:
        image.tiffsave(name, tile=True, pyramid=True, tile_width=page, tile_height=page, bigtiff=True, **stored)
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)  # a temporary file is its owner's alone
        part.replace(target)
    except pyvips.Error as error:
        raise ValueError(f"build_pyramid: {path} cannot be made a pyramid at {target}: {_said(error)}") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _colours(pyvips: Any, path: Path) -> Any:
    """The image as red, green and blue of 8 bits; an error in the file is an error, not grey rows."""
    image = pyvips.Image.new_from_file(str(path), access="sequential", fail_on="error")
    if image.get_typeof("orientation") and image.get("orientation") != 1:
        # Turned pixels are not read in order.
        image = pyvips.Image.new_from_file(str(path), fail_on="error").autorot()
    if image.interpretation != "srgb":
        image = image.colourspace("srgb")
    if image.hasalpha():
        image = image.flatten(background=255)
    image = image.cast("uchar")
    return image if image.bands == 3 else image[0].bandjoin([image[0], image[0]])


def _said(error: Any) -> str:
    """The last line of what libvips says."""
    return [line for line in str(error).splitlines() if line.strip()][-1].strip()
