"""Which way up an image is: the angle of its text.

Spectra give the angle of lines up to quarter turns (ops/line_angles.py). Which quarter it is, the scout's spotter
says: it was trained on upright print, so words that many pages have are found best where the page is upright.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import colour_levels, luma
from texturevlm.frame import QUARTER, upright_frame
from texturevlm.ops.line_angles import line_angles
from texturevlm.scout.question import letter_codes, letter_features
from texturevlm.scout.scout import Scout, load_scout
from texturevlm.scout.spotter import Spots
from texturevlm.text.strings import load_commonness
from texturevlm.types import Texture

LONGEST = 512  # pixels of the longer side that angles are looked for in
SURE_LINES = 3.0  # strength from which a page has lines of text
DOUBTFUL = 2.5  # strength from which it may have some: then words must be found, too
STRAIGHT = 1.5  # degrees: a skew that does no harm
READABLE = 0.18  # how well words are found from which a page is upright; upside down at most 0.15 was seen
LEAST_READABLE = 0.1  # below this no angle is believed
ASKEW = 20.0  # degrees: beyond, no quarter is likelier than another
BETTER = 1.2  # times as readable must another quarter be
_LETTERS = 5  # the least length of the common words that are looked for
_BEST = 30  # spots that are counted


def find_turn(texture: Texture) -> float:
    """The angle of the text of one image, in degrees from +x towards +y (down); 0 if there is none to be found.

    Reads values, so it waits for a GPU.
    """
    return find_turn_and_read(texture)[0]


def find_turn_and_read(texture: Texture) -> tuple[float, Spots | None]:
    """`find_turn`, and what the scout read of the image in its upright frame, if it had to."""
    if texture.batch != 1:
        raise ValueError(f"find_turn: texture must be one image, got a batch of {texture.batch}")
    found = line_angles(small_grey(texture, LONGEST))
    sure = float(found.sure)
    if sure < DOUBTFUL:
        return 0.0, None
    skew = float(found.whole)
    skew = 0.0 if abs(skew) < STRAIGHT else skew
    best = best_quarter(texture, skew)
    if best.angle and best.readable < (LEAST_READABLE if sure >= SURE_LINES else READABLE):
        return 0.0, None
    return best.angle, best.spots


class Reading(NamedTuple):
    """An image turned back by an angle, as the scout reads it."""

    angle: float
    spots: Spots
    readable: float

    @classmethod
    def of(cls, scout: Scout, texture: Texture, angle: float) -> Reading:
        spots = scout.read(upright_frame(texture, angle).show(texture).mipmapped())
        return cls((angle + 180) % 360 - 180, spots, readability(scout, spots))

    @property
    def written(self) -> float:
        """The chance of text at the best spots."""
        chance = self.spots.text.float().sigmoid().flatten()
        return float(chance.topk(min(_BEST, len(chance))).values.mean())


def best_quarter(texture: Texture, skew: float) -> Reading:
    """The reading of an image at an angle, or a quarter or half turn from it, that is clearly the best."""
    scout, likely = load_scout(device=texture.device), abs(skew) <= ASKEW  # a little askew: most likely upright
    tried: list[Reading] = []
    for quarter in (0, 1, -1, 2):
        tried.append(Reading.of(scout, texture, skew + quarter * QUARTER))
        if likely and tried[-1].readable >= READABLE:
            return tried[-1]
    best = max(tried, key=lambda one: one.readable)
    least = BETTER if likely else 1.0
    return best if best.readable >= least * tried[0].readable else tried[0]


def readability(scout: Scout, spots: Spots) -> float:
    """How well common words are found on a page: the mean of the best spots' cosines with any of them."""
    words = common_words(scout)
    cosine = torch.einsum("nc,bcs->bns", words, spots.words.flatten(2).to(words)).float().amax(1)
    clear = cosine * spots.text.float().sigmoid().flatten(1)
    return float(clear.topk(min(_BEST, clear.shape[1])).values.mean())


@lru_cache(maxsize=4)
def common_words(scout: Scout) -> Tensor:
    """(N, EMBEDDING): words that questions about pages have, which pages have too, as the spotter finds them."""
    words = [word for word in load_commonness() if word.isalpha() and len(word) >= _LETTERS]
    device = next(scout.parameters()).device
    with torch.inference_mode():
        return scout.spotter.embed(letter_features(letter_codes(words).to(device)).to(scout.dtype))


def small_grey(texture: Texture, longest: int) -> Tensor:
    """(B, H, W): the image in grey, at most `longest` pixels long."""
    levels = colour_levels(texture.mipmapped())
    fine = [level for level in levels if max(level.shape[2:]) >= min(longest, max(texture.size))][-1]
    shrink = min(1.0, longest / max(fine.shape[2:]))
    size = [max(2, round(side * shrink)) for side in fine.shape[2:]]
    return functional.interpolate(luma(fine).float(), size, mode="area")[:, 0]
