"""What scanning does to a sheet: ink that spreads or thins, specks, a threshold, uneven light, blur, JPEG.

Most real pages were scanned in two tones at twice the size at which they are judged and then reduced, so that is
what happens here: blur, add noise, threshold, downscale. The others stay grey all the way.
"""

import io
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageFilter

from texturevlm.train.render.geometry import bend, turn
from texturevlm.train.render.sheet import FINE, Grey, PlacedWord

ONE, TWO = np.uint8(1), np.uint8(2)  # a shift by a plain int would be typed as a signed array
MOST_INK = 0.9  # of a word's box: more is no longer a word but a bar
BAND = 128  # rows
SAMPLED_WORDS = 32
LEAST_INK = 0.4  # of a word must survive the threshold for the word to count


def degrade(
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
    page = downscale(ink, rng)
    if rng.random() < 0.1:
        page = bleed(page, rng)
    if rng.random() < (0.1 if two_toned else 0.4):
        page, placed = bend(page, placed, rng)
    page = tone(page, rng, white=rng.random() < (0.75 if two_toned else 0.2))
    if rng.random() < (0.05 if two_toned else 0.4):
        page = uneven_light(generator, page, rng)
    page = blur(page, rng, chance=0.2 if two_toned else 0.4)
    if rng.random() < (0.1 if two_toned else 0.5):
        page = grain(generator, page, rng)
    if rng.random() < 0.5:
        page = jpeg(page, quality=rng.randint(25, 90))
    if rng.random() < 0.04:
        page = 255 - page
    return page, placed


def threshold(generator: np.random.Generator, ink: Grey, words: Sequence[PlacedWord], rng: random.Random) -> Grey:
    """Two tones. A low threshold makes letters fat, a high one breaks them; noise makes their edges ragged.

    The threshold is a share of what the softened strokes of the words come to, so that thin and pale print survives.
    It works down the page in bands that fit in the processor's cache, all with the same noise.
    """
    soft = smooth(ink)
    if rng.random() < 0.3:
        soft = smooth(soft)
    level = stroke_ink(soft, words) * rng.triangular(0.3, 0.85, 0.55)
    roughness = min(100, int(level * rng.choice((0.0, 0.3, 0.6, 0.9)) * rng.random()))
    if rng.random() < 0.35:
        specks(generator, soft, rng)
    if rng.random() < 0.25:  # ribbon, toner and pressure vary over the page
        limits = smooth_field(generator, (ink.shape[0], ink.shape[1]), level * 0.7, min(200, level * 1.3), rng)
    else:
        limits = np.broadcast_to(np.uint8(level), ink.shape)
    noise = generator.integers(0, roughness + 1, (BAND, ink.shape[1]), dtype=np.uint8)
    tones = np.empty(ink.shape, np.uint8)
    for top in range(0, ink.shape[0], BAND):
        band = soft[top : top + BAND]
        limit = limits[top : top + BAND] - np.uint8(roughness // 2) + noise[: len(band)]
        np.multiply(band > limit, np.uint8(255), out=tones[top : top + BAND])
    return tones


def stroke_ink(soft: Grey, words: Sequence[PlacedWord]) -> float:
    """How dark the strokes of the thinner words are, from a few dozen words."""
    darkest = []
    for _, box in words[:: max(1, len(words) // SAMPLED_WORDS)]:
        left, top, right, bottom = (int(edge * FINE) for edge in box)
        spot = np.sort(soft[top:bottom, left:right], axis=None)
        darkest.append(spot[int(len(spot) * 0.9)])
    return float(np.quantile(darkest, 0.3)) if darkest else 200.0


def smooth(ink: Grey) -> Grey:
    """Each pixel with a quarter of its neighbours, along both axes; in bytes, since the fine grid is large."""
    down, quarter = ink >> ONE, ink >> TWO
    down[1:] += quarter[:-1]
    down[:-1] += quarter[1:]
    across, quarter = down >> ONE, down >> TWO
    across[:, 1:] += quarter[:, :-1]
    across[:, :-1] += quarter[:, 1:]
    return across


def legible_words(words: Sequence[PlacedWord], before: Grey, after: Grey) -> list[PlacedWord]:
    """The words that keep enough ink to be legible and do not lie in a black bar."""
    kept = []
    for word in words:
        left, top, right, bottom = (int(edge * FINE) for edge in word[1])
        spot = slice(top, bottom, 2), slice(left, right, 2)
        left_over, whole = int(after[spot].sum()), 255 * after[spot].size
        if left_over >= LEAST_INK * int(before[spot].sum()) and left_over <= MOST_INK * whole:
            kept.append(word)
    return kept


def specks(generator: np.random.Generator, ink: Grey, rng: random.Random) -> None:
    """Dust and holes, put into the ink itself: small dots of ink on the paper and of paper in the ink."""
    height, width = ink.shape
    for value, most in ((255, 5e-4), (0, 2e-3)):
        count = int(ink.size * most * rng.random() ** 3)
        rows, columns = generator.integers(0, height - 2, count), generator.integers(0, width - 2, count)
        ink[rows, columns] = value
        large = slice(0, count // 3)
        for down, across in ((0, 1), (1, 0), (1, 1)):
            ink[rows[large] + down, columns[large] + across] = value


def smooth_field(
    generator: np.random.Generator,
    size: tuple[int, int],
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


def downscale(ink: Grey, rng: random.Random) -> Grey:
    """From the fine grid to the page; some archives downscale with a filter that rings."""
    image = Image.fromarray(ink)
    if rng.random() < 0.3:
        return np.asarray(image.resize((ink.shape[1] // FINE, ink.shape[0] // FINE), Image.Resampling.BICUBIC))
    return np.asarray(image.reduce(FINE))


def bleed(page: Grey, rng: random.Random) -> Grey:
    """The back of the paper shines through: here the page itself, mirrored."""
    back = Image.fromarray(page[:, ::-1]).filter(ImageFilter.BoxBlur(rng.uniform(0.5, 2)))
    strength = rng.randint(8, 36)
    return np.maximum(page, (np.asarray(back).astype(np.uint16) * strength >> 8).astype(np.uint8))


def tone(page: Grey, rng: random.Random, *, white: bool) -> Grey:
    """From ink to grey values: the paper's white, the ink's black, and how one goes into the other."""
    paper = 255.0 if white else rng.triangular(175, 255, 250)
    black = rng.uniform(0, 20) if white else rng.triangular(0, 120, 25)
    if paper - black < 60:
        black = paper - 60
    steepness = rng.uniform(0.7, 1.5)
    table = paper + (black - paper) * np.linspace(0, 1, 256) ** steepness
    return np.asarray(Image.fromarray(page).point(table.astype(int).tolist()))


def uneven_light(generator: np.random.Generator, page: Grey, rng: random.Random) -> Grey:
    """Shadows: one side of the page darker than the other."""
    light = smooth_field(generator, (page.shape[0], page.shape[1]), rng.triangular(140, 252, 232), 254, rng, finest=4)
    return (page.astype(np.uint16) * light >> 8).astype(np.uint8)


def blur(page: Grey, rng: random.Random, *, chance: float) -> Grey:
    """Out of focus, or scanned too small and enlarged."""
    if rng.random() > chance:
        return page
    image = Image.fromarray(page)
    if rng.random() < 0.6:
        return np.asarray(image.filter(ImageFilter.BoxBlur(rng.uniform(0.2, 0.9))))
    share = rng.uniform(0.7, 0.95)
    small = image.resize(
        (max(1, int(image.width * share)), max(1, int(image.height * share))), Image.Resampling.BILINEAR
    )
    return np.asarray(small.resize(image.size, Image.Resampling.BICUBIC))


def grain(generator: np.random.Generator, page: Grey, rng: random.Random) -> Grey:
    """Noise of the sensor or of the paper."""
    strength = rng.randint(2, 24)
    noise = generator.integers(-strength, strength + 1, page.shape, dtype=np.int16)
    grainy: Grey = np.clip(page + noise, 0, 255).astype(np.uint8)
    return grainy


def jpeg(page: Grey, *, quality: int) -> Grey:
    """Compressed and read again."""
    stream = io.BytesIO()
    Image.fromarray(page).save(stream, "JPEG", quality=quality)
    stream.seek(0)
    return np.array(Image.open(stream))
