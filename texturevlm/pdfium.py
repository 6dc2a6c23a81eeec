"""The pages of a PDF as arrays, one at a time, at the resolution that is asked for (PDFium, extra `pdf`).

Without torch: the server draws the PDFs of strangers in a process that must start quickly.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from texturevlm.extras import extra
from texturevlm.paths import is_url

MAGIC = b"%PDF-"
WITHIN = 1024  # bytes of a file in which readers look for MAGIC
MOST_PAGES = 1000  # of a document: the scout reads each one; more take minutes, and are more likely a mistake
MOST_DPI = 200  # of a rendering; small print is legible there
POINTS = 72  # per inch
MOST_ALONG = 1 << 14  # pixels along a side of a rendering, for pages that are long and narrow
_PASSWORD = 4  # PDFium's code for a file that is encrypted
_LOCK = RLock()  # PDFium must not be called from two threads at once


class PdfFile:
    """A PDF; only its file is held, no rendering.

    source: a path, or the bytes of a file
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, *, function: str = "choose_pages") -> None:
        self.function = function
        self.name = f"document of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)
        if not isinstance(source, bytes) and is_url(self.name):
            raise ValueError(f"{function}: document must be a file on this machine, got {self.name}; download it first")
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise FileNotFoundError(f"{function}: no such file: {self.name}")
        self._pdf = self._opened(source)
        with _LOCK:
            self.count = len(self._pdf)
        if self.count > MOST_PAGES:
            raise ValueError(
                f"{function}: document must have at most {MOST_PAGES} pages, got {self.count} in {self.name}; split it"
            )

    def __len__(self) -> int:
        return self.count

    def draw(self, index: int, pixels: int) -> NDArray[np.uint8]:
        """Page `index` (from 0) in at most about this many pixels, and at most MOST_DPI: (H, W, 3), or (H, W) if it is
        grey."""
        with _LOCK:
            try:
                page = self._pdf[index]
                try:
                    array: NDArray[np.uint8] = page.render(scale=self._scale(index, pixels)).to_numpy().copy()
                finally:
                    page.close()
            except RuntimeError as error:  # PDFium's own
                raise ValueError(f"{self.function}: page {index + 1} of {self.name} cannot be read: {error}") from error
        return array if array.ndim == 2 else np.ascontiguousarray(array[..., 2::-1])  # from BGR, without its padding

    def _scale(self, index: int, pixels: int) -> float:
        """Pixels per point."""
        width, height = (float(side) for side in self._pdf.get_page_size(index))
        if not (0 < width < math.inf and 0 < height < math.inf):
            got = f"{width:g}×{height:g} points on page {index + 1}"
            raise ValueError(f"{self.function}: pages of {self.name} must have an area, got {got}")
        return min(MOST_DPI / POINTS, math.sqrt(pixels / (width * height)), MOST_ALONG / max(width, height))

    def _opened(self, source: Any) -> Any:
        pypdfium2 = extra(f"{self.function}: needs", "pdf", "pypdfium2")
        given = source if isinstance(source, bytes) else os.fspath(source)
        with _LOCK:
            try:
                document = pypdfium2.PdfDocument(given)
                document.init_forms()  # before any page is opened; else what was filled into a form is not drawn
                return document
            except pypdfium2.PdfiumError as error:
                if _has_no_pages(given):
                    wanted = "must have at least one page, got none in"
                    raise ValueError(f"{self.function}: document {wanted} {self.name}") from None
                if getattr(error, "err_code", None) == _PASSWORD:
                    wanted = "must not be encrypted; save it without its password"
                    raise ValueError(f"{self.function}: document {wanted}, got {self.name}") from None
                raise ValueError(f"{self.function}: {self.name} is not a PDF that can be read: {error}") from None


def _has_no_pages(source: str | bytes) -> bool:
    """Whether PDFium opens this: it has no code for a file without pages, and still has that of the last bad file."""
    from pypdfium2 import raw

    if isinstance(source, bytes):
        document = raw.FPDF_LoadMemDocument64(source, len(source), None)
    else:
        document = raw.FPDF_LoadDocument(os.fsencode(source) + b"\0", None)
    if document:
        raw.FPDF_CloseDocument(document)
    return bool(document)


def is_pdf(source: Any) -> bool:
    """Whether this is a PDF by its name or its first bytes."""
    if isinstance(source, bytes):
        return MAGIC in source[:WITHIN]
    if not isinstance(source, (str, os.PathLike)):
        return False
    if os.fspath(source).lower().endswith(".pdf"):
        return True
    try:
        with open(source, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
