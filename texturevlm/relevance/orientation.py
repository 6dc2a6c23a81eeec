"""Which way text runs: the angle of an image's text, and the parts of it whose text has an angle of its own.

Lines of text are stripes: their energy lies along one direction of a window's spectrum, that of strokes along the
direction across it. Both repeat every 90 degrees, so spectra give an angle up to quarter turns, -45 to 45 degrees.
Which quarter it is, the scout's spotter says: it was trained on upright print, so words that many pages have are found
best where the page is upright.

Stamps, signs and handwriting across a page are regions: windows whose lines have nearly one angle. The spotter reads a
region turned upright, as it reads whole pages: it says whether there is text, and which way it runs. A sign may hold no
word that the spotter knows; then it is not taken to be upside down.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import colour_levels, luma
from texturevlm.check import check_floating, check_shapes
from texturevlm.frame import QUARTER, TextRegion, upright_frame
from texturevlm.scout import Scout, Spots, letter_codes, letter_features, load_scout
from texturevlm.text import load_commonness
from texturevlm.types import Texture

WINDOW = 128  # pixels: two to ten lines of text, where an A4 page is 768 pixels long
STRIDE = 64
STEP = 0.5  # degrees between angles that are tried
_RADII = 48
_BAND = (0.05, 0.25)  # cycles per pixel: distances of lines between 4 and 20 pixels
_FLAT = 1e-3  # variance below which a window counts as blank
_SPREAD = 2.0  # degrees: the peak is looked for in a profile that is smoothed so far


class LineAngles(NamedTuple):
    """Angles in degrees, -45 to 45, from +x towards +y, which is down.

    angle:    (B, h, w), of each window
    strength: (B, h, w), how much the profile's peak stands out from its mean; 0 where a window is blank
    whole:    (B,), of all windows together
    sure:     (B,), the strength of that
    """

    angle: Tensor
    strength: Tensor
    whole: Tensor
    sure: Tensor


def line_angles(grey: Tensor) -> LineAngles:
    """grey: (B, H, W), 0 to 1, at least 2 × 2; windows of WINDOW pixels, one every STRIDE"""
    check_shapes("line_angles", grey=(grey, "B H W"))
    check_floating("line_angles", grey=grey)
    profile, flat = _profiles(grey.float())
    shape = profile.shape[:3]
    inked = (~flat).float()
    together = (profile * inked[..., None]).sum((1, 2)) / inked.sum((1, 2)).clamp(min=1)[:, None]
    angle, strength = _peak(profile.flatten(0, 2))
    whole, sure = _peak(together)
    return LineAngles(angle.view(shape), strength.view(shape) * inked, whole, sure)


def window_centres(count: int) -> Tensor:
    """(count,): the centres of the windows along an axis, in pixels."""
    return torch.arange(count) * STRIDE + WINDOW / 2


def _profiles(grey: Tensor) -> tuple[Tensor, Tensor]:
    """(B, h, w, A): the energy of each window by angle, its mean 1; and (B, h, w) whether a window is blank."""
    paper = grey.flatten(1).median(1).values[:, None, None]
    height, width = grey.shape[1:]
    after = [max(0, WINDOW - side) or -(side - WINDOW) % STRIDE for side in (width, height)]
    padded = functional.pad(grey - paper, (0, after[0], 0, after[1]))
    windows = padded.unfold(1, WINDOW, STRIDE).unfold(2, WINDOW, STRIDE)
    flat = windows.var((-1, -2)) < _FLAT
    fade = torch.hann_window(WINDOW, periodic=False, device=grey.device)
    faded = (windows - windows.mean((-1, -2), keepdim=True)) * fade[:, None] * fade
    power = torch.fft.fftshift(torch.fft.fft2(faded).abs().square(), dim=(-2, -1))
    table = power.reshape(-1, 1, WINDOW, WINDOW)
    points = _along(grey.device).expand(len(table), -1, -1, -1)
    energy = functional.grid_sample(table, points, align_corners=False)[:, 0].sum(-1)
    # A quarter turn maps lines onto strokes: both vote.
    lines, strokes = energy.chunk(2, 1)
    folded = lines + strokes
    folded = folded / folded.mean(1, keepdim=True).clamp(min=1e-12)
    return folded.view(*flat.shape, -1), flat


@lru_cache(maxsize=8)
def _along(device: torch.device) -> Tensor:
    """(1, 2 A, radii, 2): points of the spectrum across lines of each angle, then across those a quarter turn on."""
    angle = torch.deg2rad(_angles() + 90)
    angle = torch.cat([angle, angle + math.pi / 2])
    radius = torch.linspace(*_BAND, _RADII)
    points = 2 * torch.stack([radius * angle.cos()[:, None], radius * angle.sin()[:, None]], -1)
    return (points + 1 / WINDOW)[None].to(device)  # the frequency 0 lies in the centre of a texel


def _angles() -> Tensor:
    return torch.arange(-45, 45, STEP)


def _peak(profile: Tensor) -> tuple[Tensor, Tensor]:
    """(N, A) → the angle (N,) of the highest point of the smoothed profile, and its height over the mean."""
    reach = round(_SPREAD / STEP)
    wrapped = functional.pad(profile[:, None], (reach, reach), mode="circular")
    weights = 1 - torch.arange(-reach, reach + 1, device=profile.device).abs() / (reach + 1)
    smooth = functional.conv1d(wrapped, (weights / weights.sum())[None, None])[:, 0]
    height, index = smooth.max(1)
    return _angles().to(profile.device)[index], height


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


LONGEST_CUT = 768  # pixels of the longer side that windows are cut from
OWN_ANGLE = 8.0  # degrees: less than that is not worth a turn
STRONG = 2.5  # strength of a window with lines of text
ALIKE = 4.0  # degrees between neighbours of one region
ONE_TEXT = 12.0  # degrees between regions that are one text: lines of a sign that is seen from the side
FEWEST, MOST = 3, 4  # windows of a region; regions of an image, the largest
WRITTEN = 0.95  # chance of text at the best spots; print has .99 and more, other textures at most .81 were seen


def find_regions(texture: Texture) -> list[TextRegion]:
    """The regions of one upright image, the largest first; most images have none. Reads values: waits for a GPU."""
    grey = small_grey(texture, LONGEST_CUT)
    found = line_angles(grey)
    angle, strength = found.angle[0].cpu(), found.strength[0].cpu()
    across, down = texture.size[1] / grey.shape[2], texture.size[0] / grey.shape[1]
    groups = _groups(angle, (angle.abs() >= OWN_ANGLE) & (strength >= STRONG))
    regions = []
    for members in sorted((one for one in groups if len(one) >= FEWEST), key=len, reverse=True)[:MOST]:
        rows, columns = torch.tensor(members).unbind(1)
        x, y = window_centres(angle.shape[1])[columns] * across, window_centres(angle.shape[0])[rows] * down
        reach = torch.tensor([across, down, across, down]) * (STRIDE / 2) * torch.tensor([-1, -1, 1, 1])
        cells = torch.stack([x, y, x, y], -1) + reach
        skew = _median(angle[rows, columns])
        reading = upright_reading(_crop(texture, cells), skew)
        if reading.written >= WRITTEN:
            regions.append(TextRegion(reading.angle, cells))
    return _joined(regions)


def upright_reading(part: Texture, skew: float) -> Reading:
    """A part of an image whose lines have an angle up to quarter turns, as it is read best.

    Whether lines run along the angle or across it, the chance of text says: it is high at half turns, too. Whether they
    are upside down, known words must say.
    """
    scout = load_scout(device=part.device)
    along = Reading.of(scout, part, skew)
    if along.readable >= READABLE:
        return along
    across, other, turned = (Reading.of(scout, part, skew + quarter * QUARTER) for quarter in (1, -1, 2))
    if max(across.written, other.written) > max(along.written, turned.written):
        return max(across, other, key=lambda one: one.readable)
    return turned if turned.readable >= READABLE else along


def _groups(angle: Tensor, marked: Tensor) -> list[list[tuple[int, int]]]:
    """Marked windows that touch, side by side or at a corner, and have nearly one angle."""
    left = {(row, column) for row, column in marked.nonzero().tolist()}
    found = []
    while left:
        group, reached = [], [left.pop()]
        while reached:
            row, column = reached.pop()
            group.append((row, column))
            around = [(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            for one in [one for one in around if one in left and abs(_apart(angle[one], angle[row, column])) <= ALIKE]:
                left.remove(one)
                reached.append(one)
        found.append(group)
    return found


def _joined(regions: list[TextRegion]) -> list[TextRegion]:
    """Texts that touch and have about one angle are one: each turned by itself, they would lie on one another."""
    found: list[TextRegion] = []
    for one in regions:
        for number, other in enumerate(found):
            apart = (one.angle - other.angle + 180) % 360 - 180
            if abs(apart) <= ONE_TEXT and _touch(one.cells, other.cells):
                cells = torch.cat([other.cells, one.cells])
                found[number] = TextRegion(other.angle + apart * len(one.cells) / len(cells), cells)
                break
        else:
            found.append(one)
    return found


def _touch(cells: Tensor, others: Tensor) -> bool:
    """Whether at most one window lies between cells, (n, 4) and (m, 4) of one size, xyxy."""
    steps = (cells[:, None, :2] - others[:, :2]).abs() / (cells[0, 2:] - cells[0, :2])
    return bool((steps.amax(-1) <= 2 + 1e-3).any())


def _apart(angle: Tensor, other: Tensor) -> Tensor:
    """The difference of angles that are known up to quarter turns, -45 to 45 degrees."""
    return (angle - other + QUARTER / 2).remainder(QUARTER) - QUARTER / 2


def _median(angles: Tensor) -> float:
    """The median of angles that are alike, up to quarter turns."""
    return float(angles[0] + _apart(angles, angles[0]).median())


def _crop(texture: Texture, cells: Tensor) -> Texture:
    """The part of the image around cells, xyxy, with a cell's margin."""
    height, width = texture.size
    margin = (cells[0, 2:] - cells[0, :2]) / 2
    low, high = (cells[:, :2].amin(0) - margin).clamp(min=0), cells[:, 2:].amax(0) + margin
    left, top = (int(one) for one in low)
    right, bottom = min(width, int(high[0]) + 1), min(height, int(high[1]) + 1)
    return Texture((texture.levels[0][..., top:bottom, left:right].contiguous(),), texture.names)
