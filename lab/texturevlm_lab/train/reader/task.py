"""Train the reader: lines first, then blocks, then questions with views as choosers lay them.

Pages are rendered without end and mixed with real pages of train splits. Batches depend on how many pages the workers
have made so far, so two runs of one seed see the same pages but not the same batches. A run that is resumed, or begins
with other weights, sees other pages: the stages of a long training must not repeat the pages of the one before.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from texturevlm.check import check_count
from texturevlm.text.edits import edit_distance
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.train.fit import generator_at
from texturevlm_lab.train.reader.alphabet import decode_ids
from texturevlm_lab.train.reader.forward import (
    BatchedReader,
    Prompts,
    answer_loss,
    answer_starts,
    answers,
    character_losses,
)
from texturevlm_lab.train.reader.heads import LetterHead, PlaceHead, token_shares
from texturevlm_lab.train.reader.network import load_weights, make_network
from texturevlm_lab.train.reader.packing import PackedPages, is_held
from texturevlm_lab.train.reader.pages import PAGE_SIZE, ReaderPage, make_vocabulary, rendered, spoiled, turned
from texturevlm_lab.train.reader.pool import Batch, Made, Pool, Workers, report_errors, sample_pages
from texturevlm_lab.train.reader.questions import labelled_questions, table_questions
from texturevlm_lab.train.reader.rewritten import AnswerWriter
from texturevlm_lab.train.reader.samples import CROPS, SHAPES, page_samples
from texturevlm_lab.train.reader.views import AHEAD, CHOOSERS, VIEW_KINDS
from texturevlm_lab.train.render import Vocabulary, find_fonts
from texturevlm_lab.train.render.fonts import family_name

BATCHES = {"line": 1024, "block": 512, "few": 384, "many": 160, "most": 80}  # samples per step at batch = 1
SHARES = {"line": 0.04, "block": 0.08, "few": 0.24, "many": 0.46, "most": 0.18}  # of steps, once all are learned
SETS = {"docvqa_half": 0.45, "funsd": 0.27, "sroie": 0.2, "chartqa": 0.08}  # how often a real page is one of a set
_TURNED = 0.02  # share of pages that are mirrored or upside down
_SPOILED = 0.015  # share of pages with nothing to read
_UNSEEN = 9  # one font family in so many is held out
_LONGEST = 40  # characters of answers that are judged
_JUDGED = 192  # samples of a shape
_AT_ONCE = 32  # samples whose loss is found together
_TURNS = ({"across": True, "down": False}, {"across": False, "down": True}, {"across": True, "down": True})
_RECOMPILED = 64  # each shape, and each of several modules, compiles anew


class ReaderModule(nn.Module):
    """What is trained: the network, and the heads that are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = make_network()
        self.letter_head = LetterHead(self.network.config.vision_config.hidden_size)
        self.place_head = PlaceHead(self.network.config.text_config.hidden_size)


class Drawn(NamedTuple):
    shape: str
    batch: Batch


class ReaderTask:
    """A task of `fit`: the reader learns to read and to answer."""

    @dataclass(frozen=True)
    class Settings:
        pages: Path | None = None  # from `texturevlm pack-reader`; None for rendered pages alone
        fonts: Path | None = None  # folder of fonts (default: the system's)
        start: Path | None = None  # weights to begin with
        lines: int = 1000  # steps of lines alone
        blocks: int = 2500  # until this step no questions
        batch: float = 1.0  # of BATCHES
        real: float = 0.33  # the share of pages that are not rendered
        rewritten: float = 0.6  # the share of the answers on real pages that are replaced by others
        views: dict[str, float] = field(default_factory=lambda: dict(VIEW_KINDS))  # kinds, and how often each is drawn
        choosers: float = 0.1  # the share of pages whose views are laid by the package's own choosers
        workers: int = 15  # processes that make pages
        room: int = 16000  # pages in the pool
        first: int = 500  # pages before the first step
        judged: int = 24  # rendered pages, and held-out real pages, to evaluate on
        compiled: bool = True
        seed: int = 0

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        for name in ("workers", "first", "room"):
            check_count("ReaderTask", name, getattr(settings, name), 1)
        for name in ("real", "rewritten", "choosers"):
            if not 0 <= getattr(settings, name) <= 1:
                raise ValueError(f"ReaderTask: {name} must be 0 to 1, got {getattr(settings, name)!r}")
        if unknown := [name for name in settings.views if name not in VIEW_KINDS]:
            raise ValueError(f"ReaderTask: views may have {', '.join(VIEW_KINDS)}, got {unknown[0]!r}")
        if sum(share for name, share in settings.views.items() if name != AHEAD) <= 0:
            raise ValueError(f"ReaderTask: views must have another kind beside {AHEAD}, got {settings.views}")
        if settings.start is not None and not settings.start.is_file():
            raise FileNotFoundError(f"ReaderTask: start must be a file of weights, got {settings.start}")
        self.settings, self.device = settings, device
        self.maker = PageMaker(settings)
        seeds = (settings.seed, 0 if settings.start is None else _digest(settings.start))
        self.workers = Workers(report_errors(self.maker.learned), settings.workers, seeds)
        self.pool: Pool | None = None
        self._filling = threading.Lock()  # `fit` may prepare batches in several threads
        self.held: dict[str, Pool] = {}
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.module = ReaderModule()
        if settings.start is not None:
            load_weights(self.module.network, settings.start)
        compiled = settings.compiled and device != "cpu"
        if compiled:
            torch._dynamo.config.recompile_limit = _RECOMPILED
            torch._dynamo.config.accumulated_recompile_limit = _RECOMPILED * 8
        if device != "cpu":
            torch.set_float32_matmul_precision("high")
        self.reader = BatchedReader(self.module.network, compiled=compiled)
        self.plain = BatchedReader(self.module.network)  # answers have changing lengths, which are not worth compiling
        self.sampler = torch.compile(sample_pages, dynamic=False) if compiled else sample_pages

    def batch(self, step: int) -> Drawn:
        with self._filling:
            if self.pool is None:
                self.pool = self._filled(step)
        shares = {"line": 1.0} if step < self.settings.lines else SHARES
        if self.settings.lines <= step < self.settings.blocks:
            shares = {"line": 0.5, "block": 0.5}
        roll = float(torch.rand((), generator=generator_at(self.settings.seed, step, "shape"), dtype=torch.float64))
        ends = np.cumsum(list(shares.values()))
        shape = list(shares)[min(int(np.searchsorted(ends, roll * ends[-1], side="right")), len(shares) - 1)]
        return Drawn(shape, self.pool.draw(shape, max(1, round(BATCHES[shape] * self.settings.batch))))

    def _filled(self, step: int) -> Pool:
        """The pool with its first pages; meanwhile the pages to evaluate on are made."""
        pool = Pool(self.settings.room, self.device)
        pool.sampler = self.sampler
        self.workers.feed(pool, step)
        self.held = {name: self._held(name) for name in ("rendered", "wording", "real")}
        while pool.filled < min(self.settings.first, self.settings.room):
            if not self.workers.alive:
                raise RuntimeError("ReaderTask: a worker process ended, see its error above")
            time.sleep(0.1)
        return pool

    def _held(self, name: str) -> Pool:
        made = self.maker.held_out(name, self.settings.judged)
        pool = Pool(max(1, len(made)), self.device)
        pool.add(made)
        return pool

    def losses(self, drawn: Drawn, step: int) -> dict[str, Tensor]:
        batch = drawn.batch
        found = self.reader(batch.prompts)
        loss = answer_loss(found.logits, batch.prompts)
        letters = place = loss.new_zeros(())
        if drawn.shape in CROPS:
            letters = self.module.letter_head(found.patches, batch.prompts, batch.centre, batch.step, batch.marks)
        else:
            tokens = (batch.centre, batch.step, batch.prompts.used)
            wanted = torch.stack([token_shares(*tokens, boxes) for boxes in (batch.boxes, batch.named)], 1)
            place = self.module.place_head(found.visual, found.answer, wanted)
        return {"answer": loss, "letters": letters, "place": place}

    def evaluate(self) -> dict[str, float]:
        """On pages with unseen fonts, with unseen wordings, and real pages of held-out documents of the train split."""
        found: dict[str, float] = {"pages": float(self.pool.seen if self.pool else 0)}
        for name, pool in self.held.items():
            for shape in SHAPES:
                if name == "wording" and shape in CROPS:
                    continue
                judged = self.judged(pool, shape)
                if judged is None:
                    continue
                found[f"{name}_{shape}_loss"] = float(self.sample_losses(judged[0]).mean())
                pairs = self._said(judged[0])
                if shape in CROPS:
                    found[f"{name}_{shape}_cer"] = error_rate(pairs)
                else:
                    found[f"{name}_{shape}_anls"] = sum(anls(said, [true]) for said, true in pairs) / len(pairs)
        return found

    def judged(self, pool: Pool, shape: str) -> tuple[Batch, Tensor] | None:
        """The samples of a shape that are judged, those with short answers, and their pages; None if there are none."""
        length, before = (pool.samples[shape][name][: pool.filled] for name in ("length", "before"))
        fits = (length > 0) & (length - before - 3 <= _LONGEST)
        places = fits.nonzero()
        if not len(places):
            return None
        chosen = torch.linspace(0, len(places) - 1, min(_JUDGED, len(places)), device=places.device).long()
        page, number = places[chosen].unbind(1)
        return pool.batch(shape, page, number), page

    def sample_losses(self, batch: Batch) -> Tensor:
        """(B,): the mean loss of each answer's characters."""
        found = []
        for first in range(0, len(batch.prompts.ids), _AT_ONCE):  # few at once: several trainings may share a GPU
            some = [None if one is None else one[first : first + _AT_ONCE] for one in batch.prompts]
            prompts = Prompts(*some)  # type: ignore[arg-type]  # only `segment` may be None
            with torch.autocast(prompts.pixels.device.type, torch.bfloat16, enabled=prompts.pixels.is_cuda):
                each, counts = character_losses(self.plain(prompts).logits, prompts)
            found.append((each * counts).sum(1) / counts.sum(1))
        return torch.cat(found)

    def _said(self, batch: Batch) -> list[tuple[str, str]]:
        """What is read, and what is true."""
        prompts = batch.prompts
        with torch.autocast(prompts.pixels.device.type, torch.bfloat16, enabled=prompts.pixels.is_cuda):
            said = answers(self.plain, prompts, _LONGEST + 1).tolist()
        truth = zip(prompts.ids.tolist(), answer_starts(prompts.ids).tolist())
        return [(decode_ids(one), decode_ids(ids[first + 1 :])) for one, (ids, first) in zip(said, truth)]


def error_rate(pairs: Sequence[tuple[str, str]]) -> float:
    """Edits per true character, of (said, true) pairs."""
    return sum(edit_distance(said, true) for said, true in pairs) / max(1, sum(len(true) for _, true in pairs))


def _digest(path: Path) -> int:
    return int.from_bytes(hashlib.blake2b(path.read_bytes(), digest_size=8).digest(), "big")


class PageMaker:
    """Makes pages with samples: those to learn from, and those that are held out."""

    def __init__(self, settings: ReaderTask.Settings) -> None:
        self.settings = settings
        self.packed = None if settings.pages is None else PackedPages(settings.pages)
        self.numbers, self.held = ([], []) if self.packed is None else self.packed.split()
        texts = [] if self.packed is None else [self.packed.texts(number) for number in self.numbers]
        self.vocabulary: Vocabulary = make_vocabulary(texts)
        self.shares = np.array([] if self.packed is None else _page_shares(self.packed, self.numbers))
        self.fonts, self.unseen = split_fonts(find_fonts(settings.fonts))
        self.writer = AnswerWriter(self.fonts, [word for page in texts for word, _ in page.words])

    def learned(self, rng: np.random.Generator) -> Made:
        """A page that gives samples to read and to answer."""
        while True:
            if self.packed is not None and rng.random() < self.settings.real:
                page = self._real(int(rng.choice(self.numbers, p=self.shares)), rng)
            else:
                page = rendered(rng, self.fonts, self.vocabulary)
            roll = rng.random()
            if roll < _TURNED:
                page = turned(page, **_TURNS[int(rng.integers(len(_TURNS)))])
            elif roll < _TURNED + _SPOILED:
                page = spoiled(page, rng)
            choosers = CHOOSERS if rng.random() < self.settings.choosers else ()
            samples = page_samples(page, rng, choosers=choosers, kinds=self.settings.views)
            if samples["line"] and samples["many"]:
                return page, samples

    def _real(self, number: int, rng: np.random.Generator) -> ReaderPage:
        """A real page with some answers of its own and some others, often shrunk or, if it is small, enlarged."""
        assert self.packed is not None
        room = min(most / extent for most, extent in zip(PAGE_SIZE, self.packed.size(number)))
        scale = float(rng.uniform(0.85, min(room, 1.3))) if rng.random() < 0.7 else 1.0
        page = self.packed.page(number, min(scale, room))
        for more in (labelled_questions, table_questions):
            page = page._replace(questions=[*page.questions, *more(page.words, page.questions, rng)])
        return self.writer.rewrite(page, rng, self.settings.rewritten)

    def held_out(self, name: str, count: int) -> list[Made]:
        """The same pages at every call. name: rendered, wording (held-out wordings of questions) or real"""
        if name == "real":
            numbers = self.held[:count]
            return [self._sampled(self.packed.page(one), one) for one in numbers] if self.packed is not None else []
        wording, found = ("held_out" if name == "wording" else "asked"), []
        for number in range(count):
            rng = np.random.default_rng([1000 + len(name), number])
            found.append(self._sampled(rendered(rng, self.unseen, self.vocabulary, wording=wording), number))
        return found

    def _sampled(self, page: ReaderPage, number: int) -> Made:
        return page, page_samples(page, np.random.default_rng([5, number]))


def _page_shares(packed: PackedPages, numbers: Sequence[int]) -> list[float]:
    """How often each page is drawn: sets by SETS, pages of a set alike."""
    sets = [packed.rows[number]["set"] for number in numbers]
    shares = [SETS[name] / sets.count(name) for name in sets]
    return [share / sum(shares) for share in shares]


def split_fonts(fonts: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Font files to learn from, and those of held-out families: the same ones whatever else is installed.

    All for both if that leaves none for one of them.
    """
    unseen = [path for path in fonts if is_held(family_name(path), _UNSEEN)]
    seen = [path for path in fonts if path not in unseen]
    return (seen, unseen) if seen and unseen else (list(fonts), list(fonts))
