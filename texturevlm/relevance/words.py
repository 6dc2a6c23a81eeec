"""Which words of a page are likely the answer to a question: page + question → a probability a word, and a map.

A small network, trained on document questions (`fit_words`), weighs the named clues of every word (`clues`), looks at
its line and its neighbours once, and gives it a score: the logarithm of how densely the answer is expected there.
Shared out over the words' areas and "not on this page", that is a probability; so all words together have at most 1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from texturevlm.check import check_size
from texturevlm.relevance.clues import NAMES, clues
from texturevlm.relevance.layout import MARGIN, Layout, layout_of
from texturevlm.relevance.reader import Page
from texturevlm.text.strings import terms

WEIGHTS = "words.json"
FARTHEST = 5.0  # standard deviations: no clue counts for more
TOUCHED = 0.25  # of a cell's side: a word that reaches that far into a cell fills it


@dataclass(frozen=True, eq=False)
class Ranker:
    """The trained weights of a small committee; H is the width of its networks, F the number of clues.

    mean, scale: (F,), of the clues on the training pages
    members:     each: inner (F, H), inner_bias (H,), outer (5 H, H), outer_bias (H,), last (H,), direct (F,), absent ()
    sharpness:   what scores are multiplied by, chosen so that the probabilities hold on pages not trained on
    commonness:  how common words are in questions, 0 to 1
    """

    mean: np.ndarray
    scale: np.ndarray
    members: tuple[dict[str, np.ndarray], ...]
    sharpness: float
    commonness: dict[str, float]

    @classmethod
    def from_json(cls, text: str) -> Ranker:
        """From what `fit_words` writes."""
        record = json.loads(text)
        if record["names"] != list(NAMES):
            raise ValueError(f"Ranker.from_json: the weights are for other clues than these {len(NAMES)}; train again")
        members = tuple({name: np.array(value, np.float32) for name, value in row.items()} for row in record["members"])
        mean, scale = (np.array(record[name], np.float32) for name in ("mean", "scale"))
        return cls(mean, scale, members, float(record["sharpness"]), record["commonness"])

    def probabilities(self, features: np.ndarray, layout: Layout) -> np.ndarray:
        """(N, F) clues → (N,), summing to at most 1: the rest is the chance that the answer is not on the page."""
        inputs = np.clip((features - self.mean) / self.scale, -FARTHEST, FARTHEST)
        room = np.append(np.log(layout.areas), 0.0)
        shares = [_softmax(self.sharpness * _scores(member, inputs, layout) + room) for member in self.members]
        return np.mean(shares, axis=0)[:-1]


@lru_cache(maxsize=1)
def ranker() -> Ranker:
    """The weights that come with the package, read once."""
    return Ranker.from_json(files("texturevlm.relevance").joinpath(WEIGHTS).read_text(encoding="utf-8"))


def _scores(member: dict[str, np.ndarray], inputs: np.ndarray, layout: Layout) -> np.ndarray:
    """(N + 1,): of every word, and last of "not on this page"."""
    inner = np.maximum(inputs @ member["inner"] + member["inner_bias"], 0)
    around = np.concatenate([inner, *surroundings(inner, layout)], 1)
    outer = np.maximum(around @ member["outer"] + member["outer_bias"], 0)
    return np.append(outer @ member["last"] + inputs @ member["direct"], member["absent"])


def surroundings(inner: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """Four (N, H): the mean and the greatest of the word's line, the word before it and the word after it there."""
    mean, greatest, before, after = (np.zeros_like(inner) for _ in range(4))
    for members in layout.members:
        own = inner[members]
        mean[members], greatest[members] = own.mean(0), own.max(0)
        before[members[1:]], after[members[:-1]] = own[:-1], own[1:]
    return [mean, greatest, before, after]


def _softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def answer_probability(page: Page, question: str) -> np.ndarray:
    """(N,) float32: for each of the page's words, its share of the answer.

    They sum to at most 1; what is missing is the chance that the answer is not among them. A question without words
    makes all the same.
    """
    if not isinstance(page, Page) or not isinstance(question, str):
        got = f"{type(page).__name__} and {type(question).__name__}"
        raise TypeError(f"answer_probability: page and question must be a Page and a string, got {got}")
    count = len(page.words)
    if not terms(question):
        return np.full(count, 1 / max(count, 1), dtype=np.float32)
    trained = ranker()
    return trained.probabilities(clues(page, question, trained.commonness), layout_of(page)).astype(np.float32)


def words_map(page: Page, question: str, cells: Sequence[int]) -> Tensor:
    """How much of the answer is expected in each of `cells` (h, w) that cover the page evenly.

    returns (h, w) float32, summing to at most 1; zero where there are no words
    """
    return spread(page, answer_probability(page, question), cells)


def spread(page: Page, share: np.ndarray, cells: Sequence[int]) -> Tensor:
    """One share a word (N,), laid evenly over its box and MARGIN around it, on cells (h, w): float32 (h, w).

    A cell takes the densest word that reaches into it, so that a word's edge counts as much as its middle; then all
    cells are scaled to sum to what the shares sum to.
    """
    rows, columns = check_size("spread", cells)
    height, width = page.size
    layout = layout_of(page)
    margin = MARGIN * layout.heights
    left, top, right, bottom = layout.boxes.T
    across = _touched(overlaps(left - margin, right + margin, columns, width), width / columns)
    down = _touched(overlaps(top - margin, bottom + margin, rows, height), height / rows)
    density = share / layout.areas
    painted = np.zeros((rows, columns))
    for word in np.argsort(density, kind="stable"):
        painted[slice(*down[word]), slice(*across[word])] = density[word]
    return torch.from_numpy((painted * (share.sum() / max(painted.sum(), 1e-12))).astype(np.float32))


def _touched(overlap: np.ndarray, side: float) -> np.ndarray:
    """(N, parts), each `side` long → (N, 2): the first part that a stretch reaches into, and the one after the last."""
    reach = np.minimum(TOUCHED * side, overlap.max(1, keepdims=True, initial=0.0))
    inside = (overlap >= reach) & (overlap > 0)
    first = inside.argmax(1)
    return np.stack([first, first + inside.sum(1)], 1)


def overlaps(low: np.ndarray, high: np.ndarray, parts: int, length: float) -> np.ndarray:
    """(N,) and (N,) → (N, parts): how long each stretch lies in each of the equal parts of 0 to `length`."""
    edges = np.linspace(0, length, parts + 1)
    return np.clip(np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1]), 0, None)
