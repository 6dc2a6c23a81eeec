"""How well a map finds a place before tokens are chosen by it, and what they deliver of the place after that.

Shared by several studies. A place is the box of an answer, object or face. Three measures, from 0 to 1: the share of
the place in the tenth of the cells with the highest values; the share of fine tokens that lie on it; its expected
legibility: the legibility curve at the scale that was delivered (docs/metric.md), the mean over its cells that are not
blank. No OCR is needed, and nothing is said about what a model understands.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.allocate.value import delivered_scale
from texturevlm.defaults import PATCH
from texturevlm.placement import choose_tokens
from texturevlm.relevance import Balance
from texturevlm.relevance.maps import ImageMaps, legibility
from texturevlm.relevance.words import WORD_HEIGHT
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.asked_page import box_map
from texturevlm_lab.evaluate.markdown import format_interval
from texturevlm_lab.evaluate.objects import on_objects
from texturevlm_lab.studies.relevance import gain

TOP = 0.1
BUDGET, SHARE = 64, 0.2  # tokens, and of those that show all of an image at its own resolution at most this share
TENTH, FINE, LEGIBLE = "share in the top tenth", "fine tokens on it", "expected legibility"
MEASURES = (TENTH, FINE, LEGIBLE)


def tokens_by(logits: Tensor, texture: Texture, maps: ImageMaps) -> Allocation:
    """The tokens that the channel scorer chooses where it has these logits, (h, w)."""
    query = logits.flatten().softmax(0).view_as(logits)[None]
    relevance = Balance().weigh(query, maps, texture.size, "channels")
    height, width = texture.size
    budget = min(BUDGET, max(1, round(SHARE * height * width / PATCH**2)))
    return choose_tokens(texture, budget=budget, relevance=relevance)


def measured(values: Tensor, chosen: Allocation, maps: ImageMaps, boxes: Sequence[Box]) -> dict[str, float]:
    """values: (h, w), by which the tokens were chosen"""
    place = box_map(boxes, chosen.size, maps.grid)
    printed = place * maps.ink[0]
    read = legibility(maps.legible_scale, delivered_scale(chosen, maps.grid))[0]
    legible = float((printed * read).sum() / printed.sum()) if printed.any() else 0.0
    fine = on_objects(chosen, boxes)["fine_on_objects"]
    return {TENTH: top_share(values, place), FINE: fine, LEGIBLE: legible}


def top_share(values: Tensor, place: Tensor) -> float:
    """The share of a place in the tenth of the cells with the highest values."""
    best = values.flatten().topk(max(1, int(TOP * values.numel()))).indices
    return float(place.flatten()[best].sum() / place.sum())


def legible_at(box: Sequence[float], scale: np.ndarray, size: Sequence[int], times: float = 1.0) -> float:
    """How legible text as tall as a box is at the scale that is delivered at the box's centre, by the legibility curve.

    scale: (h, w), pixels per sample over an image of `size` (height, width); times: pixels of the box per such pixel
    """
    left, top, right, bottom = box
    row, column = (
        min(cells - 1, int((low + high) / 2 / extent * cells))
        for low, high, extent, cells in zip((top, left), (bottom, right), size, scale.shape)
    )
    return float(legibility(np.array((bottom - top) / WORD_HEIGHT), times * float(scale[row, column])))


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each measure over the places of an image."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def compared_cell(values: Sequence[float], before: Sequence[float] | None, groups: Sequence[str]) -> str:
    """A mean, and its difference to the row before with an interval; groups: what is resampled together."""
    mean = f"{np.mean(values):.3f}"
    if before is None:
        return mean
    return f"{mean} [{format_interval(gain(np.subtract(values, before), groups))}]"
