"""One image, prepared once for any number of questions: mip levels, maps, words.

What does not depend on the question is computed when it is first needed, and kept.
"""

from __future__ import annotations

from typing import Any

import torch

from texturevlm.ask.sources import open_image
from texturevlm.pipeline import question_chance
from texturevlm.relevance import Prepared, Relevance, Scorer


class PreparedImage:
    """An image for a model whose tokens are `patch` × `patch` samples.

    source: as for `open_image`
    """

    def __init__(self, source: Any, *, patch: int, device: torch.device) -> None:
        self.texture = open_image(source, device).mipmapped()
        self.patch = patch
        self.prepared = Prepared(self.texture, patch=patch)

    @property
    def max_tokens(self) -> int:
        """The tokens that show the image at its own resolution; more tokens add nothing."""
        height, width = self.texture.size
        return -(-height // self.patch) * -(-width // self.patch)

    def relevance(self, question: str, *, relevance: str | Scorer = "auto") -> Relevance:
        """The relevance of each cell for a question; nothing is computed twice. relevance: as in `choose_tokens`."""
        return self.prepared.find(question, scorer=relevance)

    def chance(self, question: str, relevance: Relevance) -> float:
        """The chance that a question to several images is about this one."""
        return question_chance(self.prepared, question, relevance)

    def on(self, device: torch.device) -> None:
        """Move to the device of a model that was moved."""
        if self.texture.device == device:
            return
        self.texture = self.texture.to(device)
        self.prepared = self.prepared.moved(self.texture)
