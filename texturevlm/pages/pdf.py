"""A PDF as pages."""

from __future__ import annotations

import torch

from texturevlm.pdfium import PdfFile
from texturevlm.types import Texture


class PdfPages(PdfFile):
    """A PDF whose pages are rendered when they are needed."""

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """Page `index` (from 0) in at most about this many pixels."""
        return Texture.open(self.draw(index, pixels), device=device)
