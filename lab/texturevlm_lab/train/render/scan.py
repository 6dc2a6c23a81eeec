"""What scanning does to a sheet: it lies askew or bent, ink spreads or thins, light is uneven, JPEG blurs.

Most real pages were scanned in two tones at twice the size at which they are judged and then reduced, so that is
what happens here: blur, add noise, threshold, downscale. The others stay grey all the way.

Images are warped by backward mapping: each pixel of the new page reads a position of the old one. Boxes go forward:
their corners pass through the inverse, which for a bent page is found by fixed-point iteration.
"""

import io
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.render.sheet import FINE, Grey, PlacedWord

STEEPEST = math.radians(2)
LEAST_LEFT = 0.85  # share of a word's box that must stay on the page
LEAST_INK, MOST_INK = 0.4, 0.9  # of a word must survive the threshold; of its box: more is a bar and no word
BAND = 128  # rows
SAMPLED_WORDS = 32
_ONE, _TWO = np.uint8(1), np.uint8(2)  # a shift by a plain int would be typed as a signed array

Points = NDArray[np.float64]


def scanned(
    generator: np.random.Generator, ink: Grey, words: Sequence[PlacedWord], rng: random.Random
) -> tuple[Grey, list[PlacedWord]]:
    """A sheet on its fine grid (ink 0 to 255) becomes a scanned page (255 is white), and the words follow."""
    placed = list(words)
    if rng.random() < 0.55:
        ink, placed = turn(ink, placed, rng)
    two_toned = rng.random() < 0.6
    if two_toned:
        sharp = ink
        ink = threshold(generator, ink, placed, rng)
        placed = legible_words(placed, sharp, ink)
    rings = rng.random() < 0.3  # some archives downscale with a filter that rings
    small = Image.fromarray(ink).resize(
        (ink.shape[1] // FINE, ink.shape[0] // FINE), Image.Resampling.BICUBIC if rings else Image.Resampling.BOX
    )
    page = np.asarray(small)
    if rng.random() < 0.1:  # the back of the paper shines through: here the page itself, mirrored
        back = np.asarray(Image.fromarray(page[:, ::-1]).filter(ImageFilter.BoxBlur(rng.uniform(0.5, 2))))
        page = np.maximum(page, (back.astype(np.uint16) * rng.randint(8, 36) >> 8).astype(np.uint8))
    if rng.random() < (0.1 if two_toned else 0.4):
        page, placed = bend(page, placed, rng)
    page = _tone(page, rng, white=rng.random() < (0.75 if two_toned else 0.2))
    if rng.random() < (0.05 if two_toned else 0.4):  # shadows: one side of the page darker than the other
        light = _smooth_field(generator, page.shape, rng.triangular(140, 252, 232), 254, rng, finest=4)
        page = (page.astype(np.uint16) * light >> 8).astype(np.uint8)
    if rng.random() <= (0.2 if two_toned else 0.4):
        page = _blur(page, rng)
    if rng.random() < (0.1 if two_toned else 0.5):  # noise of the sensor or of the paper
        strength = rng.randint(2, 24)
        noise = generator.integers(-strength, strength + 1, page.shape, dtype=np.int16)
        page = np.clip(page + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.5:
        stream = io.BytesIO()
        Image.fromarray(page).save(stream, "JPEG", quality=rng.randint(25, 90))
        page = np.array(Image.open(stream))
    return (255 - page if rng.random() < 0.04 else page), placed


def turn(ink: Grey, words: Sequence[PlacedWord], rng: random.Random) -> tuple[Grey, list[PlacedWord]]:
    """Rotate, scale and shift a sheet by small random amounts, without smoothing (the threshold comes later)."""
    height, width = ink.shape
    angle = max(-STEEPEST, min(STEEPEST, rng.gauss(0, math.radians(0.6))))
    scale = rng.uniform(0.98, 1.02)
    cosine, sine = math.cos(angle) * scale, math.sin(angle) * scale
    shift = np.array([rng.uniform(-8, 8) * FINE for _ in range(2)])
    middle = np.array([width / 2, height / 2])
    pull = np.array([[cosine, sine], [-sine, cosine]])
    offset = middle - pull @ (middle + shift)
    coefficients = (cosine, sine, offset[0], -sine, cosine, offset[1])
    turned = Image.fromarray(ink).transform((width, height), Image.Transform.AFFINE, coefficients)
    back = np.linalg.inv(pull)

    def push(points: Points) -> Points:
        pushed: Points = (points * FINE - offset) @ back.T / FINE
        return pushed

    return np.asarray(turned), moved_words(words, push, (height // FINE, width // FINE))


def bend(page: Grey, words: Sequence[PlacedWord], rng: random.Random) -> tuple[Grey, list[PlacedWord]]:
    """Bend a page smoothly by up to a few pixels, like a sheet that does not lie flat."""
    height, width = page.shape
    strength = rng.uniform(0.5, 4)
    waves = [(rng.uniform(0.5, 1.6), rng.uniform(0.5, 1.6), rng.uniform(0, 6.3), rng.uniform(0, 6.3)) for _ in "xy"]

    def shift(points: Points) -> Points:
        across, down = points[:, 0] * 3 / width, points[:, 1] * 3 / height
        return strength * np.stack([np.sin(a * across + p) * np.cos(b * down + q) for a, b, p, q in waves], axis=1)

    def push(points: Points) -> Points:
        there = points
        for _ in range(3):
            there = points - shift(there)
        return there

    xs, ys = (np.linspace(0, extent, 9).round().astype(int).tolist() for extent in (width, height))
    grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    pulled = (grid + shift(grid)).reshape(9, 9, 2)
    mesh = []
    for i, j in np.ndindex(8, 8):
        quad = (*pulled[j, i], *pulled[j + 1, i], *pulled[j + 1, i + 1], *pulled[j, i + 1])
        mesh.append(((xs[i], ys[j], xs[i + 1], ys[j + 1]), quad))
    bent = Image.fromarray(page).transform((width, height), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)
    return np.asarray(bent), moved_words(words, push, (height, width))


def moved_words(
    words: Sequence[PlacedWord], push: Callable[[Points], Points], size: tuple[int, int]
) -> list[PlacedWord]:
    """The words with the boxes around their mapped corners, cut to the page; without those that left it."""
    if not words:
        return []
    boxes = np.array([box for _, box in words])
    corners = push(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)).reshape(-1, 4, 2)
    low, high = corners.min(axis=1), corners.max(axis=1)
    cut_low, cut_high = (np.clip(part, 0, np.array(size[::-1], float)) for part in (low, high))
    stays = np.prod(cut_high - cut_low, axis=1) / np.prod(high - low, axis=1) >= LEAST_LEFT
    moved: list[Box] = list(map(tuple, np.hstack([cut_low, cut_high]).tolist()))
    return [(text, box) for (text, _), box, kept in zip(words, moved, stays) if kept]


def threshold(generator: np.random.Generator, ink: Grey, words: Sequence[PlacedWord], rng: random.Random) -> Grey:
    """Two tones. A low threshold makes letters fat, a high one breaks them; noise makes their edges ragged.

    The threshold is a share of what the softened strokes of the words come to, so that thin and pale print survives.
    It works down the page in bands that fit in the processor's cache, all with the same noise.
    """
    soft = smooth(ink)
    if rng.random() < 0.3:
        soft = smooth(soft)
    level = _stroke_ink(soft, words) * rng.triangular(0.3, 0.85, 0.55)
    roughness = min(100, int(level * rng.choice((0.0, 0.3, 0.6, 0.9)) * rng.random()))
    if rng.random() < 0.35:
        _add_specks(generator, soft, rng)
    if rng.random() < 0.25:  # ribbon, toner and pressure vary over the page
        limits = _smooth_field(generator, ink.shape, level * 0.7, min(200, level * 1.3), rng)
    else:
        limits = np.broadcast_to(np.uint8(level), ink.shape)
    noise = generator.integers(0, roughness + 1, (BAND, ink.shape[1]), dtype=np.uint8)
    tones = np.empty(ink.shape, np.uint8)
    for top in range(0, ink.shape[0], BAND):
        band = soft[top : top + BAND]
        limit = limits[top : top + BAND] - np.uint8(roughness // 2) + noise[: len(band)]
        np.multiply(band > limit, np.uint8(255), out=tones[top : top + BAND])
    return tones


def smooth(ink: Grey) -> Grey:
    """Each pixel with a quarter of its neighbours, along both axes; in bytes, since the fine grid is large."""
    down, quarter = ink >> _ONE, ink >> _TWO
    down[1:] += quarter[:-1]
    down[:-1] += quarter[1:]
    across, quarter = down >> _ONE, down >> _TWO
    across[:, 1:] += quarter[:, :-1]
    across[:, :-1] += quarter[:, 1:]
    return across


def _pixels(box: Box, step: int = 1) -> tuple[slice, slice]:
    """The rows and columns of the fine grid that a box takes, every `step`-th."""
    left, top, right, bottom = (int(edge * FINE) for edge in box)
    return slice(top, bottom, step), slice(left, right, step)


def _stroke_ink(soft: Grey, words: Sequence[PlacedWord]) -> float:
    """How dark the strokes of the thinner words are, from a few dozen words."""
    sampled = [np.sort(soft[_pixels(box)], axis=None) for _, box in words[:: max(1, len(words) // SAMPLED_WORDS)]]
    darkest = [values[int(len(values) * 0.9)] for values in sampled]
    return float(np.quantile(darkest, 0.3)) if darkest else 200.0


def legible_words(words: Sequence[PlacedWord], before: Grey, after: Grey) -> list[PlacedWord]:
    """The words that keep enough ink to be legible and do not lie in a black bar."""
    kept = []
    for text, box in words:
        spot = _pixels(box, 2)
        left_over = int(after[spot].sum())
        if LEAST_INK * int(before[spot].sum()) <= left_over <= MOST_INK * 255 * after[spot].size:
            kept.append((text, box))
    return kept


def _add_specks(generator: np.random.Generator, ink: Grey, rng: random.Random) -> None:
    """Dust and holes, put into the ink itself: small dots of ink on the paper and of paper in the ink."""
    height, width = ink.shape
    for value, most in ((255, 5e-4), (0, 2e-3)):
        count = int(ink.size * most * rng.random() ** 3)
        rows, columns = generator.integers(0, height - 2, count), generator.integers(0, width - 2, count)
        ink[rows, columns] = value
        large = slice(0, count // 3)
        for down, across in ((0, 1), (1, 0), (1, 1)):
            ink[rows[large] + down, columns[large] + across] = value


def _smooth_field(
    generator: np.random.Generator,
    size: Sequence[int],
    low: float,
    high: float,
    rng: random.Random,
    *,
    finest: int = 12,
) -> Grey:
    """Values between low and high that change slowly over the page."""
    knots = generator.uniform(max(low, 1), min(high, 254), (rng.randint(2, finest), rng.randint(2, finest)))
    coarse = Image.fromarray(knots.astype(np.uint8))
    return np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC))


def _tone(page: Grey, rng: random.Random, *, white: bool) -> Grey:
    """From ink to grey values: the paper's white, the ink's black, and how one goes into the other."""
    paper = 255.0 if white else rng.triangular(175, 255, 250)
    black = min(rng.uniform(0, 20) if white else rng.triangular(0, 120, 25), paper - 60)
    table = paper + (black - paper) * np.linspace(0, 1, 256) ** rng.uniform(0.7, 1.5)
    return np.asarray(Image.fromarray(page).point(table.astype(int).tolist()))


def _blur(page: Grey, rng: random.Random) -> Grey:
    """Out of focus, or scanned too small and enlarged."""
    image = Image.fromarray(page)
    if rng.random() < 0.6:
        return np.asarray(image.filter(ImageFilter.BoxBlur(rng.uniform(0.2, 0.9))))
    share = rng.uniform(0.7, 0.95)
    size = (max(1, int(image.width * share)), max(1, int(image.height * share)))
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR).resize(image.size, Image.Resampling.BICUBIC))
