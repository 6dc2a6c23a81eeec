"""One page of a run with a model: decoded once, then read and cut by each condition; nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image, ImageOps
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.ask.attended import COARSE_VIEW, attended, overview
from texturevlm.ask.prepared import PreparedImage
from texturevlm.draw import to_pil
from texturevlm.image import to_tensor
from texturevlm.pipeline import choose_tokens
from texturevlm.relevance import AttentionScorer, Relevance, find_scorer
from texturevlm.relevance.maps import UNASKED
from texturevlm.types import Allocation
from texturevlm.vlm import Adapter
from texturevlm.vlm.own_input import OwnInput
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
    def prepared(self) -> PreparedImage:
        """On the model's device, with its mip levels."""
        adapter = self.adapter
        return PreparedImage(self.image, patch=adapter.side, device=adapter.device, finer=adapter.trained.finer)

    def again(self, image: Image.Image | None = None) -> AskedPage:
        """The same decoded page, or another image in its place, of which nothing else is known."""
        other = AskedPage(self.path, self.adapter, self.words)
        other.image = image or self.image
        return other

    def turned(self, turn: float | str) -> AskedPage:
        """The page with tokens chosen in its upright frame. turn: as for `ask`"""

        page = self if turn == 0 else self._once(self.again, "turned")
        if turn != 0:
            page.prepared.turn(turn)
        return page

    @cached_property
    def blank(self) -> AskedPage:
        """An empty page of the same size."""
        return self.again(Image.new("RGB", self.image.size, PAPER))

    def own(self, most: int | None) -> OwnInput:
        """What the model's own processor makes of it, in at most so many tokens."""
        found: OwnInput = self._once(partial(self.adapter.own_input, self.image, most), "own", most)
        return found

    def chosen(self, question: str, allocator: str, relevance: str, budget: int) -> Allocation:
        """The tokens for a question, chosen once."""
        question = "" if relevance in UNASKED else question
        return self._once(
            lambda: self._choose(self.relevance(question, relevance, budget), allocator, budget),
            *("chosen", question, allocator, relevance, budget),
        )

    def located(self, boxes: Sequence[Box], allocator: str, budget: int) -> Allocation:
        """The tokens of the oracle, which knows where the answer stands."""
        cells = box_map(boxes, self.prepared.original.size, self.prepared.prepared.maps.grid)
        relevance = self.prepared.relevance("", budget=budget, relevance=AttentionScorer(cells[None]))
        return self._choose(relevance, allocator, budget)

    def relevance(self, question: str, relevance: str, budget: int) -> Relevance:
        """By the name of a scorer, or by the model itself; computed once, whatever the budgets."""
        question = "" if relevance in UNASKED else question
        make = self._by_model if relevance == "model" else partial(self._by_scorer, relevance)
        found = self._once(partial(make, question), "relevance", question, relevance)
        return self.prepared.for_budget(found, budget, made_for=COARSE_VIEW)

    def _by_model(self, question: str) -> Relevance:
        images = [self.prepared]
        (found,), _ = attended(self.adapter, images, question, overview(images, COARSE_VIEW), budget=COARSE_VIEW)
        return found

    def _by_scorer(self, relevance: str, question: str) -> Relevance:
        scorer, image = find_scorer("eval", relevance, question), self.prepared
        as_it_is = image.frame.angle == 0 and image.times == 1  # as the cache holds its words
        if scorer.name == "words" and as_it_is and id(scorer) not in image.prepared.readings:
            reading, self.words_ms = self.words.words(self.path, image.texture)
            image.prepared.keep(scorer, (reading,))
        return image.relevance(question, budget=COARSE_VIEW, relevance=scorer)

    def _choose(self, relevance: Relevance, allocator: str, budget: int) -> Allocation:
        texture, patch = self.prepared.texture, self.adapter.side
        return choose_tokens(texture, budget=budget, patch=patch, allocator=allocator, relevance=relevance)


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
