"""Train the ranker to find answers: pages as the spotter sees them, questions, and the boxes of their answers.

The loss is the cross-entropy between the predicted and the true place of the answer, by area; of several places the
best counts. A question whose answer has no place teaches, with a small weight, that there is none. Some questions are
left out or lose some of their words, so that the ranker also works without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.scout.question import encode
from texturevlm.scout.ranker import WIDTHS, Ranker
from texturevlm.scout.spotter import SPOT, Spots, Spotter
from texturevlm.scout.weights import load_module
from texturevlm.train.pages import CHARTS, TrainingPage, held_out, load_pages
from texturevlm.train.schedule import draw_examples

ABSENT_WEIGHT = 0.1  # of a question whose answer has no place
MOST_PLACES = 8  # of an answer that are used
ONE_ANSWER = ("funsd",)  # data sets where all boxes together are the answer
SET_WEIGHTS = {"docvqa_half": 1.0, "funsd": 0.3, "sroie": 0.3, "chartqa": 0.3}  # of one question
MAIN_SET = "docvqa_half"  # evaluated first; the only set that teaches that an answer is absent
_DROP_WORDS, _DROP_QUESTIONS = 0.1, 0.05  # shares
_TOP = 0.1  # share of a page's spots
_COVERED = 0.9  # share of a place that must lie in them


class RankerTask:
    """The task `ranker`."""

    @dataclass(frozen=True)
    class Settings:
        """pages: folder from `texturevlm pack-pages`; spotter: its trained weights; batch: questions per step; drop:
        dropout of channels; widths and blocks: per scale (`Ranker`); without: inputs that are left out
        (`ranker.PARTS`); limit: number of pages."""

        pages: Path
        spotter: Path
        batch: int = 96
        drop: float = 0.3
        widths: tuple[int, ...] = WIDTHS
        blocks: int = 1
        without: tuple[str, ...] = ()
        seed: int = 1
        limit: int | None = None

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_count("RankerTask", "batch", settings.batch, 1)
        self.settings, self.device = settings, device
        every_page = load_pages(settings.pages)
        pages, held = every_page[: settings.limit], held_out(every_page)  # the same documents as for the spotter
        self.spotter = load_module(Spotter(), settings.spotter).to(device)
        self.spots, self.extents = pad_spots([see_page(self.spotter, page, device) for page in pages])
        self.examples = RankerExamples.of(pages, self.spotter, device)
        source = [pages[page].source for page in self.examples.page]
        out = [held[page] for page in self.examples.page]
        located = self.examples.present.any(1).tolist()
        every = range(len(source))
        self.learned = [i for i in every if not out[i] and (located[i] or source[i] == MAIN_SET)]
        self.evaluated = [i for i in every if out[i] and located[i] and source[i] == MAIN_SET]
        self.evaluated_charts = [i for i in every if out[i] and located[i] and source[i] == CHARTS]
        with torch.random.fork_rng():  # the same initial weights whatever was drawn before
            torch.manual_seed(settings.seed)
            self.module: nn.Module = self.new_ranker(settings.without)

    def new_ranker(self, without: Sequence[str] = (), *, blocks: int | None = None) -> Ranker:
        """An untrained ranker; blocks: instead of the settings'."""
        fine, middle, coarse = self.settings.widths
        return Ranker(
            (fine, middle, coarse), blocks=blocks or self.settings.blocks, drop=self.settings.drop, without=without
        )

    def batch(self, step: int) -> list[int]:
        drawn = draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)
        return [self.learned[index] for index in drawn]

    def losses(self, batch: list[int], step: int) -> dict[str, Tensor]:
        scores, _, columns = self.scores(batch, training=True)
        found = self.examples.places(batch, columns, scores.shape[1] - 1)
        return {"place": place_loss(scores, found, self.examples.weight[batch])}

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
        rows, columns = (int(extent) for extent in extents.amax(0))
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
            ones = torch.ones(len(batch), device=self.device)
            for blind in (False, True):
                scores, extents, columns = self.scores(batch, blind=blind)
                places = self.examples.places(batch, columns, scores.shape[1] - 1)
                found["recall_blind" if blind else "recall"] += float(in_top(scores, places, extents).sum())
                if not blind:
                    found["loss"] += float(place_loss(scores, places, ones)) * len(batch)
        return {name: value / max(1, len(questions)) for name, value in found.items()}


@dataclass(frozen=True, eq=False)
class RankerExamples:
    """N questions about pages.

    page:     the index of each question's page
    boxes:    (N, MOST_PLACES, 4), places of the answer in spots
    present:  (N, MOST_PLACES) bool, which of them exist
    joined:   (N,) bool, whether all together are one answer
    weight:   (N,)
    question: embeddings, traits and kinds asked for, as `Ranker` takes them
    """

    page: list[int]
    boxes: Tensor
    present: Tensor
    joined: Tensor
    weight: Tensor
    question: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, pages: Sequence[TrainingPage], spotter: Spotter, device: str) -> RankerExamples:
        rows = [(number, *asked) for number, page in enumerate(pages) for asked in page.questions]
        boxes = torch.zeros(len(rows), MOST_PLACES, 4)
        present = torch.zeros(len(rows), MOST_PLACES, dtype=torch.bool)
        for row, (_, _, found) in enumerate(rows):
            for slot, box in enumerate(found[:MOST_PLACES]):
                boxes[row, slot], present[row, slot] = torch.tensor(box) / SPOT, True
        sources = [pages[number].source for number, _, _ in rows]
        joined = torch.tensor([source in ONE_ANSWER for source in sources])
        weight = torch.tensor([SET_WEIGHTS[source] for source in sources])
        letters, traits, asked = (part.to(device) for part in encode([text for _, text, _ in rows]))
        with torch.no_grad():
            question = spotter.question(letters, traits), traits, asked
        boxes, present, joined, weight = (part.to(device) for part in (boxes, present, joined, weight))
        return cls([number for number, _, _ in rows], boxes, present, joined, weight, question)

    def places(self, batch: Sequence[int], columns: int, spots: int) -> Tensor:
        """(B, MOST_PLACES, spots): each place as shares of spots that sum to 1; zero where there is no place."""
        chosen = list(batch)
        boxes, present, joined = self.boxes[chosen], self.present[chosen], self.joined[chosen]
        rows = spots // columns
        down, across = _shares(boxes[..., 1], boxes[..., 3], rows), _shares(boxes[..., 0], boxes[..., 2], columns)
        shares = (down[..., None] * across[..., None, :]).flatten(2) * present[..., None]
        first = torch.zeros_like(present)
        first[:, 0] = True
        shares = torch.where(joined[:, None, None], shares.sum(1, keepdim=True) * first[..., None], shares)
        return shares / shares.sum(2, keepdim=True).clamp(min=1e-9)


@torch.no_grad()
def see_page(spotter: Spotter, page: TrainingPage, device: str) -> Spots:
    """The spots of a page by the trained spotter."""
    grey = torch.from_numpy(page.image)[None, None].to(device).float() / 255
    with torch.autocast(device, torch.bfloat16, enabled=device.startswith("cuda")):
        return Spots(*(part.float() for part in spotter.eval()(grey)))


def pad_spots(pages: Sequence[Spots]) -> tuple[Spots, Tensor]:
    """Spots of single pages (1, …, h, w) → one batch of the largest extent, and each page's own extent (B, 2)."""
    extents = torch.tensor([page.text.shape[1:] for page in pages])
    rows, columns = (int(extent) for extent in extents.amax(0))

    def pad(part: Tensor) -> Tensor:
        return functional.pad(part, (0, columns - part.shape[-1], 0, rows - part.shape[-2]))

    return Spots(*(torch.cat([pad(part) for part in parts]) for parts in zip(*pages))), extents


def _shares(low: Tensor, high: Tensor, count: int) -> Tensor:
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
