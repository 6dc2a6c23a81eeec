"""One image, prepared once for any number of questions: mip levels, maps, words.

What does not depend on the question is computed when it is first needed, and kept.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from texturevlm.pipeline import ImageMaps, image_maps, relevance_of
from texturevlm.relevance import Relevance
from texturevlm.relevance.query import resolve_way
from texturevlm.relevance.reader import Page, read_page
from texturevlm.relevance.words import words_map
from texturevlm.scout import Spots, load_scout
from texturevlm.types import COLOURS, Texture

MIN_CHANCE = 0.1  # that a question is about an image, for any image that comes with it


class PreparedImage:
    """An image for a model whose tokens are `patch` × `patch` samples.

    source: a path, a PIL image, an array, a tensor, or a Texture; one image
    """

    def __init__(self, source: Any, *, patch: int, device: torch.device) -> None:
        texture = source.to(device) if isinstance(source, Texture) else Texture.open(source, device=device)
        if texture.batch != 1:
            raise ValueError(f"prepare: each image must be one image, got a batch of {texture.batch}; give a list")
        if texture.names == ("grey",):
            texture = Texture(tuple(level.expand(-1, 3, -1, -1) for level in texture.levels), COLOURS)
        if not set(COLOURS) <= set(texture.names):
            raise ValueError(f"prepare: image must be grey or red, green and blue, got {', '.join(texture.names)}")
        self.texture = texture.to(dtype=torch.float32).mipmapped()
        self.patch = patch

    @property
    def max_tokens(self) -> int:
        """The tokens that show the image at its own resolution; more tokens add nothing."""
        height, width = self.texture.size
        return -(-height // self.patch) * -(-width // self.patch)

    @cached_property
    def maps(self) -> ImageMaps:
        """Information and salience."""
        return image_maps(self.texture, patch=self.patch)

    @cached_property
    def page(self) -> Page:
        """The words on it, by OCR."""
        colours = [self.texture.names.index(name) for name in COLOURS]
        return read_page(self.texture.levels[0][:, colours])

    @cached_property
    def spots(self) -> Spots:
        """The scout's features of it."""
        return load_scout(device=self.texture.device).look(self.texture)

    def relevance(self, question: str, *, way: str = "auto", attention: Tensor | None = None) -> Relevance:
        """The relevance of each cell for a question; nothing is computed twice.

        way:       auto, words, scout, attention or none, as in `choose_tokens`
        attention: (1, h, w), for the way "attention"
        """
        way = resolve_way(way, question, attention=attention, encoder=None)
        page = self.page if way == "words" else self.spots if way == "scout" else None
        return relevance_of(self.texture, question, way=way, maps=self.maps, page=page, attention=attention)

    def chance(self, question: str, relevance: Relevance) -> float:
        """The chance (MIN_CHANCE to 1) that a question to several images is about this one, by its words."""
        if relevance.scorer == "words":
            return max(MIN_CHANCE, float(words_map(self.page, question, relevance.grid).sum()))
        if relevance.scorer == "scout":
            return max(MIN_CHANCE, float(load_scout(device=self.texture.device).where(self.spots, question).sum()))
        return 1.0

    def on(self, device: torch.device) -> None:
        """Move to the device of a model that was moved."""
        if self.texture.device == device:
            return
        self.texture = self.texture.to(device)
        for kept in ("maps", "spots"):  # made again on the other device
            self.__dict__.pop(kept, None)
