"""Relevance from the scout, the small network that comes with the package: milliseconds, no OCR."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from texturevlm.relevance.maps import ImageMaps
from texturevlm.scout.question import Question
from texturevlm.scout.scout import load_scout
from texturevlm.scout.spotter import Spots
from texturevlm.text.strings import terms
from texturevlm.types import Texture


class ScoutScorer:
    """The scout's probability that the answer is at a spot, spread over the cells that are not blank."""

    name, description, capturable, calibrated = "scout", "the scout", True, True

    def prepare(self, texture: Texture) -> Spots:
        """The scout's reading of the images."""
        return load_scout(device=texture.device).read(texture)

    def score(self, prepared: Spots, question: str | Question, maps: ImageMaps) -> tuple[Tensor | None, ImageMaps]:
        """question: an encoded one (`scout.encode`) always counts as asked: reading it would wait for the GPU."""
        if isinstance(question, str) and not terms(question):
            return None, maps
        chance = load_scout(device=prepared.text.device).where(prepared, question)
        return _on_cells(chance, maps.ink), maps


def _on_cells(chance: Tensor, ink: Tensor) -> Tensor:
    """The chances of spots (B, rows, columns) on the grid of `ink` (B, h, w); their sum stays."""
    rows, columns = chance.shape[1:]
    grid = ink.shape[1:]
    wide = chance[:, None]
    if grid[0] < rows or grid[1] < columns:  # a long page: several spots per cell, none is lost
        wide = functional.interpolate(wide, (min(rows, grid[0]), min(columns, grid[1])), mode="area")
    # A spot's chance is shared by its cells; a blank cell takes nothing.
    wide = functional.interpolate(wide, grid, mode="nearest-exact")[:, 0] * ink
    return wide * (chance.sum((1, 2)) / wide.sum((1, 2)).clamp(min=1e-30))[:, None, None]
