"""One page of a run with a model: decoded once, then read and cut by each condition; nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.ask.attended import COARSE_VIEW, attended, overview
from texturevlm.draw import to_pil
from texturevlm.image import to_tensor
from texturevlm.placement import Picture, Placement, TokenConfig, place_together, prepare
from texturevlm.placement.placement import BY_EVIDENCE
from texturevlm.relevance import Scorer, find_scorer, reads_question
from texturevlm.vlm import Adapter
from texturevlm.vlm.own_input import OwnInput
from texturevlm_lab.evaluate.page_cache import PageCache

PAPER = (255, 255, 255)


class AskedPage:
    """A page for one model.

    path:  of the image; it is decoded when it is first needed
    words: the cache of words that OCR has read
    """

    def __init__(self, path: Path, adapter: Adapter, words: PageCache) -> None:
        self.path, self.adapter, self.words = path, adapter, words
        self.how = TokenConfig(patch=adapter.side, finer=adapter.trained.finer, turn=0.0)
        self.words_ms = 0.0  # what reading its words took
        self._own: dict[int | None, OwnInput] = {}
        self._placed: dict[tuple[object, ...], Placement] = {}
        self._pointed: dict[tuple[str, float | str], Tensor] = {}  # where the model looks

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
    def picture(self) -> Picture:
        """The page as it is, on the model's device."""
        return prepare(self.image, self.how, device=self.adapter.device)

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
        if most not in self._own:
            self._own[most] = self.adapter.own_input(self.image, most)
        return self._own[most]

    def placed(
        self,
        question: str,
        allocator: str,
        relevance: str,
        budget: int,
        *,
        turn: float | str = 0.0,
        boxes: Sequence[Box] = (),
    ) -> Placement:
        """Where the tokens lie for a question; placed once.

        relevance: the name of a scorer, or model: where the model itself looks
        turn:      as for `ask`
        boxes:     where the answer stands, which the oracle knows instead
        """
        question = question if reads_question(relevance) else ""
        key = question, allocator, relevance, budget, turn, tuple(map(tuple, boxes))
        if key not in self._placed:
            how = replace(self.how, budget=budget, allocator=allocator, relevance=relevance, turn=turn)
            self._placed[key] = self._place(prepare(self.picture, how), question, how, boxes)
        return self._placed[key]

    def _place(self, picture: Picture, question: str, how: TokenConfig, boxes: Sequence[Box]) -> Placement:
        evidence = None
        if boxes:
            evidence = [box_map(boxes, picture.original.size, picture.memo.maps.grid)[None]]
        elif how.relevance == "model":
            evidence = [self._where_the_model_looks(picture, question, how)]
        else:
            self._keep_words(picture, find_scorer("eval", how.relevance, question))
        how = how if evidence is None else replace(how, relevance=BY_EVIDENCE)
        return place_together([picture], question, how, evidence=evidence)[0]

    def _where_the_model_looks(self, picture: Picture, question: str, how: TokenConfig) -> Tensor:
        key = question, how.turn
        if key not in self._pointed:
            (self._pointed[key],) = attended(self.adapter, question, overview([picture], COARSE_VIEW, how))
        return self._pointed[key]

    def _keep_words(self, picture: Picture, scorer: Scorer) -> None:
        """Give a scorer of words those that OCR has read already: the cache holds them for the page as it is."""
        if scorer.name == "words" and picture.frame.is_whole and id(scorer) not in picture.memo.readings:
            reading, self.words_ms = self.words.words(self.path, picture.texture)
            picture.memo.keep(scorer, (reading,))


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
