"""One page of a run with a model: decoded once, then read and cut by each condition; nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image, ImageOps
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.ask.attention import COARSE_VIEW, attended, overview
from texturevlm.draw import to_pil
from texturevlm.image import to_tensor
from texturevlm.placement import Picture, Placement, TokenConfig, place_together, prepare
from texturevlm.placement.placement import BY_EVIDENCE
from texturevlm.relevance import find_scorer, reads_question
from texturevlm.vlm import Adapter
from texturevlm_lab.evaluate.own_input import OwnInput, own_input
from texturevlm_lab.evaluate.page_cache import PageCache

PAPER = (255, 255, 255)
Found = TypeVar("Found")


class AskedPage:
    """A page for one model.

    path:  of the image; it is decoded when it is first needed
    words: the cache of words that OCR has read
    """

    def __init__(self, path: Path, adapter: Adapter, words: PageCache) -> None:
        self.path, self.adapter, self.words = path, adapter, words
        self.words_ms = 0.0  # what reading its words took
        self._found: dict[tuple[object, ...], Any] = {}

    def _once(self, make: Callable[[], Found], *key: object) -> Found:
        found: Found = self._found[key] if key in self._found else self._found.setdefault(key, make())
        return found

    @cached_property
    def image(self) -> Image.Image:
        """The decoded page, upright and in colours."""
        try:
            with Image.open(self.path) as image:
                image.load()
                plain = image.mode in ("RGB", "L") and "transparency" not in image.info
                # What is not plain is laid over white, as for a Texture, so that all conditions show the same.
                return ImageOps.exif_transpose(image).convert("RGB") if plain else to_pil(to_tensor(image))
        except Exception as error:  # Pillow's decoders raise anything for damaged files
            raise ValueError(f"image {self.path} cannot be read: {error}") from None

    @cached_property
    def upright(self) -> Picture:
        """As it is, on the model's device, for tokens of the model."""
        return prepare(self.image, self._how, device=self.adapter.device)

    @property
    def _how(self) -> TokenConfig:
        return TokenConfig(finer=self.adapter.trained.finer, patch=self.adapter.side, turn=0.0)

    def again(self, image: Image.Image | None = None) -> AskedPage:
        """The same decoded page, or another image in its place, of which nothing else is known."""
        other = AskedPage(self.path, self.adapter, self.words)
        other.image = image or self.image
        return other

    @cached_property
    def blank(self) -> AskedPage:
        """An empty page of the same size."""
        return self.again(Image.new("RGB", self.image.size, PAPER))

    def own(self, most: int | None) -> OwnInput:
        """What the model's own processor makes of it, in at most so many tokens."""
        found: OwnInput = self._once(partial(own_input, self.adapter, self.image, most), "own", most)
        return found

    def placed(
        self, question: str, allocator: str, relevance: str, budget: int, *, turn: float | str = 0.0
    ) -> Placement:
        """The tokens for a question, placed once.

        relevance: the name of a scorer, or model
        turn: as for `ask`
        """
        question = question if reads_question(relevance) else ""
        how = replace(self._how, budget=budget, allocator=allocator, relevance=relevance, turn=turn)
        make = self._by_model if relevance == "model" else self._by_scorer
        return self._once(partial(make, question, how), "placed", question, allocator, relevance, budget, turn)

    def located(self, boxes: Sequence[Box], allocator: str, budget: int) -> Placement:
        """The tokens of the oracle, which knows where the answer stands."""
        picture = self.upright
        cells = box_map(boxes, picture.original.size, picture.memo.maps.grid)
        how = replace(self._how, budget=budget, allocator=allocator, relevance=BY_EVIDENCE)
        return place_together([picture], "", how, evidence=[cells[None]])[0]

    def _by_model(self, question: str, how: TokenConfig) -> Placement:
        """The model looks at the page once, whatever the budgets."""
        pictures = [prepare(self.upright, how)]
        look = partial(overview, pictures, COARSE_VIEW, how)
        pointed = self._once(lambda: attended(self.adapter, question, look()), "attended", question, how.turn)
        return place_together(pictures, question, replace(how, relevance=BY_EVIDENCE), evidence=pointed)[0]

    def _by_scorer(self, question: str, how: TokenConfig) -> Placement:
        scorer, picture = find_scorer("eval", how.relevance, question), prepare(self.upright, how)
        # The cache holds the words of the image as it is.
        if scorer.name == "words" and picture.frame.is_whole and id(scorer) not in picture.memo.readings:
            reading, self.words_ms = self.words.words(self.path, picture.texture)
            picture.memo.keep(scorer, (reading,))
        return place_together([picture], question, how)[0]


def box_map(boxes: Sequence[Box], size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(h, w): the share of each cell of a grid over an image that lies in a box."""
    found = torch.zeros(grid)
    for x0, y0, x1, y1 in boxes:
        down, across = _covered(y0, y1, size[0], grid[0]), _covered(x0, x1, size[1], grid[1])
        found = found.maximum(down[:, None] * across[None])
    return found


def _covered(low: float, high: float, extent: int, cells: int) -> Tensor:
    """(cells,): how much of each of so many cells along an extent lies between two places."""
    edges = torch.arange(cells + 1) * (extent / cells)
    return (edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)).clamp(min=0) * (cells / extent)
