"""Relevance from the words of a page: OCR finds them, a small network scores each as the answer to the question.

The network was trained on document questions (`texturevlm fit-words`). It weighs the named features of every
word (`features.py`), combines them once with the word's line and neighbours, and gives the logarithm of the density of
the answer. A softmax over the words' areas and "not on this page" makes probabilities, so that all words together have
at most 1.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from texturevlm.channels import colour_levels
from texturevlm.check import check_size
from texturevlm.ops import level_extents
from texturevlm.relevance.features import FEATURE_NAMES, WORD_MARGIN, PageLayout, layout_of, word_features
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.ocr import Page, read_page
from texturevlm.scout import Question
from texturevlm.text import load_commonness, terms
from texturevlm.types import Texture

_WEIGHTS = "words.json"
FARTHEST = 5.0  # standard deviations: features are clamped to this
TOUCHED = 0.25  # of a cell's side: a word that reaches that far into a cell fills it
WORD_HEIGHT = 5.5  # samples: half of the words of that height, as RapidOCR boxes them, are legible
_FINEST = 0.5  # pixels: no word is thought legible only at a finer scale


def question_text(scorer: str, question: str | Question) -> str:
    """The question, which must be text for this scorer."""
    if not isinstance(question, str):
        raise ValueError(f"choose_tokens: question must be text for relevance {scorer!r}, got an encoded one")
    return question


class WordsScorer:
    """pages: what `read_page` made of each image; by default the images are read by RapidOCR (extra `ocr`)."""

    name, description, capturable, calibrated = "words", "the question's words", False, True

    def __init__(self, *pages: Page) -> None:
        for page in pages:
            if not isinstance(page, Page):
                raise TypeError(f"WordsScorer: pages must be what read_page returns, got {type(page).__name__}")
        self.pages = pages

    def prepare(self, texture: Texture) -> tuple[Page, ...]:
        """The words of each image."""
        if not self.pages:
            return tuple(_read(image) for image in colour_levels(texture)[0])
        sizes = [page.size for page in self.pages]
        # Of an image that is read by pages this is the texture of the coarse levels.
        if len(sizes) == texture.batch and all(texture.size in level_extents(*size) for size in sizes):
            return tuple(page.scaled(texture.size) for page in self.pages)
        wanted = f"{texture.batch} of {texture.size}"
        raise ValueError(f"WordsScorer: pages must be one per image, {wanted}, got {len(sizes)} of {sizes}")

    def score(
        self, prepared: tuple[Page, ...], question: str | Question, maps: ImageMaps
    ) -> tuple[Tensor | None, ImageMaps]:
        """The words' probabilities on the cells; the maps get the words' legible scale and ink."""
        text = question_text(self.name, question)
        scales, inks = zip(*(_refined(page, *one) for page, *one in zip(prepared, maps.legible_scale, maps.ink)))
        maps = maps._replace(legible_scale=torch.stack(scales), ink=torch.stack(inks))
        if not terms(text):
            return None, maps
        return torch.stack([words_map(page, text, maps.grid) for page in prepared]).to(maps.legible_scale), maps


def _read(image: Tensor) -> Page:
    """Read an image (3, H, W), and say so first: it takes seconds, on the CPU, whatever the device."""
    logging.getLogger(__name__).warning("reading an image of %d × %d by OCR …", image.shape[2], image.shape[1])
    return read_page(image[None])


def _refined(page: Page, legible_scale: Tensor, ink: Tensor) -> tuple[Tensor, Tensor]:
    """One image's legible_scale and ink, both (h, w), set from the words' heights where there are words."""
    finer, marked = legible_scale.cpu().numpy().copy(), ink.cpu().numpy().copy()
    down, across = page.size[0] / finer.shape[0], page.size[1] / finer.shape[1]
    for word, height in zip(page.words, layout_of(page).heights.tolist()):  # turned lines are measured across
        x0, y0, x1, y1 = word.box
        cells = np.s_[int(y0 / down) : int(np.ceil(y1 / down)), int(x0 / across) : int(np.ceil(x1 / across))]
        finer[cells] = max(height / WORD_HEIGHT, _FINEST)
        marked[cells] = True
    return torch.from_numpy(finer).to(legible_scale), torch.from_numpy(marked).to(ink.device)


class WordRanker:
    """A trained ensemble of small networks, from what `fit_words` writes; H is their width, F the number of features.

    mean, scale: (F,), of the features on the training pages
    members:     each: inner (F, H), inner_bias (H,), outer (5 H, H), outer_bias (H,), last (H,), direct (F,), absent ()
    sharpness:   factor of the scores, chosen so that the probabilities are calibrated on held-out pages
    """

    def __init__(self, text: str) -> None:
        record = json.loads(text)
        if record["names"] != list(FEATURE_NAMES):
            count = len(FEATURE_NAMES)
            raise ValueError(f"WordRanker: the weights are for other features than these {count}; train again")
        self.mean, self.scale = (np.array(record[name], np.float32) for name in ("mean", "scale"))
        self.members = [{name: np.array(value, np.float32) for name, value in row.items()} for row in record["members"]]
        self.sharpness = float(record["sharpness"])

    def probabilities(self, features: np.ndarray, layout: PageLayout) -> np.ndarray:
        """(N, F) → (N,), summing to at most 1: the rest is the probability that the answer is not on the page."""
        inputs = np.clip((features - self.mean) / self.scale, -FARTHEST, FARTHEST)
        room = np.append(np.log(layout.areas), 0.0)
        shares = []
        for member in self.members:
            scores = self.sharpness * _scores(member, inputs, layout) + room
            raised = np.exp(scores - scores.max())
            shares.append(raised / raised.sum())
        shared: np.ndarray = np.mean(shares, axis=0)[:-1]
        return shared


def _scores(member: dict[str, np.ndarray], inputs: np.ndarray, layout: PageLayout) -> np.ndarray:
    """(N + 1,): one per word, and last that of "not on this page"."""
    inner = np.maximum(inputs @ member["inner"] + member["inner_bias"], 0)
    mean, greatest, before, after = (np.zeros_like(inner) for _ in range(4))  # over the word's line; its neighbours
    for members in layout.members:
        own = inner[members]
        mean[members], greatest[members] = own.mean(0), own.max(0)
        before[members[1:]], after[members[:-1]] = own[:-1], own[1:]
    around = np.concatenate([inner, mean, greatest, before, after], 1)
    outer = np.maximum(around @ member["outer"] + member["outer_bias"], 0)
    return np.append(outer @ member["last"] + inputs @ member["direct"], member["absent"])


@lru_cache(maxsize=1)
def load_word_ranker() -> WordRanker:
    """The weights that come with the package, read once."""
    return WordRanker(files("texturevlm.relevance").joinpath(_WEIGHTS).read_text(encoding="utf-8"))


def answer_probability(page: Page, question: str) -> np.ndarray:
    """(N,) float32: the share of the answer that each word of the page has.

    They sum to at most 1; the rest is the probability that the answer is not among them. A question without words
    gives all words the same.
    """
    if not isinstance(page, Page) or not isinstance(question, str):
        got = f"{type(page).__name__} and {type(question).__name__}"
        raise TypeError(f"answer_probability: page and question must be a Page and a string, got {got}")
    count = len(page.words)
    if not terms(question):
        return np.full(count, 1 / max(count, 1), dtype=np.float32)
    features = word_features(page, question, load_commonness())
    return load_word_ranker().probabilities(features, layout_of(page)).astype(np.float32)


def words_map(page: Page, question: str, cells: Sequence[int]) -> Tensor:
    """How much of the answer is expected in each of `cells` (h, w) that cover the page evenly.

    returns (h, w) float32, summing to at most 1; zero where there are no words
    """
    return spread(page, answer_probability(page, question), cells)


def spread(page: Page, share: np.ndarray, cells: Sequence[int]) -> Tensor:
    """Spread one share per word (N,) evenly over the word's box and WORD_MARGIN around it: (h, w) float32.

    A cell takes the densest word that reaches into it, so that a word's edge counts as much as its middle; then all
    cells are scaled to the sum of the shares.
    """
    rows, columns = check_size("spread", cells)
    height, width = page.size
    layout = layout_of(page)
    margin = WORD_MARGIN * layout.heights
    left, top, right, bottom = layout.boxes.T
    across = _touched(overlaps(left - margin, right + margin, columns, width), width / columns)
    down = _touched(overlaps(top - margin, bottom + margin, rows, height), height / rows)
    density = share / layout.areas
    painted = np.zeros((rows, columns))
    for word in np.argsort(density, kind="stable"):
        painted[slice(*down[word]), slice(*across[word])] = density[word]
    return torch.from_numpy((painted * (share.sum() / max(painted.sum(), 1e-12))).astype(np.float32))


def _touched(overlap: np.ndarray, side: float) -> np.ndarray:
    """(N, parts), each `side` long → (N, 2): the first part that an interval reaches into, and one after the last."""
    reach = np.minimum(TOUCHED * side, overlap.max(1, keepdims=True, initial=0.0))
    inside = (overlap >= reach) & (overlap > 0)
    first = inside.argmax(1)
    return np.stack([first, first + inside.sum(1)], 1)


def overlaps(low: np.ndarray, high: np.ndarray, parts: int, length: float) -> np.ndarray:
    """(N,) and (N,) → (N, parts): the length of each interval in each of the equal parts of 0 to `length`."""
    edges = np.linspace(0, length, parts + 1)
    lengths: np.ndarray = np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1])
    return lengths.clip(0, None)
