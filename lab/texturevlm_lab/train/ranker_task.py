"""Train the ranker to find answers: pages as the spotter sees them, questions, and the boxes of their answers.

The loss is the cross-entropy between the predicted and the true place of the answer, by area; of several places the
best counts. A question whose answer has no place teaches, with a small weight, that there is none. Some questions are
left out or lose some of their words, so that the ranker also works without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.scout.question import encode
from texturevlm.scout.ranker import WIDTHS, Ranker
from texturevlm.scout.scout import load_module
from texturevlm.scout.spotter import SPOT, Spots, Spotter
from texturevlm_lab.train.fit import draw_examples
from texturevlm_lab.train.pages import CHARTS, ONE_ANSWER, TrainingPage, held_out, load_pages

ABSENT_WEIGHT = 0.1  # of a question whose answer has no place
MOST_PLACES = 8  # of an answer that are used
SET_WEIGHTS = {"docvqa_half": 1.0, "funsd": 0.3, "sroie": 0.3, "chartqa": 0.3}  # of one question
MAIN_SET = "docvqa_half"  # evaluated first; the only set that teaches that an answer is absent
_DROP_WORDS, _DROP_QUESTIONS = 0.1, 0.05  # shares
_TOP = 0.1  # share of a page's spots
_COVERED = 0.9  # share of a place that must lie in them


class RankerTask:
    """A task of `fit`: the ranker learns to find answers."""

    @dataclass(frozen=True)
    class Settings:
        pages: Path  # from `texturevlm pack-pages`
        spotter: Path  # its trained weights
        batch: int = 96  # questions per step
        drop: float = 0.3  # dropout of channels
        widths: tuple[int, ...] = WIDTHS  # per scale, like blocks (`Ranker`)
        blocks: int = 1
        without: tuple[str, ...] = ()  # inputs that are left out (`ranker.INPUT_MAPS`)
        seed: int = 1
        limit: int | None = None  # number of pages

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_count("RankerTask", "batch", settings.batch, 1)
        self.settings, self.device = settings, device
        every_page = load_pages(settings.pages)
        pages, held = every_page[: settings.limit], held_out(every_page)  # the same documents as for the spotter
        self.spotter = load_module(Spotter(), settings.spotter).to(device)
        self.spots, self.extents = pad_spots([see_page(self.spotter, page, device) for page in pages])
        self.examples = ranker_examples(pages, self.spotter, device)
        self.learned: list[int] = []
        self.evaluated: list[int] = []
        self.evaluated_charts: list[int] = []
        for index, (number, located) in enumerate(zip(self.examples.page, self.examples.located)):
            source = pages[number].source
            if not held[number] and (located or source == MAIN_SET):
                self.learned.append(index)
            elif held[number] and located and source in (MAIN_SET, CHARTS):
                (self.evaluated if source == MAIN_SET else self.evaluated_charts).append(index)
        with torch.random.fork_rng():  # the same initial weights whatever was drawn before
            torch.manual_seed(settings.seed)
            fine, middle, coarse = settings.widths
            how: Any = {name: getattr(settings, name) for name in ("blocks", "drop", "without")}
            self.module: nn.Module = Ranker((fine, middle, coarse), **how)

    def batch(self, step: int) -> list[int]:
        drawn = draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)
        return [self.learned[index] for index in drawn]

    def losses(self, batch: list[int], step: int) -> dict[str, Tensor]:
        scores, _, columns = self.scores(batch, training=True)
        places = self.examples.places(batch, columns, scores.shape[1] - 1)
        return {"place": place_loss(scores, places, self.examples.weight[batch])}

    def scores(
        self, batch: Sequence[int], *, training: bool = False, blind: bool = False
    ) -> tuple[Tensor, Tensor, int]:
        """Scores (B, h · w + 1) of questions, extents (B, 2) of their pages, and w; blind: without the question."""
        spots, extents = self.spots_of([self.examples.page[index] for index in batch])
        words, traits, asked = self.questions(batch)
        kept = torch.full((len(batch), 1), not blind, device=self.device)
        if training:
            kept_words = (torch.rand(traits.shape[:2], device=self.device) > _DROP_WORDS)[..., None]
            traits, words = traits * kept_words, words * kept_words
            kept = torch.rand(len(batch), 1, device=self.device) > _DROP_QUESTIONS
        extents = extents.to(self.device)
        scores = self.ranker(spots, words * kept[..., None], traits * kept[..., None], asked * kept, extents)
        return scores, extents, spots.text.shape[2]

    @property
    def ranker(self) -> nn.Module:
        return self.module

    def spots_of(self, pages: Sequence[int]) -> tuple[Spots, Tensor]:
        """The spots of pages as one batch, and their extents (B, 2)."""
        extents = self.extents[list(pages)]
        rows, columns = extents.amax(0).tolist()
        return Spots(*(part[list(pages)][..., :rows, :columns] for part in self.spots)), extents

    def questions(self, batch: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the words of questions, their traits, and the kinds of answer asked for."""
        words, traits, asked = (part[list(batch)] for part in self.examples.question)
        return words, traits, asked

    def evaluate(self) -> dict[str, float]:
        """On held-out pages: the loss, and how often the answer lies in the top tenth, with the question and without.

        The same for charts, where there are any, under names that end in _charts.
        """
        found = self._evaluate(self.evaluated)
        if self.evaluated_charts:
            found |= {f"{name}_charts": value for name, value in self._evaluate(self.evaluated_charts).items()}
        return found

    def _evaluate(self, questions: Sequence[int]) -> dict[str, float]:
        found = {"loss": 0.0, "recall": 0.0, "recall_blind": 0.0}
        for start in range(0, len(questions), self.settings.batch):
            batch = questions[start : start + self.settings.batch]
            for name, blind in (("recall", False), ("recall_blind", True)):
                scores, extents, columns = self.scores(batch, blind=blind)
                places = self.examples.places(batch, columns, scores.shape[1] - 1)
                found[name] += float(in_top(scores, places, extents).sum())
                if not blind:
                    found["loss"] += float(place_loss(scores, places, scores.new_ones(len(batch)))) * len(batch)
        return {name: value / max(1, len(questions)) for name, value in found.items()}


class RankerExamples(NamedTuple):
    """The N questions about pages that the ranker learns from."""

    page: list[int]  # the index of each question's page
    located: list[bool]  # whether the answer has a place
    boxes: Tensor  # (N, MOST_PLACES, 4), places of the answer in spots; zero where there is none
    joined: Tensor  # (N,) bool, whether all places together are one answer
    weight: Tensor  # (N,)
    question: tuple[Tensor, Tensor, Tensor]  # embeddings, traits and kinds asked for, as `Ranker` takes them

    def places(self, batch: Sequence[int], columns: int, spots: int) -> Tensor:
        """(B, MOST_PLACES, spots): each place as shares of spots that sum to 1; zero where there is no place."""
        boxes, joined = self.boxes[list(batch)], self.joined[list(batch)]
        across = _overlaps(boxes[..., 0], boxes[..., 2], columns)
        down = _overlaps(boxes[..., 1], boxes[..., 3], spots // columns)
        shares = (down[..., None] * across[..., None, :]).flatten(2)
        together = functional.pad(shares.sum(1, keepdim=True), (0, 0, 0, MOST_PLACES - 1))
        shares = torch.where(joined[:, None, None], together, shares)
        return shares / shares.sum(2, keepdim=True).clamp(min=1e-9)


def ranker_examples(pages: Sequence[TrainingPage], spotter: Spotter, device: str) -> RankerExamples:
    """The questions of pages; the spotter embeds their words."""
    rows = [(number, *asked) for number, page in enumerate(pages) for asked in page.questions]
    boxes = torch.zeros(len(rows), MOST_PLACES, 4)
    for row, (_, _, found) in enumerate(rows):
        for slot, box in enumerate(found[:MOST_PLACES]):
            boxes[row, slot] = torch.tensor(box) / SPOT
    numbers = [number for number, _, _ in rows]
    joined = torch.tensor([pages[number].source in ONE_ANSWER for number in numbers])
    weight = torch.tensor([SET_WEIGHTS[pages[number].source] for number in numbers])
    letters, traits, asked = (part.to(device) for part in encode([text for _, text, _ in rows]))
    with torch.no_grad():
        question = spotter.question(letters, traits), traits, asked
    located = [bool(found) for _, _, found in rows]
    return RankerExamples(numbers, located, boxes.to(device), joined.to(device), weight.to(device), question)


@torch.no_grad()
def see_page(spotter: Spotter, page: TrainingPage, device: str) -> Spots:
    """The spots of a page by the trained spotter."""
    grey = torch.from_numpy(page.image)[None, None].to(device).float() / 255
    with torch.autocast(device, torch.bfloat16, enabled=device.startswith("cuda")):
        return Spots(*(part.float() for part in spotter.eval()(grey)))


def pad_spots(pages: Sequence[Spots]) -> tuple[Spots, Tensor]:
    """Spots of single pages (1, …, h, w) → one batch of the largest extent, and each page's own extent (B, 2)."""
    extents = torch.tensor([page.text.shape[1:] for page in pages])
    rows, columns = extents.amax(0).tolist()

    def pad(part: Tensor) -> Tensor:
        return functional.pad(part, (0, columns - part.shape[-1], 0, rows - part.shape[-2]))

    return Spots(*(torch.cat(list(map(pad, parts))) for parts in zip(*pages))), extents


def _overlaps(low: Tensor, high: Tensor, count: int) -> Tensor:
    """(B, P) and (B, P), in spots → (B, P, count): the share of each spot between low and high."""
    edges = torch.arange(count + 1, device=low.device)
    return (torch.minimum(edges[1:], high[..., None]) - torch.maximum(edges[:-1], low[..., None])).clamp(min=0)


def place_loss(scores: Tensor, places: Tensor, weight: Tensor) -> Tensor:
    """Scores (B, spots + 1), places (B, P, spots) and weights (B,) → the mean loss."""
    log_share = scores.log_softmax(1)
    predicted = log_share[:, None, :-1].clamp(min=-40)
    parts = torch.where(places > 0, places * (places.clamp(min=1e-9).log() - predicted), 0.0).sum(2)
    there = places.sum(2) > 0
    best = -torch.logsumexp(torch.where(there, -parts, -torch.inf), 1)
    costs = torch.where(there.any(1), best, -ABSENT_WEIGHT * log_share[:, -1])
    return (costs * weight).sum() / weight.sum()


def in_top(scores: Tensor, places: Tensor, extents: Tensor) -> Tensor:
    """(B,) bool: whether one place lies in the tenth of the page's spots with the highest scores."""
    rank = scores[:, :-1].argsort(1, descending=True).argsort(1)
    chosen = rank < (_TOP * extents.prod(1))[:, None]
    return ((places * chosen[:, None]).sum(2) >= _COVERED).any(1)
