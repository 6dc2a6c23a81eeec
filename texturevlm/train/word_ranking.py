"""Train the word ranker of `--relevance words` on document questions (`texturevlm fit-words`).

The data folder holds docvqa_half and funsd; only their `train` questions are used. A cache keeps the words of pages,
one folder per data set; a page that is not there is read by RapidOCR, which takes seconds. The loss is the
cross-entropy between the predicted and the true place of the answer, by area; of several places the best counts.
Cross-validation by document calibrates the probabilities.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from texturevlm.progress import Progress
from texturevlm.relevance.features import FEATURE_NAMES, word_features
from texturevlm.relevance.layout import PageLayout, layout_of
from texturevlm.relevance.ocr import Page, load_page
from texturevlm.relevance.words import FARTHEST
from texturevlm.text.strings import terms

SET_WEIGHTS = {"docvqa_half": 1.0, "funsd": 0.1}  # of one question
_COMMON_FROM = 3  # questions: a word that occurs in fewer is rare
MEMBERS, _WIDTH, EPOCHS, _BATCH = 3, 24, 8, 16
_RATE, _DECAY, _DROP, _DROP_CLUES = 3e-3, 1e-2, 0.3, 0.1
FOLDS = 4
_SHARPNESS = np.arange(0.4, 1.31, 0.05)
_ABSENT_WEIGHT = 0.5  # of a question whose answer is on no word
_INSIDE = 0.5  # share of a word in the box, or of the box in the word

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class WordExample:
    """One question: clues (N, F), the page's layout, the words of each place of the answer, and its weight."""

    features: Array
    layout: PageLayout
    places: tuple[Array, ...]
    weight: float
    document: str


def train_rows(data: Path, name: str, limit: int | None) -> list[dict[str, Any]]:
    """The `train` questions of the first `limit` pages of a data set."""
    listing = data / name / "questions.jsonl"
    if not listing.is_file():
        raise FileNotFoundError(f"DATA must hold {name}/questions.jsonl, got {data}")
    rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["split"] == "train"]
    pages = set(list(dict.fromkeys(row["image"] for row in rows))[:limit])
    return [row for row in rows if row["image"] in pages]


def commonness(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How common words are in questions: 0 for one question, 1 for all, logarithmic between."""
    count = Counter(term for row in rows for term in {term for term, _ in terms(row["question"])})
    whole = math.log(max(len(rows), 2))
    return {term: round(math.log(often) / whole, 3) for term, often in sorted(count.items()) if often >= _COMMON_FROM}


def _examples(data: Path, cache: Path, name: str, limit: int | None, common: dict[str, float]) -> Iterator[WordExample]:
    """The questions of a data set whose answer has a place."""
    rows = [row for row in train_rows(data, name, limit) if row["boxes"]]
    progress = Progress(len(rows), f"questions of {name}")
    for row in rows:
        progress.step()
        page = load_page(data / name / row["image"], cache / name)
        if page.words:
            together = name == "funsd"  # there, all boxes together are the answer
            places = tuple(answer_places(page, row["boxes"], row["size"], together=together))
            features = word_features(page, row["question"], common)
            document = row.get("document", row["image"])
            yield WordExample(features, layout_of(page), places, SET_WEIGHTS[name], f"{name}/{document}")


def answer_places(
    page: Page, boxes: Sequence[Sequence[float]], size: Sequence[int], *, together: bool
) -> Iterator[Array]:
    """The indices of the words in each box (or in all of them together); boxes without words are left out.

    boxes: in pixels of an image of `size`, of which the page may be a smaller copy
    """
    words = layout_of(page).boxes * (size[0] / page.size[0])
    box = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    low, high = np.maximum(words[:, None, :2], box[:, :2]), np.minimum(words[:, None, 2:], box[:, 2:])
    shared = np.clip(high - low, 0, None).prod(2)
    own, whole = ((part[:, 2:] - part[:, :2]).prod(1) for part in (words, box))
    inside = (shared >= _INSIDE * own[:, None]) | (shared >= _INSIDE * whole)
    columns = inside.any(1, keepdims=True) if together else inside
    return (np.flatnonzero(column) for column in columns.T if column.any())


class WordNetwork(nn.Module):
    """The network of `relevance.words`, for training: the words of several pages, concatenated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(len(FEATURE_NAMES), width)
        self.outer = nn.Linear(5 * width, width)
        self.last = nn.Linear(width, 1, bias=False)
        self.direct = nn.Linear(len(FEATURE_NAMES), 1, bias=False)
        self.absent = nn.Parameter(torch.tensor(2.0))
        self.drop, self.drop_clues = nn.Dropout(_DROP), nn.Dropout(_DROP_CLUES)
        nn.init.zeros_(self.direct.weight)

    def forward(self, inputs: Tensor, batch: Sequence[WordExample]) -> list[Tensor]:
        """(words of all pages, F) → per page (N + 1,): scores of its words and of "not on this page"."""
        inputs = self.drop_clues(inputs)
        inner = self.inner(inputs).relu()
        around = torch.cat([inner, *_surroundings(inner, batch)], 1)
        outer = self.outer(self.drop(around)).relu()
        scores = (self.last(self.drop(outer)) + self.direct(inputs)).squeeze(1)
        parts = scores.split([len(example.features) for example in batch])
        return [torch.cat([part, self.absent.view(1)]) for part in parts]

    def weights(self) -> dict[str, list[Any]]:
        tensors = {
            "inner": self.inner.weight.T,
            "inner_bias": self.inner.bias,
            "outer": self.outer.weight.T,
            "outer_bias": self.outer.bias,
            "last": self.last.weight[0],
            "direct": self.direct.weight[0],
            "absent": self.absent,
        }
        return {name: _rounded(tensor.detach().numpy()) for name, tensor in tensors.items()}


def _surroundings(inner: Tensor, batch: Sequence[WordExample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `words.surroundings`, for all pages of the batch: mean and maximum of the line, word before and after."""
    line, first = [], 0
    for example in batch:
        line.append(torch.from_numpy(example.layout.line) + first)
        first += int(example.layout.line.max()) + 1
    of = torch.cat(line)
    total = inner.new_zeros(first, inner.shape[1]).index_add(0, of, inner)
    count = torch.bincount(of, minlength=first)[:, None]
    wide = of[:, None].expand_as(inner)
    greatest = inner.new_zeros(first, inner.shape[1]).scatter_reduce(0, wide, inner, "amax")
    same = (of[1:] == of[:-1])[:, None]  # words of a line follow one another
    nothing = inner.new_zeros(1, inner.shape[1])
    before = torch.cat([nothing, inner[:-1] * same])
    after = torch.cat([inner[1:] * same, nothing])
    return (total / count)[of], greatest[of], before, after


def _loss(scores: Tensor, example: WordExample) -> Tensor:
    """Cross-entropy by area; of several places of the answer, the best (a soft minimum)."""
    area = torch.from_numpy(example.layout.areas)
    log_share = torch.log_softmax(torch.cat([scores[:-1] + area.log(), scores[-1:]]), 0)
    if not example.places:
        return -_ABSENT_WEIGHT * log_share[-1]
    costs = []
    for place in example.places:
        words = torch.from_numpy(place)
        target = area[words] / area[words].sum()
        costs.append((target * (target.log() - log_share[words])).sum())
    return -torch.logsumexp(-torch.stack(costs), 0)


def _fit(chosen: Sequence[WordExample], mean: Array, scale: Array, seed: int) -> WordNetwork:
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    network = WordNetwork(_WIDTH)
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    steps = EPOCHS * math.ceil(len(chosen) / _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps, pct_start=0.1)
    for _ in range(EPOCHS):
        order = generator.permutation(len(chosen))
        for start in range(0, len(order), _BATCH):
            batch = [chosen[index] for index in order[start : start + _BATCH]]
            scores = network(_inputs(batch, mean, scale), batch)
            weight = torch.tensor([example.weight for example in batch])
            costs = torch.stack([_loss(part, example) for part, example in zip(scores, batch)])
            optimiser.zero_grad()
            torch.autograd.backward((costs * weight).sum() / weight.sum())
            optimiser.step()
            schedule.step()
    return network.eval()


def _inputs(batch: Sequence[WordExample], mean: Array, scale: Array) -> Tensor:
    features = np.concatenate([example.features for example in batch])
    return torch.from_numpy(np.clip((features - mean) / scale, -FARTHEST, FARTHEST))


def _calibrate(chosen: Sequence[WordExample], mean: Array, scale: Array) -> tuple[float, float]:
    """The best of _SHARPNESS by cross-validation, and its mean loss on questions that were not trained on."""
    documents = sorted({example.document for example in chosen})
    fold = dict(zip(documents, np.random.default_rng(0).permutation(len(documents)) % FOLDS))
    costs = np.zeros(len(_SHARPNESS))
    total = 0.0
    for number in range(FOLDS):
        network = _fit([example for example in chosen if fold[example.document] != number], mean, scale, number)
        for example in chosen:
            if fold[example.document] == number and example.places:
                with torch.inference_mode():
                    scores = network(_inputs([example], mean, scale), [example])[0]
                    costs += [example.weight * float(_loss(scores * factor, example)) for factor in _SHARPNESS]
                total += example.weight
        print(f"fold {number + 1}/{FOLDS}: held-out loss {costs.min() / total:.3f}", file=sys.stderr, flush=True)
    return float(_SHARPNESS[costs.argmin()]), float(costs.min() / total)


def _rounded(values: Array) -> Any:
    """Nested lists of numbers with four significant digits."""
    return [_rounded(row) for row in values] if values.ndim else float(f"{float(values):.4g}")


def fit_words(data: Path, cache: Path, limit: int | None = None) -> dict[str, Any]:
    """Train the ranker; returns what relevance/words.json holds."""
    torch.set_num_threads(1)  # sums in one order: the same weights on every run
    common = commonness(train_rows(data, "docvqa_half", limit))
    chosen = [example for name in SET_WEIGHTS for example in _examples(data, cache, name, limit, common)]
    every = np.concatenate([example.features for example in chosen])
    mean, scale = every.mean(0), every.std(0) + 0.01
    sharpness, held_out_loss = _calibrate(chosen, mean, scale)
    networks = [_fit(chosen, mean, scale, seed) for seed in range(MEMBERS)]
    return {
        "names": FEATURE_NAMES,
        "mean": _rounded(mean),
        "scale": _rounded(scale),
        "members": [network.weights() for network in networks],
        "sharpness": round(sharpness, 2),
        "commonness": common,
        "trained": {"questions": len(chosen), "held_out_loss": round(held_out_loss, 3)},
    }
