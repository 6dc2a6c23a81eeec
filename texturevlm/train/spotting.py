"""Teach the spotter to read: rendered pages without end, mixed with real ones whose words an OCR engine read.

A spot in a word must tell that word from every other word of the batch, and from misspellings of it; so no list of
classes is needed, and words never seen can be found. Pages are made in processes of their own, each from its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.scout.letters import SYMBOLS, letter_features
from texturevlm.scout.spotter import Spots, Spotter
from texturevlm.train.lesson import Lesson, Written, lesson, together
from texturevlm.train.pages import TrainingPage, held_out, load_pages
from texturevlm.train.render import Vocabulary, find_fonts, render_page

VIEWS = 2  # of a page, at other scales: drawing it costs more than that


class Spotting:
    """The task."""

    @dataclass(frozen=True)
    class Settings:
        """pages: a folder from `train.pages`; fonts: a folder of fonts (else those of the machine); batch: pages a
        step; real: the share of them that is not rendered; workers: processes that make pages; limit: pages that are
        judged on, to try it out."""

        pages: Path
        fonts: Path | None = None
        batch: int = 16
        real: float = 0.3
        workers: int = 15
        seed: int = 2
        limit: int | None = None

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_count("Spotting", "batch", settings.batch, VIEWS)
        check_count("Spotting", "workers", settings.workers, 1)
        if not 0 <= settings.real <= 1:
            raise ValueError(f"Spotting: real must be 0 to 1, got {settings.real!r}")
        self.settings, self.device = settings, device
        every = load_pages(settings.pages)
        held = held_out(every)  # of all pages, so that spotter and ranker are judged on the same documents
        self.judged = [page for page, out in zip(every, held) if out and page.words][: settings.limit]
        learned = [page for page, out in zip(every, held) if not out]
        asked = [question for page in learned for question, _ in page.questions]
        maker = _Maker(settings, [page for page in learned if page.words], asked)
        # forked, so that the pages are in memory once; at once, while no thread of ours holds a lock
        self.makers = ProcessPoolExecutor(settings.workers, get_context("fork"), _begin, (maker,))
        self.makers.submit(_ready).result()
        with torch.random.fork_rng():  # the same start whatever was drawn before
            torch.manual_seed(settings.seed)
            self.module = Spotter()

    def batch(self, step: int) -> Lesson:
        count = self.settings.batch // VIEWS
        made = self.makers.map(_make, range(step * count, (step + 1) * count))
        lessons = [Lesson(*map(torch.from_numpy, parts)) for views in made for parts in views]
        return _on(together(lessons), self.device)

    def losses(self, batch: Lesson, step: int) -> dict[str, Tensor]:
        return losses(self.module, batch)

    def evaluate(self) -> dict[str, float]:
        """Of real pages that nothing was learned from: how often a spot's nearest word is its own, among the page's."""
        right = total = 0
        for number, page in enumerate(self.judged):
            one = _on(together([lesson(written(page), np.random.default_rng([5, number]))]), self.device)
            if not len(one.spots):
                continue
            said, known, wanted = _said(self.module(one.image.float() / 255), one)
            nearest = (said @ self.module.embed(letter_features(known)).float().T).argmax(1)
            right += int((nearest == wanted).sum())
            total += len(wanted)
        return {"right": right / max(1, total)}


class _Maker:
    """What a process needs to make page number n."""

    def __init__(self, settings: Spotting.Settings, pages: Sequence[TrainingPage], asked: Sequence[str]) -> None:
        self.settings, self.pages = settings, pages
        self.fonts = find_fonts(settings.fonts)
        texts = {text for page in pages for text, _ in page.words} | {word for text in asked for word in text.split()}
        self.vocabulary = Vocabulary(sorted(texts))

    def __call__(self, number: int) -> list[Lesson]:
        generator = np.random.default_rng([self.settings.seed, number])
        if len(self.pages) and generator.random() < self.settings.real:
            chosen = generator.integers(len(self.pages), size=VIEWS)
            return [lesson(written(self.pages[index]), generator) for index in chosen]
        drawn = render_page(generator, self.fonts, self.vocabulary)
        return [lesson(Written(drawn.image, drawn.words), generator) for _ in range(VIEWS)]


_maker: _Maker | None = None  # of this process


def _begin(maker: _Maker) -> None:
    global _maker
    _maker = maker
    torch.set_num_threads(1)


def _ready() -> bool:
    return _maker is not None


def _make(number: int) -> list[list[np.ndarray]]:
    """Arrays, since a tensor that is sent to another process keeps a file open."""
    assert _maker is not None
    return [[part.numpy() for part in one] for one in _maker(number)]


def written(page: TrainingPage) -> Written:
    """A page of `train.pages` as a lesson takes it."""
    return Written(page.image, page.words)


def _on(batch: Lesson, device: str) -> Lesson:
    return Lesson(*(part.to(device, non_blocking=True) for part in batch))


def misspelt(letters: Tensor) -> Tensor:
    """Words with one letter changed."""
    length = (letters >= 0).sum(1).clamp(min=1)
    where = (torch.rand(len(letters), device=letters.device) * length).long()
    change = torch.randint(1, SYMBOLS, where.shape, device=letters.device)
    rows = torch.arange(len(letters), device=letters.device)
    changed = letters.clone()
    changed[rows, where] = (letters[rows, where] + change) % SYMBOLS
    return changed


def losses(spotter: Spotter, batch: Lesson) -> dict[str, Tensor]:
    """What `together` made, on the spotter's device → the parts of the loss."""
    spots = spotter(noisy(batch.image.float() / 255))
    page, row, column = batch.spots.unbind(1)
    said, known, wanted = _said(spots, batch)
    listed = torch.cat([known, misspelt(known)])
    vectors = spotter.embed(letter_features(listed)).float()
    cosine = said @ vectors.T
    sharpness = spotter.sharpness.exp()
    same = functional.one_hot(wanted, len(listed)).bool()
    logits = spotter.hits(cosine)
    hit = functional.binary_cross_entropy_with_logits(logits, same.float(), reduction="sum") / len(said)
    kind = functional.binary_cross_entropy_with_logits(spots.kinds[page, :, row, column].float(), batch.kinds)
    return {
        "word": functional.cross_entropy(sharpness * cosine, wanted),
        "hit": hit,
        "text": functional.binary_cross_entropy_with_logits(spots.text.float(), batch.text.float()),
        "kinds": kind,
        "height": functional.smooth_l1_loss(spots.height[page, row, column].float(), batch.height),
    }


def _said(spots: Spots, batch: Lesson) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of the spots that are asked, the batch's words without repetition, and which of them is wanted."""
    page, row, column = batch.spots.unbind(1)
    known, place = torch.unique(batch.letters.long(), dim=0, return_inverse=True)
    return spots.words[page, :, row, column].float(), known, place[batch.asked]


def noisy(grey: Tensor) -> Tensor:
    """Contrast, brightness and grain, another for each page; some pages are negatives."""
    count = (len(grey), 1, 1, 1)
    low = 0.3 * torch.rand(count, device=grey.device) ** 2
    high = 1 - 0.3 * torch.rand(count, device=grey.device) ** 2
    grain = 0.1 * torch.rand(count, device=grey.device) ** 2
    changed = (low + (high - low) * grey + grain * torch.randn_like(grey)).clamp(0, 1)
    negative = torch.rand(count, device=grey.device) < 0.05
    return torch.where(negative, 1 - changed, changed)
