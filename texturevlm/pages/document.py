"""What counts as a document: a PDF, or a list of images, such as scanned pages or the frames of a clip."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from texturevlm.image import check_header
from texturevlm.pdfium import MOST_PAGES, PdfFile, is_pdf
from texturevlm.types import Texture
from texturevlm.virtual.opening import open_if_paged


@runtime_checkable
class Pages(Protocol):
    """Pages that are opened one by one."""

    def __len__(self) -> int:
        """How many."""

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """Page `index` (from 0), for a use that needs at most about this many pixels."""


class PdfPages(PdfFile):
    """A PDF whose pages are rendered when they are needed."""

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """Page `index` (from 0) in at most about this many pixels."""
        return Texture.open(self.draw(index, pixels), device=device)


class ImagePages:
    """A list of images: what `Texture.open` takes, or Textures of one image; opened when they are needed."""

    def __init__(self, images: Sequence[Any]) -> None:
        self.images = list(images)

    def __len__(self) -> int:
        return len(self.images)

    def check_files(self) -> None:
        """Refuse a file that is no image before pages are read, which takes long; pixels are not read."""
        for image in self.images:
            if not (isinstance(image, (str, os.PathLike)) and open_if_paged(image) is not None):
                check_header(image)

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """The image as it is: its mip levels serve every resolution."""
        image = self.images[index]
        found = image.to(device) if isinstance(image, Texture) else Texture.open(image, device=device)
        if found.batch != 1:
            raise ValueError(f"choose_pages: each page must be one image, got a batch of {found.batch} at {index}")
        return found


def is_document(source: Any) -> bool:
    """Whether this is a document rather than an image: a PDF, or Pages, such as `open_pages` returns."""
    return _is_open(source) or is_pdf(source)


def open_pages(source: Any, *, function: str = "choose_pages") -> Pages:
    """The pages of a document: of a PDF (a path, or bytes), or of a list of images; Pages stay as they are.

    function: for errors
    """
    if _is_open(source):
        opened: Pages = source
        return opened
    if isinstance(source, (list, tuple)):
        if not source:
            raise ValueError(f"{function}: document must have at least one page, got an empty list")
        if len(source) > MOST_PAGES:
            raise ValueError(f"{function}: document must have at most {MOST_PAGES} pages, got a list of {len(source)}")
        return ImagePages(source)
    if is_pdf(source):
        return PdfPages(source, function=function)
    got = f"{source!r:.60}" if isinstance(source, (str, bytes)) else type(source).__name__
    raise TypeError(f"{function}: document must be a PDF or a list of images, got {got}")


def _is_open(source: Any) -> bool:
    return isinstance(source, Pages) and not isinstance(source, (str, bytes, list, tuple, Texture))
