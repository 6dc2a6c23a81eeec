"""How paper lies on the scanner: rotated, shifted, slightly bent. Boxes follow their words.

Images are warped by backward mapping: each pixel of the new page reads a position of the old one. Boxes go forward:
their corners pass through the inverse, which for a bent page is found by fixed-point iteration.
"""

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm.train.render.sheet import FINE, Grey, PlacedWord

STEEPEST = math.radians(2)
LEAST_LEFT = 0.85  # share of a word's box that must stay on the page

Points = NDArray[np.float64]


def turn(ink: Grey, words: Sequence[PlacedWord], rng: random.Random) -> tuple[Grey, list[PlacedWord]]:
    """Rotate, scale and shift a sheet by small random amounts, without smoothing (the threshold comes later)."""
    height, width = ink.shape
    angle = max(-STEEPEST, min(STEEPEST, rng.gauss(0, math.radians(0.6))))
    scale = rng.uniform(0.98, 1.02)
    cosine, sine = math.cos(angle) * scale, math.sin(angle) * scale
    shift_x, shift_y = (rng.uniform(-8, 8) * FINE for _ in range(2))
    middle = np.array([width / 2, height / 2])
    pull = np.array([[cosine, sine], [-sine, cosine]])
    offset = middle - pull @ (middle + np.array([shift_x, shift_y]))
    coefficients = (cosine, sine, offset[0], -sine, cosine, offset[1])
    turned = Image.fromarray(ink).transform(
        (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST
    )
    back = np.linalg.inv(pull)
    return np.asarray(turned), moved_words(
        words, lambda points: (points * FINE - offset) @ back.T / FINE, (height // FINE, width // FINE)
    )


def bend(page: Grey, words: Sequence[PlacedWord], rng: random.Random) -> tuple[Grey, list[PlacedWord]]:
    """Bend a page smoothly by up to a few pixels, like a sheet that does not lie flat."""
    height, width = page.shape
    strength = rng.uniform(0.5, 4)
    waves = [(rng.uniform(0.5, 1.6), rng.uniform(0.5, 1.6), rng.uniform(0, 6.3), rng.uniform(0, 6.3)) for _ in "xy"]

    def shift(points: Points) -> Points:
        across, down = points[:, 0] * 3 / width, points[:, 1] * 3 / height
        return strength * np.stack([np.sin(a * across + p) * np.cos(b * down + q) for a, b, p, q in waves], axis=1)

    xs, ys = (np.linspace(0, extent, 9).round() for extent in (width, height))
    grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    pulled = (grid + shift(grid)).reshape(9, 9, 2)
    mesh = [
        (
            (int(xs[i]), int(ys[j]), int(xs[i + 1]), int(ys[j + 1])),
            (*pulled[j, i], *pulled[j + 1, i], *pulled[j + 1, i + 1], *pulled[j, i + 1]),
        )
        for i in range(8)
        for j in range(8)
    ]
    bent = Image.fromarray(page).transform((width, height), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)

    def push(points: Points) -> Points:
        there = points
        for _ in range(3):
            there = points - shift(there)
        return there

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
    limit = np.array([size[1], size[0]], float)
    cut_low, cut_high = np.clip(low, 0, limit), np.clip(high, 0, limit)
    left = np.prod(cut_high - cut_low, axis=1) / np.prod(high - low, axis=1)
    kept = []
    for (text, _), share, corner, opposite in zip(words, left, cut_low.tolist(), cut_high.tolist()):
        if share >= LEAST_LEFT:
            box: Box = (corner[0], corner[1], opposite[0], opposite[1])
            kept.append((text, box))
    return kept
