"""Teach the ranker where answers stand: pages as the spotter saw them, questions, and the boxes of their answers.

The loss is the cross-entropy between where the answer is expected and where it stands, by area; where it stands in
several places, the best of them counts. A question whose answer has no place teaches, a little, that there is none.
Some questions are left out, or lose some of their words, so that the ranker also knows what to do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.scout.question import Question, encode
from texturevlm.scout.ranker import WIDTHS, Ranker
from texturevlm.scout.spotter import SPOT, Spots, Spotter
from texturevlm.scout.weights import load_module
from texturevlm.train.curriculum import Curriculum
from texturevlm.train.pages import CHARTS, TrainingPage, held_out, load_pages

UNPLACED = 0.1
PLACES = 8  # of an answer are looked at
TOGETHER = ("funsd",)  # sets where all boxes are one answer
COUNTS = {"docvqa_half": 1.0, "funsd": 0.3, "sroie": 0.3, "chartqa": 0.3}  # how much a question of each set weighs
DROPPED, BLIND = 0.1, 0.05  # of words, of whole questions
TOP = 0.1  # of a page's spots
COVERED = 0.9  # of a place must lie in them


class Ranking:
    """The task."""

    @dataclass(frozen=True)
    class Settings:
        """pages: a folder from `train.pages`; spotter: its trained weights; batch: questions a step; drop: of the
        network's channels while it learns; widths and blocks: of each scale (`Ranker`); without: parts of the input
        that are left out (`ranker.PARTS`); limit: pages, to try it out."""

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
        check_count("Ranking", "batch", settings.batch, 1)
        self.settings, self.device = settings, device
        every_page = load_pages(settings.pages)
        pages, held = every_page[: settings.limit], held_out(every_page)  # as the spotter's task draws them
        self.spotter = load_module(Spotter(), settings.spotter).to(device)
        self.spots, self.extents = padded([look(self.spotter, page, device) for page in pages])
        self.examples = Examples.of(pages, self.spotter, device)
        located = self.examples.here.any(1).tolist()
        every = range(len(located))
        self.learned = [
            i for i in every if not held[self.examples.page[i]] and (located[i] or self._of_papers(pages, i))
        ]
        apart = [i for i in every if held[self.examples.page[i]] and located[i]]
        self.judged = [i for i in apart if self._of_papers(pages, i)]
        self.judged_charts = [i for i in apart if pages[self.examples.page[i]].source == CHARTS]
        self.course = Curriculum({"questions": len(self.learned)}, seed=settings.seed)
        with torch.random.fork_rng():  # the same start whatever was drawn before
            torch.manual_seed(settings.seed)
            self.module: nn.Module = self.fresh(settings.without)

    def fresh(self, without: Sequence[str] = (), *, blocks: int | None = None) -> Ranker:
        """A ranker that has learned nothing; blocks: other than the settings say."""
        fine, middle, coarse = self.settings.widths
        return Ranker(
            (fine, middle, coarse), blocks=blocks or self.settings.blocks, drop=self.settings.drop, without=without
        )

    def _of_papers(self, pages: Sequence[TrainingPage], index: int) -> bool:
        """Whether a question is of the set that is judged first, and the one that can teach that there is no answer."""
        return pages[self.examples.page[index]].source == "docvqa_half"

    def batch(self, step: int) -> list[int]:
        return [self.learned[index] for _, index in self.course.draw(step, self.settings.batch)]

    def losses(self, batch: list[int], step: int) -> dict[str, Tensor]:
        scores, _, columns = self.scores(batch, learning=True)
        found = self.examples.places(batch, columns, scores.shape[1] - 1)
        return {"place": cost(scores, found, self.examples.weight[batch])}

    def scores(
        self, batch: Sequence[int], *, learning: bool = False, blind: bool = False
    ) -> tuple[Tensor, Tensor, int]:
        """Of questions: (B, h · w + 1) scores, (B, 2) extents, and w."""
        spots, extents = self.seen([self.examples.page[index] for index in batch])
        words, traits, asked = self.asked(batch)
        seeing = torch.full((len(batch), 1), not blind, device=self.device)
        if learning:
            kept = (torch.rand(traits.shape[:2], device=self.device) > DROPPED)[..., None]
            traits, words = traits * kept, words * kept
            seeing = torch.rand(len(batch), 1, device=self.device) > BLIND
        extents = extents.to(self.device)
        scores = self.ranker(spots, words * seeing[..., None], traits * seeing[..., None], asked * seeing, extents)
        return scores, extents, spots.text.shape[2]

    @property
    def ranker(self) -> nn.Module:
        return self.module

    def seen(self, pages: Sequence[int]) -> tuple[Spots, Tensor]:
        """Pages as the spotter saw them, as one batch, and their extents."""
        extents = self.extents[list(pages)]
        rows, columns = (int(extent) for extent in extents.amax(0))
        return Spots(*(part[list(pages)][..., :rows, :columns] for part in self.spots)), extents

    def asked(self, batch: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The words, their traits and what is asked of questions."""
        words, traits, asked = (part[list(batch)] for part in self.examples.question)
        return words, traits, asked

    def evaluate(self) -> dict[str, float]:
        """Of pages that nothing was learned from: the loss, and how often the answer is in the top tenth.

        The same of charts, where there are any, under names that end in _charts.
        """
        found = self._judged(self.judged)
        if self.judged_charts:
            found |= {f"{name}_charts": value for name, value in self._judged(self.judged_charts).items()}
        return found

    def _judged(self, questions: Sequence[int]) -> dict[str, float]:
        found = {"loss": 0.0, "recall": 0.0, "recall_blind": 0.0}
        for start in range(0, len(questions), self.settings.batch):
            batch = questions[start : start + self.settings.batch]
            for blind in (False, True):
                scores, extents, columns = self.scores(batch, blind=blind)
                places = self.examples.places(batch, columns, scores.shape[1] - 1)
                found["recall_blind" if blind else "recall"] += float(in_top(scores, places, extents).sum())
                if not blind:
                    found["loss"] += float(cost(scores, places, torch.ones(len(batch), device=self.device))) * len(
                        batch
                    )
        return {name: value / max(1, len(questions)) for name, value in found.items()}


@dataclass(frozen=True, eq=False)
class Examples:
    """Questions of pages: page, a number each; boxes (N, PLACES, 4) in spots, here (N, PLACES) which of them there are,
    joined (N,) whether they are one answer, weight (N,); and words, traits and asked as `Ranker` takes them."""

    page: list[int]
    boxes: Tensor
    here: Tensor
    joined: Tensor
    weight: Tensor
    question: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, pages: Sequence[TrainingPage], spotter: Spotter, device: str) -> Examples:
        rows = [(number, *asked) for number, page in enumerate(pages) for asked in page.questions]
        boxes = torch.zeros(len(rows), PLACES, 4)
        here = torch.zeros(len(rows), PLACES, dtype=torch.bool)
        for row, (_, _, found) in enumerate(rows):
            for slot, box in enumerate(found[:PLACES]):
                boxes[row, slot], here[row, slot] = torch.tensor(box) / SPOT, True
        sources = [pages[number].source for number, _, _ in rows]
        joined = torch.tensor([source in TOGETHER for source in sources])
        weight = torch.tensor([COUNTS[source] for source in sources])
        question = embedded(spotter, encode([text for _, text, _ in rows]), device)
        numbered = [number for number, _, _ in rows]
        return cls(numbered, boxes.to(device), here.to(device), joined.to(device), weight.to(device), question)

    def places(self, batch: Sequence[int], columns: int, spots: int) -> Tensor:
        """(B, PLACES, spots): each place of the answer as shares of spots that sum to 1; zero where there is none."""
        chosen = list(batch)
        boxes, here, joined = self.boxes[chosen], self.here[chosen], self.joined[chosen]
        rows = spots // columns
        down, across = _shares(boxes[..., 1], boxes[..., 3], rows), _shares(boxes[..., 0], boxes[..., 2], columns)
        shares = (down[..., None] * across[..., None, :]).flatten(2) * here[..., None]
        first = torch.zeros_like(here)
        first[:, 0] = True
        shares = torch.where(joined[:, None, None], shares.sum(1, keepdim=True) * first[..., None], shares)
        return shares / shares.sum(2, keepdim=True).clamp(min=1e-9)


def embedded(spotter: Spotter, question: Question, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Questions as `Ranker` takes them: the words' embeddings, traits, and what is asked."""
    letters, traits, asked = (part.to(device) for part in question)
    with torch.no_grad():
        return spotter.question(letters, traits), traits, asked


@torch.no_grad()
def look(spotter: Spotter, page: TrainingPage, device: str) -> Spots:
    """A page as the trained spotter sees it."""
    grey = torch.from_numpy(page.image)[None, None].to(device).float() / 255
    with torch.autocast(device, torch.bfloat16, enabled=device.startswith("cuda")):
        return Spots(*(part.float() for part in spotter.eval()(grey)))


def padded(pages: Sequence[Spots]) -> tuple[Spots, Tensor]:
    """Spots of single pages (1, …, h, w) of any extent → one batch of the largest extent, and (B, 2) their own."""
    extents = torch.tensor([page.text.shape[1:] for page in pages])
    rows, columns = (int(extent) for extent in extents.amax(0))

    def filled(part: Tensor) -> Tensor:
        return functional.pad(part, (0, columns - part.shape[-1], 0, rows - part.shape[-2]))

    parts = [torch.cat([filled(part) for part in one]) for one in zip(*pages)]
    return Spots(*parts), extents


def _shares(low: Tensor, high: Tensor, count: int) -> Tensor:
    """(B, P) and (B, P), in spots → (B, P, count): how much of each spot lies between."""
    edges = torch.arange(count + 1, device=low.device)
    return (torch.minimum(edges[1:], high[..., None]) - torch.maximum(edges[:-1], low[..., None])).clamp(min=0)


def cost(scores: Tensor, places: Tensor, weight: Tensor) -> Tensor:
    """Scores (B, spots + 1) and places (B, P, spots) → the mean loss."""
    share = scores.log_softmax(1)
    said = share[:, None, :-1].clamp(min=-40)
    parts = torch.where(places > 0, places * (places.clamp(min=1e-9).log() - said), 0.0).sum(2)
    there = places.sum(2) > 0
    best = -torch.logsumexp(torch.where(there, -parts, -torch.inf), 1)
    costs = torch.where(there.any(1), best, -UNPLACED * share[:, -1])
    return (costs * weight).sum() / weight.sum()


def in_top(scores: Tensor, places: Tensor, extents: Tensor) -> Tensor:
    """(B,): whether one place lies in the spots of the highest scores that are a tenth of the page."""
    rank = scores[:, :-1].argsort(1, descending=True).argsort(1)
    chosen = rank < (TOP * extents.prod(1))[:, None]
    return ((places * chosen[:, None]).sum(2) >= COVERED).any(1)
