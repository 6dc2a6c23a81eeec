"""Train the spotter to read: endless rendered pages, mixed with real pages whose words an OCR engine read.

A spot in a word must tell that word from every other word of the batch and from misspellings of it. So no list of
classes is needed, and words never seen in training can be found. Worker processes make the pages, each from its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.scout.question import SYMBOLS, letter_features
from texturevlm.scout.spotter import Spots, Spotter
from texturevlm.train.pages import TrainingPage, held_out, load_pages
from texturevlm.train.render import Vocabulary, find_fonts, render_page
from texturevlm.train.spotter_example import SpotterExample, collate, spotter_example

VIEWS = 2  # per page, at different scales: rendering costs more than scaling


class SpotterTask:
    """The task `spotter`."""

    @dataclass(frozen=True)
    class Settings:
        """pages: folder from `texturevlm pack-pages`; fonts: folder of fonts (default: the system's); batch: pages per
        step; real: the share of them that is not rendered; workers: processes that make pages; limit: pages to
        evaluate on."""

        pages: Path
        fonts: Path | None = None
        batch: int = 16
        real: float = 0.3
        workers: int = 15
        seed: int = 2
        limit: int | None = None

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_count("SpotterTask", "batch", settings.batch, VIEWS)
        check_count("SpotterTask", "workers", settings.workers, 1)
        if not 0 <= settings.real <= 1:
            raise ValueError(f"SpotterTask: real must be 0 to 1, got {settings.real!r}")
        self.settings, self.device = settings, device
        every = load_pages(settings.pages)
        held = held_out(every)  # of all pages, so that spotter and ranker hold out the same documents
        self.evaluated = [page for page, out in zip(every, held) if out and page.words][: settings.limit]
        maker = _PageMaker(settings, [page for page, out in zip(every, held) if not out])
        # Forked, so that the pages are in memory once; at once, while no thread of ours holds a lock.
        self.makers = ProcessPoolExecutor(settings.workers, get_context("fork"), _start_worker, (maker,))
        self.makers.submit(_worker_ready).result()
        with torch.random.fork_rng():  # the same initial weights whatever was drawn before
            torch.manual_seed(settings.seed)
            self.module = Spotter()

    def batch(self, step: int) -> SpotterExample:
        count = self.settings.batch // VIEWS
        made = self.makers.map(_make_page, range(step * count, (step + 1) * count))
        return self._collated([SpotterExample(*map(torch.from_numpy, parts)) for views in made for parts in views])

    def _collated(self, examples: Sequence[SpotterExample]) -> SpotterExample:
        return SpotterExample(*(part.to(self.device, non_blocking=True) for part in collate(examples)))

    def losses(self, batch: SpotterExample, step: int) -> dict[str, Tensor]:
        return spotter_losses(self.module, batch)

    def evaluate(self) -> dict[str, float]:
        """On held-out real pages: how often the word nearest to a spot, among the page's words, is the right one."""
        right = total = 0
        for number, page in enumerate(self.evaluated):
            generator = np.random.default_rng([5, number])
            one = self._collated([spotter_example(page.image, page.words, generator)])
            if not len(one.spots):
                continue
            embeddings, words, target = _at_spots(self.module(one.image.float() / 255), one)
            nearest = (embeddings @ self.module.embed(letter_features(words)).float().T).argmax(1)
            right += int((nearest == target).sum())
            total += len(target)
        return {"right": right / max(1, total)}


class _PageMaker:
    """Makes page number n, in a worker process."""

    def __init__(self, settings: SpotterTask.Settings, pages: Sequence[TrainingPage]) -> None:
        """pages: those that may be learned from, and whose words and questions may be rendered"""
        self.settings, self.pages = settings, [page for page in pages if page.words]
        self.fonts = find_fonts(settings.fonts)
        texts = {text for page in self.pages for text, _ in page.words}
        texts |= {word for page in pages for question, _ in page.questions for word in question.split()}
        self.vocabulary = Vocabulary(sorted(texts))

    def __call__(self, number: int) -> list[SpotterExample]:
        generator = np.random.default_rng([self.settings.seed, number])
        if len(self.pages) and generator.random() < self.settings.real:
            chosen = [self.pages[index] for index in generator.integers(len(self.pages), size=VIEWS)]
            return [spotter_example(page.image, page.words, generator) for page in chosen]
        rendered = render_page(generator, self.fonts, self.vocabulary)
        return [spotter_example(rendered.image, rendered.words, generator) for _ in range(VIEWS)]


_maker: _PageMaker | None = None  # of this worker process


def _start_worker(maker: _PageMaker) -> None:
    global _maker
    _maker = maker
    torch.set_num_threads(1)


def _worker_ready() -> bool:
    return _maker is not None


def _make_page(number: int) -> list[list[np.ndarray[Any, Any]]]:
    """Arrays, since a tensor that is sent to another process keeps a file open."""
    assert _maker is not None
    return [[part.numpy() for part in one] for one in _maker(number)]


def misspelt(letters: Tensor) -> Tensor:
    """Words (M, LONGEST) with one letter changed."""
    length = (letters >= 0).sum(1).clamp(min=1)
    where = (torch.rand(len(letters), device=letters.device) * length).long()
    change = torch.randint(1, SYMBOLS, where.shape, device=letters.device)
    rows = torch.arange(len(letters), device=letters.device)
    changed = letters.clone()
    changed[rows, where] = (letters[rows, where] + change) % SYMBOLS
    return changed


def spotter_losses(spotter: Spotter, batch: SpotterExample) -> dict[str, Tensor]:
    """The parts of the loss of a collated batch on the spotter's device."""
    spots = spotter(augmented(batch.image.float() / 255))
    page, row, column = batch.spots.unbind(1)
    embeddings, words, target = _at_spots(spots, batch)
    candidates = torch.cat([words, misspelt(words)])
    cosine = embeddings @ spotter.embed(letter_features(candidates)).float().T
    same = functional.one_hot(target, len(candidates)).float()
    hit = functional.binary_cross_entropy_with_logits(spotter.hits(cosine), same, reduction="sum") / len(embeddings)
    kind = functional.binary_cross_entropy_with_logits(spots.kinds[page, :, row, column].float(), batch.kinds)
    return {
        "word": functional.cross_entropy(spotter.sharpness.exp() * cosine, target),
        "hit": hit,
        "text": functional.binary_cross_entropy_with_logits(spots.text.float(), batch.text.float()),
        "kinds": kind,
        "height": functional.smooth_l1_loss(spots.height[page, row, column].float(), batch.height),
    }


def _at_spots(spots: Spots, batch: SpotterExample) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings at the spots with targets, the batch's words without repetition, and the index of each target."""
    page, row, column = batch.spots.unbind(1)
    words, place = torch.unique(batch.letters.long(), dim=0, return_inverse=True)
    return spots.words[page, :, row, column].float(), words, place[batch.word]


def augmented(grey: Tensor) -> Tensor:
    """Random contrast, brightness and grain per page; some pages become negatives."""
    count = (len(grey), 1, 1, 1)
    low = 0.3 * torch.rand(count, device=grey.device) ** 2
    high = 1 - 0.3 * torch.rand(count, device=grey.device) ** 2
    grain = 0.1 * torch.rand(count, device=grey.device) ** 2
    changed = (low + (high - low) * grey + grain * torch.randn_like(grey)).clamp(0, 1)
    negative = torch.rand(count, device=grey.device) < 0.05
    return torch.where(negative, 1 - changed, changed)
