"""Train the word ranker of `--relevance words` on document questions (`texturevlm fit-words`).

The loss is the cross-entropy between the predicted and the true place of the answer, by area; of several places the
best counts. Cross-validation by document calibrates the probabilities.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.progress import Progress
from texturevlm.relevance.features import FEATURE_NAMES, PageLayout, layout_of, word_features
from texturevlm.relevance.ocr import Page
from texturevlm.relevance.words import FARTHEST
from texturevlm.text.strings import terms
from texturevlm_lab.train.pages import ONE_ANSWER, load_page, train_rows

QUESTION_WEIGHTS = {"docvqa_half": 1.0, "funsd": 0.1}  # of one question, by data set
_COMMON_FROM = 3  # questions: a word that occurs in fewer is rare
MEMBERS, _WIDTH, EPOCHS, _BATCH = 3, 24, 8, 16
_RATE, _DECAY, _DROP, _DROP_CLUES = 3e-3, 1e-2, 0.3, 0.1
FOLDS = 4
_SHARPNESS = np.arange(0.4, 1.31, 0.05)
_ABSENT_WEIGHT = 0.5  # of a question whose answer is on no word
_INSIDE = 0.5  # share of a word in the box, or of the box in the word


class WordExample(NamedTuple):
    """One question: features (N, F), the page's layout, the words of each place of the answer, and its weight."""

    features: np.ndarray
    layout: PageLayout
    places: tuple[np.ndarray, ...]
    weight: float
    document: str


def fit_words(data: Path, cache: Path, limit: int | None = None) -> dict[str, Any]:
    """Train the ranker; returns what relevance/words.json holds.

    data:  holds docvqa_half and funsd, of which only the `train` questions are used
    cache: keeps the words of pages, one folder per data set; a page that is not there is read by RapidOCR (seconds)
    limit: pages per data set
    """
    torch.set_num_threads(1)  # sums in one order: the same weights on every run
    common = commonness(train_rows(data, "docvqa_half", limit))
    raw = [example for name in QUESTION_WEIGHTS for example in _examples(data, cache, name, limit, common)]
    every = np.concatenate([example.features for example in raw])
    mean, scale = every.mean(0), every.std(0) + 0.01
    chosen = [one._replace(features=np.clip((one.features - mean) / scale, -FARTHEST, FARTHEST)) for one in raw]
    sharpness, held_out_loss = _calibrate(chosen)
    return {
        "names": FEATURE_NAMES,
        "mean": _rounded(mean),
        "scale": _rounded(scale),
        "members": [_fit(chosen, seed).weights() for seed in range(MEMBERS)],
        "sharpness": round(sharpness, 2),
        "commonness": common,
        "trained": {"questions": len(chosen), "held_out_loss": round(held_out_loss, 3)},
    }


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
            places = tuple(answer_places(page, row["boxes"], row["size"], together=name in ONE_ANSWER))
            features = word_features(page, row["question"], common)
            document = f"{name}/{row.get('document', row['image'])}"
            yield WordExample(features, layout_of(page), places, QUESTION_WEIGHTS[name], document)


def answer_places(
    page: Page, boxes: Sequence[Sequence[float]], size: Sequence[int], *, together: bool
) -> Iterator[np.ndarray]:
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

    def forward(self, batch: Sequence[WordExample]) -> list[Tensor]:
        """Per page (N + 1,): scores of its words and of "not on this page"."""
        inputs = self.drop_clues(torch.from_numpy(np.concatenate([example.features for example in batch])))
        inner = self.inner(inputs).relu()
        around = torch.cat([inner, *_surroundings(inner, batch)], 1)
        outer = self.outer(self.drop(around)).relu()
        scores = (self.last(self.drop(outer)) + self.direct(inputs)).squeeze(1)
        parts = scores.split([len(example.features) for example in batch])
        return [torch.cat([part, self.absent.view(1)]) for part in parts]

    def weights(self) -> dict[str, Any]:
        """As `relevance.words` reads them: matrices as (inputs, outputs), biases named inner_bias and outer_bias."""
        arrays = {name: tensor.numpy().T.squeeze() for name, tensor in self.state_dict().items()}
        return {name.removesuffix(".weight").replace(".", "_"): _rounded(array) for name, array in arrays.items()}


def _surroundings(inner: Tensor, batch: Sequence[WordExample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As in `WordRanker`, for all pages of the batch: mean and maximum of the line, word before and after."""
    lines, first = [], 0
    for example in batch:
        lines.append(torch.from_numpy(example.layout.line) + first)
        first += int(example.layout.line.max()) + 1
    line = torch.cat(lines)
    total = inner.new_zeros(first, inner.shape[1]).index_add(0, line, inner)
    count = torch.bincount(line, minlength=first)[:, None]
    greatest = torch.zeros_like(total).scatter_reduce(0, line[:, None].expand_as(inner), inner, "amax")
    same = (line[1:] == line[:-1])[:, None]  # words of a line follow one another
    before = functional.pad(inner[:-1] * same, (0, 0, 1, 0))
    after = functional.pad(inner[1:] * same, (0, 0, 0, 1))
    return (total / count)[line], greatest[line], before, after


def _loss(scores: Tensor, example: WordExample) -> Tensor:
    """Cross-entropy by area; of several places of the answer, the best (a soft minimum)."""
    area = torch.from_numpy(example.layout.areas)
    log_share = torch.log_softmax(torch.cat([scores[:-1] + area.log(), scores[-1:]]), 0)
    if not example.places:
        return -_ABSENT_WEIGHT * log_share[-1]
    targets = [(words, area[words] / area[words].sum()) for words in example.places]
    costs = [(target * (target.log() - log_share[words])).sum() for words, target in targets]
    return -torch.logsumexp(-torch.stack(costs), 0)


def _fit(chosen: Sequence[WordExample], seed: int) -> WordNetwork:
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
            weight = torch.tensor([example.weight for example in batch])
            costs = torch.stack([_loss(scores, example) for scores, example in zip(network(batch), batch)])
            optimiser.zero_grad()
            torch.autograd.backward((costs * weight).sum() / weight.sum())
            optimiser.step()
            schedule.step()
    return network.eval()


def _calibrate(chosen: Sequence[WordExample]) -> tuple[float, float]:
    """The best of _SHARPNESS by cross-validation, and its mean loss on questions that were not trained on."""
    documents = sorted({example.document for example in chosen})
    fold = dict(zip(documents, np.random.default_rng(0).permutation(len(documents)) % FOLDS))
    costs = np.zeros(len(_SHARPNESS))
    total = 0.0
    for number in range(FOLDS):
        network = _fit([example for example in chosen if fold[example.document] != number], number)
        for example in chosen:
            if fold[example.document] == number and example.places:
                scores = network([example])[0].detach()
                costs += [example.weight * float(_loss(scores * factor, example)) for factor in _SHARPNESS]
                total += example.weight
        print(f"fold {number + 1}/{FOLDS}: held-out loss {costs.min() / total:.3f}", file=sys.stderr, flush=True)
    return float(_SHARPNESS[costs.argmin()]), float(costs.min() / total)


def _rounded(values: np.ndarray) -> Any:
    """Nested lists of numbers with four significant digits."""
    return [_rounded(row) for row in values] if values.ndim else float(f"{float(values):.4g}")
