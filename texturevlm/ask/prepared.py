"""One image, prepared once for any number of questions: mip levels, maps, words.

What does not depend on the question is computed when it is first needed, and kept.
"""

from __future__ import annotations

from typing import Any

import torch

from texturevlm.pipeline import question_chance
from texturevlm.relevance import Prepared, Relevance, Scorer
from texturevlm.types import COLOURS, Texture


class PreparedImage:
    """An image for a model whose tokens are `patch` × `patch` samples.

    source: what `Texture.open` takes, or a Texture; one image
    """

    def __init__(self, source: Any, *, patch: int, device: torch.device) -> None:
        texture = source.to(device) if isinstance(source, Texture) else Texture.open(source, device=device)
        if texture.batch != 1:
            raise ValueError(f"prepare: each image must be one image, got a batch of {texture.batch}; give a list")
        if texture.names == ("grey",):
            texture = Texture(tuple(level.expand(-1, 3, -1, -1) for level in texture.levels), COLOURS)
        if not set(COLOURS) <= set(texture.names):
            names = texture.names if len(texture.names) < 4 else (*texture.names[:3], "…")
            raise ValueError(
                f"prepare: image must be grey or red, green and blue, got {len(texture.names)} channels "
                f"({', '.join(names)}); an array is (H, W, C), a tensor (C, H, W)"
            )
        self.texture = texture.to(dtype=torch.float32).mipmapped()
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
