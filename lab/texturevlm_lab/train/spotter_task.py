"""Train the spotter to read: endless rendered pages, mixed with real pages whose words an OCR engine read.

An example is a page with known words, at a random scale on a canvas, with a target per spot. A spot in a word must tell
that word from every other word of the batch and from misspellings of it. So no list of classes is needed, and words
never seen in training can be found. Worker processes make the examples, each from its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.check import check_count
from texturevlm.scout.question import SYMBOLS, letter_codes, letter_features
from texturevlm.scout.spotter import SPOT, Spots, Spotter
from texturevlm.text.strings import KINDS, kinds, plain
from texturevlm_lab.train.pages import TrainingPage, held_out, load_pages
from texturevlm_lab.train.render import Vocabulary, find_fonts, render_page

VIEWS = 2  # per page, at different scales: rendering costs more than scaling
CANVAS = (1104, 848)  # pixels
SCALES = (0.7, 1.35)
SPOTS_PER_WORD = 3
MOST_WORDS = 400  # per page
_MARGIN = 0.2  # share of a word's height, at its top and bottom, where no spot is drawn
SMALLEST = 5.0  # pixels: lower text is illegible
_WORD_GAP = 1.5  # heights: words with a wider gap between them are not on one line

Words = Sequence[tuple[str, Box]]  # text and box in pixels


class SpotterExample(NamedTuple):
    """A page on the canvas and its targets; several, after `collate`, with a batch dimension where noted."""

    image: Tensor  # (H, W) uint8; collated (B, 1, H, W)
    spots: Tensor  # (N, 2), row and column of the spots with targets; collated (N, 3), page first
    word: Tensor  # (N,), index into `letters` of the word at each spot
    letters: Tensor  # (M, LONGEST) int8
    kinds: Tensor  # (N, len(KINDS)), of the word at each spot
    height: Tensor  # (N,), logarithm of the word's height
    text: Tensor  # (h, w) uint8, whether there is text; collated (B, h, w)


class SpotterTask:
    """A task of `fit`: the spotter learns to read."""

    @dataclass(frozen=True)
    class Settings:
        pages: Path  # from `texturevlm pack-pages`
        fonts: Path | None = None  # folder of fonts (default: the system's)
        batch: int = 16  # pages per step
        real: float = 0.3  # the share of them that is not rendered
        workers: int = 15  # processes that make pages
        seed: int = 2
        limit: int | None = None  # pages to evaluate on

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
        self.makers.submit(torch.get_num_threads).result()
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


def _make_page(number: int) -> list[list[np.ndarray[Any, Any]]]:
    """Arrays, since a tensor that is sent to another process keeps a file open."""
    assert _maker is not None
    return [[part.numpy() for part in one] for one in _maker(number)]


def spotter_example(page: NDArray[np.uint8], words: Words, generator: np.random.Generator) -> SpotterExample:
    """A page (H, W) with its words, at a random scale and place on the canvas."""
    scale = float(np.exp(generator.uniform(*np.log(SCALES))))
    high, wide = (max(16, round(extent * scale)) for extent in page.shape)
    resized = Image.fromarray(page).resize((wide, high), Image.Resampling.BILINEAR, reducing_gap=None)
    room = (CANVAS[0] - high, CANVAS[1] - wide)
    top, left = (int(generator.integers(min(0, free), max(0, free) + 1)) for free in room)
    ratios, shifts = 2 * (wide / page.shape[1], high / page.shape[0]), 2 * (left, top)
    boxes = [tuple(v * r + s for v, r, s in zip(box, ratios, shifts)) for _, box in words]
    word_kinds = kinds_by_line(words)
    letters: list[str] = []
    spots, word, kind, height = [], [], [], []
    for index in generator.permutation(len(words))[:MOST_WORDS]:
        text, (x0, y0, x1, y1) = words[index][0], boxes[index]
        whole = x0 >= 0 and y0 >= 0 and x1 <= CANVAS[1] and y1 <= CANVAS[0]
        if not whole or y1 - y0 < SMALLEST or not plain(text):
            continue
        edge = _MARGIN * (y1 - y0)
        down, across = _spots_within(y0 + edge, y1 - edge), _spots_within(x0, x1)
        for _ in range(SPOTS_PER_WORD):
            spots.append((generator.integers(down.start, down.stop), generator.integers(across.start, across.stop)))
            word.append(len(letters))
            kind.append(word_kinds[index])
            height.append(np.log(y1 - y0))
        letters.append(text)
    return SpotterExample(
        torch.from_numpy(_on_canvas(np.asarray(resized), top, left)),
        torch.tensor(np.array(spots, np.int64).reshape(-1, 2)),
        torch.tensor(word, dtype=torch.int64),
        letter_codes(letters).to(torch.int8),
        torch.tensor(np.array(kind, np.float32).reshape(-1, len(KINDS))),
        torch.tensor(height, dtype=torch.float32),
        torch.from_numpy(_text_map(boxes)),
    )


def _text_map(boxes: Sequence[tuple[float, ...]]) -> NDArray[np.uint8]:
    """(h, w): 1 at the spots in some word's box. Every word is text, also one without targets."""
    text = np.zeros((CANVAS[0] // SPOT, CANVAS[1] // SPOT), np.uint8)
    for x0, y0, x1, y1 in boxes:
        left, top, right, bottom = max(x0, 0.0), max(y0, 0.0), min(x1, CANVAS[1]), min(y1, CANVAS[0])
        if left < right and top < bottom and y1 - y0 >= SMALLEST:
            text[_spots_within(top, bottom), _spots_within(left, right)] = 1
    return text


def kinds_by_line(words: Words) -> NDArray[np.float32]:
    """(N, len(KINDS)): neighbouring words of a line are classified together, since a date may be several words."""
    found = np.zeros((len(words), len(KINDS)), np.float32)
    start = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or not _on_one_line(words[end - 1][1], words[end][1]):
            found[start:end] = kinds([word for word, _ in words[start:end]])
            start = end
    return found


def _on_one_line(first: Box, second: Box) -> bool:
    height = first[3] - first[1]
    shared = min(first[3], second[3]) - max(first[1], second[1])
    return shared > 0.5 * height and -0.5 * height < second[0] - first[2] < _WORD_GAP * height


def _on_canvas(image: NDArray[np.uint8], top: int, left: int) -> NDArray[np.uint8]:
    """The image cropped to the canvas, surrounded by the median colour of its border."""
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    canvas = np.full(CANVAS, np.median(border), np.uint8)
    y, x = max(0, top), max(0, left)
    part = image[y - top : y - top + CANVAS[0] - y, x - left : x - left + CANVAS[1] - x]
    canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
    return canvas


def _spots_within(low: float, high: float) -> slice:
    """The spots whose centres lie between; the nearest one if there is none."""
    first, last = int(np.ceil(low / SPOT - 0.5)), int(np.floor(high / SPOT - 0.5))
    if last < first:
        first = last = int((low + high) / 2 / SPOT)
    return slice(max(0, first), max(0, first, last) + 1)


def collate(examples: Sequence[SpotterExample]) -> SpotterExample:
    """Several pages as one batch; words are numbered through."""
    first = np.cumsum([0, *(len(one.letters) for one in examples)])
    return SpotterExample(
        torch.stack([one.image for one in examples])[:, None],
        torch.cat([functional.pad(one.spots, (1, 0), value=page) for page, one in enumerate(examples)]),
        torch.cat([one.word + int(start) for one, start in zip(examples, first)]),
        torch.cat([one.letters for one in examples]),
        torch.cat([one.kinds for one in examples]),
        torch.cat([one.height for one in examples]),
        torch.stack([one.text for one in examples]),
    )


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
