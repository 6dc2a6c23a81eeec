"""One image, prepared once for any number of questions: mip levels, maps, words.

What does not depend on the question is computed when it is first needed, and kept.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.nn import functional

from texturevlm.ask.sources import open_image
from texturevlm.cuda.graph import can_capture
from texturevlm.ops import backend as backends
from texturevlm.pipeline import question_chance
from texturevlm.relevance import Balance, Prepared, Relevance, Scorer, find_scorer
from texturevlm.relevance.orientation import find_turn_and_read
from texturevlm.relevance.text_regions import find_regions
from texturevlm.scout import Spots
from texturevlm.turned import TextRegion, following, turned_back, turned_upright, upright_frame
from texturevlm.types import COLOURS, Allocation, Texture
from texturevlm.vlm.finer import Finer

TIMES = 2  # that an image is enlarged
_AS_OCR = Finer()
_SMALL = 1_250_000  # pixels: pages with fewer have print of ten pixels and less


class PreparedImage:
    """An image for a model whose tokens are `patch` × `patch` samples.

    source:  as for `open_image`
    original: the image; texture: the same, turned upright by `turn` and perhaps enlarged, which tokens are chosen in
             and sampled from
    frame:   of the texture in the original, before it is enlarged
    finer:   how many times as finely as OCR the model must see print, by budgets. If that is above 1 at any budget, a
             small image is enlarged, because no sample of a texture is finer than a pixel
    regions: of the texture, whose text has another angle
    samples: that all questions will take; where the measured crossover says that it pays, the texture is kept in the
             texture units
    """

    def __init__(
        self, source: Any, *, patch: int, device: torch.device, finer: Finer = _AS_OCR, samples: int = 0
    ) -> None:
        self.samples, self.finer = samples, finer
        self.original = self.texture = self._kept(open_image(source, device).mipmapped())
        self.patch, self.frame = patch, upright_frame(self.original, 0.0)
        self.prepared = Prepared(self.texture, patch=patch)
        plain = self.original.pages is None and self.original.names == COLOURS
        self._grows = plain and finer.most > 1 and prod(self.original.size) <= _SMALL
        self.times = 1  # how many times as large as its frame the texture is
        self.enlarge(True)
        self.regions: list[TextRegion] = []
        self._found: tuple[float, Spots | None] | None = None  # of `find_turn_and_read`
        self._regions: list[TextRegion] = []  # that were found then

    def enlarge(self, wanted: bool) -> None:
        """Show a small image larger, if the model needs finer print; or as large as it is."""
        times = TIMES if wanted and self._grows else 1
        if times != self.times:
            self.times = times
            self._prepare_again()

    def turn(self, turn: float | str) -> None:
        """Turn the image upright by the angle of its text, or by the angle that is found (auto)."""
        if isinstance(turn, str):
            if self._found is None:
                self._found = find_turn_and_read(self.original)
                self._turn_by(self._found[0])
                self._keep_reading(self._found[1])
                self._regions = find_regions(self.texture)
            self._turn_by(self._found[0])
            self.regions = self._regions
        else:
            self._turn_by(turn)
            self.regions = []

    def _turn_by(self, angle: float) -> None:
        if angle != self.frame.angle:
            self.frame = upright_frame(self.original, angle)
            self._prepare_again()

    def _keep_reading(self, spots: Spots | None) -> None:
        """The scout's reading serves its scorers; not where a graph reads anew for less."""
        if spots is not None and not can_capture(spots.text.device) and self.times == 1:
            for name in ("scout", "prior"):
                self.prepared.keep(find_scorer("ask", name), spots)

    def followed(self, allocation: Allocation) -> Allocation:
        """Footprints in the texture; those in regions are turned with the text there. This is what a model reads."""
        return following(allocation, self.regions) if self.regions else allocation

    def as_given(self, allocation: Allocation) -> Allocation:
        """Footprints in the texture as footprints in the original, turned with its text."""
        return turned_back(self.followed(allocation).scaled_to(self.frame.size), self.frame)

    def relevance_as_given(self, relevance: Relevance) -> Relevance:
        """The relevance of the texture, with lengths in the pixels of its frame."""
        if self.times == 1:
            return relevance
        return replace(relevance, legible_scale=relevance.legible_scale / self.times, size=self.frame.size)

    @property
    def max_tokens(self) -> int:
        """The tokens that show the texture at its own resolution; more tokens add nothing."""
        height, width = self.texture.size
        return -(-height // self.patch) * -(-width // self.patch)

    def relevance(self, question: str, *, budget: float, relevance: str | Scorer = "auto") -> Relevance:
        """The relevance of each cell for a question; nothing is computed twice.

        budget:    of tokens in this image, which decides how finely print must be shown
        relevance: as in `choose_tokens`
        """
        return self.prepared.find(question, scorer=relevance, balance=self.balance(budget))

    def for_budget(self, relevance: Relevance, budget: float, *, made_for: float) -> Relevance:
        """A relevance that was made for one budget, for another one."""
        times = self.finer.at(budget) / self.finer.at(made_for)
        return relevance if times == 1 else replace(relevance, legible_scale=relevance.legible_scale / times)

    def balance(self, budget: float) -> Balance:
        """What `finer` says for a budget."""
        return Balance(particularise=self.finer.at(budget))

    def chance(self, question: str, relevance: Relevance) -> float:
        """The chance that a question to several images is about this one."""
        return question_chance(self.prepared, question, relevance)

    def on(self, device: torch.device) -> None:
        """Move to the device of a model that was moved."""
        if self.texture.device == device:
            return
        self.original = self._kept(self.original.to(device))
        if self.frame.angle or self.times > 1:
            self._prepare_again()
        else:
            self.texture = self.original
            self.prepared = self.prepared.moved(self.texture)

    def _prepare_again(self) -> None:
        upright = turned_upright(self.original, self.frame)
        self.texture = self._kept(enlarged(upright, self.times).mipmapped())
        self.prepared = Prepared(self.texture, patch=self.patch)

    def _kept(self, texture: Texture) -> Texture:
        """A texture in the texture units, if so many samples pay for that."""
        finest = texture.levels[0]
        if texture.pages is not None or texture.resident is not None or backends.no_kernel_because(finest):
            return texture
        return texture.on_device() if backends.texture_pays(finest, self.samples) else texture


def enlarged(texture: Texture, times: int) -> Texture:
    """The image so many times as large, level 0 alone."""
    if times == 1:
        return texture
    image = texture.levels[0]
    found = functional.interpolate(image.float(), scale_factor=float(times), mode="bicubic").clamp(0, 1)
    height, width = texture.size
    return replace(texture, levels=(found.to(image.dtype),), size=(height * times, width * times), resident=None)
