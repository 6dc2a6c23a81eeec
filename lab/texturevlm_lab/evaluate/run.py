"""Run allocators over questions: the metrics judge what each configuration delivers, beside the baselines.

The ideal resize, a resize in whole tokens and `grid` are always included, and the controls: the full image (the
ceiling), the question of another page, and no question. Results are written as they come: a stopped run resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from texturevlm.check import check_choice, check_count
from texturevlm.placement import choose_tokens
from texturevlm.progress import Progress
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import SCORERS, Prepared, Relevance, find_scorer, prepare, reads_question
from texturevlm.scout import Spots
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate import results as runs
from texturevlm_lab.evaluate.data import Sample, strata_of
from texturevlm_lab.evaluate.metrics import METRICS, Case, Delivered, suited
from texturevlm_lab.evaluate.ocr import OcrEngine, cached_engines, open_engines
from texturevlm_lab.evaluate.page_cache import PageCache, costed
from texturevlm_lab.evaluate.provenance import code_digest
from texturevlm_lab.evaluate.results import Configuration, ResultRow, Results

CONTROLS = (runs.OTHER, runs.NONE)
BUDGETS = (32, 64, 96, 128, 192, 273, 512)
Choose = Callable[..., Allocation]  # pipeline.choose_tokens, or a function with its arguments
Named = Sequence[str] | Mapping[str, Any]  # names, or name → callable


def evaluate(
    samples: Sequence[Sample],
    *,
    allocators: Named,
    relevances: Named = ("auto",),
    budgets: Sequence[int] = BUDGETS,
    patch: int = 32,
    metrics: Sequence[str] | None = None,
    ocr: Sequence[str] | Mapping[str, OcrEngine] = ("auto",),
    out: Path,
    controls: Sequence[str] = CONTROLS,
    controlled: Sequence[str] | None = None,
    choose: Choose | None = None,
    device: torch.device | str = "cpu",
    pages: Path | None = None,
    fresh: bool = False,
) -> "Evaluation":
    """Judge every allocator with every relevance at every budget on every sample, beside baselines and controls.

    allocators: names, or a dict from names to what `choose_tokens` takes as allocator; relevances likewise
    metrics:    legibility, recall, fidelity, objects; None: those that the samples allow
    ocr:        names of OCR engines, or a dict from names to engines: each gives a score of legibility
    out:        folder for results.jsonl, readings of OCR and the pages' words
    controls:   other (another page's question), none (no question): for every relevance that asks
    controlled: the allocators that the controls are run with; None: all
    choose:     replaces `texturevlm.choose_tokens`
    pages:      folder of the pages' words (default: in `out`)
    fresh:      discard the results in `out`
    returns     the samples that were judged and all results in `out`
    """
    for name in metrics or ():
        check_choice("evaluate", "metrics", name, METRICS)
    chosen = tuple(suited(samples) if metrics is None else metrics)
    judged = [sample for sample in samples if any(METRICS[name].suits(sample) for name in chosen)]
    if not judged:
        raise ValueError(f"evaluate: samples must allow one of {', '.join(chosen)}, got none that does")
    for budget in budgets:
        check_count("evaluate", "budget", budget, 1)
    for control in controls:
        check_choice("evaluate", "control", control, CONTROLS)
    engines: Mapping[str, OcrEngine] = {}
    if "legibility" in chosen:
        engines = cached_engines(ocr if isinstance(ocr, Mapping) else open_engines(ocr), out)
    settings = {
        "images": str(judged[0].image.parent.resolve()),  # other data belongs in another folder
        "patch": check_count("evaluate", "patch", patch, 1),
        "ocr": {name: engine.name for name, engine in engines.items()},
        "device": str(device),
        "code": code_digest(),
    }
    evaluation = Evaluation(
        samples=judged,
        others=other_questions(judged),
        results=Results.open(out / "results.jsonl", settings, fresh=fresh),
        choose=choose or choose_tokens,
        allocators=dict(allocators) if isinstance(allocators, Mapping) else {},
        relevances=dict(relevances) if isinstance(relevances, Mapping) else {},
        pages=PageCache(pages or out / "pages"),
        patch=patch,
        metrics=chosen,
        engines=engines,
        device=torch.device(device),
    )
    evaluation.run(configurations(list(allocators), list(relevances), budgets, controls, controlled))
    return evaluation


def configurations(
    allocators: Sequence[str],
    relevances: Sequence[str],
    budgets: Sequence[int],
    controls: Sequence[str],
    controlled: Sequence[str] | None = None,
) -> list[Configuration]:
    """Baselines first, then each allocator with each relevance, then the controls of those that are controlled."""
    found = [Configuration(runs.FULL_IMAGE)]
    for budget in budgets:
        found += [Configuration(runs.IDEAL_RESIZE, budget=budget), Configuration("resize", runs.NONE, budget)]
        found += [Configuration(name, relevance, budget) for name in ("grid", *allocators) for relevance in relevances]
        found += [
            Configuration(name, relevance, budget, asked)
            for asked in controls
            for name in (allocators if controlled is None else controlled)
            for relevance in relevances
            if reads_question(relevance) and name not in ("grid", "resize")
        ]
    return list(dict.fromkeys(found))


def other_questions(samples: Sequence[Sample]) -> dict[str, str]:
    """For each sample the question of another page, half the list away; the same one in every run."""
    found = {}
    for number, sample in enumerate(samples):
        others = (samples[(number + len(samples) // 2 + step) % len(samples)] for step in range(len(samples)))
        found[sample.id] = next((other.question for other in others if other.image != sample.image), "")
    return found


class Found(NamedTuple):
    """The relevance for a question, with the milliseconds of it and of the page's maps, and its peak of memory."""

    relevance: Relevance
    ms: float
    mb: float


@dataclass(eq=False)
class Evaluation:
    """The samples that are judged, the results, and everything needed to judge a page.

    allocators: name → what `choose` takes; a name that is missing stands for itself; relevances likewise
    """

    samples: list[Sample]
    others: dict[str, str]  # sample → the question of another page
    results: Results
    choose: Choose
    allocators: dict[str, Any]
    relevances: dict[str, Any]
    pages: PageCache
    patch: int
    metrics: tuple[str, ...]
    engines: Mapping[str, OcrEngine]
    device: torch.device
    warm: set[str] = field(default_factory=set)  # methods whose models are loaded
    prepared: dict[Texture, tuple[Prepared, float]] = field(default_factory=dict)  # of the last page, with its ms
    found: dict[tuple[str, str], Found] = field(default_factory=dict)  # of that page, by scorer and question

    def run(self, wanted: Sequence[Configuration]) -> None:
        """Judge what the results do not have yet, image by image."""
        todo: dict[Path, list[tuple[Sample, Configuration]]] = {}
        for sample in self.samples:
            left = [one for one in wanted if not self.results.has(sample.id, one, self.metrics)]
            todo.setdefault(sample.image, []).extend((sample, one) for one in left)
        total = len(self.samples) * len(wanted)
        progress = Progress(total, "results", done=total - sum(map(len, todo.values())))
        for image, work in todo.items():
            if work:
                self.results.add(self._judge(image, work))
                progress.step(len(work))

    def allocation(self, sample: Sample, configuration: Configuration) -> Allocation:
        """Computes the tokens of one sample again, since a run keeps no allocations."""
        texture = Texture.open(sample.image, device=self.device)
        return self._choose(sample.image, texture, configuration, self._question(sample, configuration))[0]

    def _question(self, sample: Sample, configuration: Configuration) -> str:
        if not reads_question(configuration.relevance):
            return ""  # it reads no question: one allocation serves all questions of a page
        return {runs.OWN: sample.question, runs.OTHER: self.others[sample.id], runs.NONE: ""}[configuration.asked]

    def _judge(self, image: Path, work: Sequence[tuple[Sample, Configuration]]) -> list[ResultRow]:
        """The rows of one image."""
        texture = Texture.open(image, device=self.device)
        shown = without_colour(texture)
        full = Delivered(shown, median_grey(shown), patch=self.patch)
        known: dict[tuple[Configuration, str], tuple[Allocation, dict[str, Any]]] = {}
        cases, costs = [], []
        for sample, configuration in work:
            delivered, cost = full, dict[str, Any]()
            if configuration.allocator == runs.IDEAL_RESIZE:
                delivered = replace(full, budget=configuration.budget)
            elif configuration.allocator != runs.FULL_IMAGE:
                key = configuration, self._question(sample, configuration)
                if key not in known:
                    known[key] = self._choose(image, texture, *key)
                allocation, cost = known[key]
                delivered = replace(full, allocation=allocation)
            cases.append(Case(sample, delivered))
            costs.append(cost)
        for name in self.metrics:
            METRICS[name].judge([case for case in cases if METRICS[name].suits(case.sample)], self.engines)
        return [
            ResultRow(
                sample.id,
                image.name,
                configuration,
                self.metrics,
                case.scores,
                read=case.read,
                strata=strata_of(sample),
                **cost,
            )
            for (sample, configuration), case, cost in zip(work, cases, costs)
        ]

    def _choose(
        self, image: Path, texture: Texture, configuration: Configuration, question: str
    ) -> tuple[Allocation, dict[str, Any]]:
        """The tokens, and what they cost, as a ResultRow has it."""
        relevance = self.relevances.get(configuration.relevance, configuration.relevance)
        options: Any = {
            "budget": configuration.budget,
            "patch": self.patch,
            "allocator": self.allocators.get(configuration.allocator, configuration.allocator),
            "relevance": relevance,
        }
        ms_page = ms_found = mb_found = 0.0
        if relevance in ("auto", *SCORERS):
            ms_page = self._read(image, texture, relevance, question)
            options["relevance"], ms_found, mb_found = self._found(texture, relevance, question)
        if configuration.method not in self.warm:  # loading models is not a page's cost
            self.choose(texture, question, **options)
            self.warm.add(configuration.method)
        allocation, ms, mb = costed(lambda: self.choose(texture, question, **options), self.device)
        tokens = int(allocation.valid.sum())
        if tokens > configuration.budget:
            raise RuntimeError(f"evaluate: {configuration} must use at most its budget, got {tokens} tokens")
        peak = None if mb is None else max(mb, mb_found)
        return allocation, {"tokens": tokens, "ms": ms + ms_found, "ms_page": ms_page, "mb": peak}

    def _read(self, image: Path, texture: Texture, relevance: str, question: str) -> float:
        """Give the image what the scorer reads of its page; returns the milliseconds of reading it."""
        read = self.pages.read(relevance, question, image, texture)
        if read is None:
            return 0.0
        reading, ms = read
        scorer = find_scorer("evaluate", relevance, question)
        self._prepared(texture)[0].keep(scorer, reading if isinstance(reading, Spots) else (reading,))
        return ms

    def _found(self, texture: Texture, relevance: str, question: str) -> Found:
        """The relevance for a question: found once for all allocators and budgets, and its cost counted every time."""
        prepared, ms_maps = self._prepared(texture)
        if (relevance, question) not in self.found:
            find = partial(prepared.find, question, scorer=relevance)
            if relevance not in self.warm:  # loading models is not a page's cost
                find()
                self.warm.add(relevance)
            found, ms, mb = costed(find, self.device)
            self.found[relevance, question] = Found(found, ms + ms_maps, mb or 0.0)
        return self.found[relevance, question]

    def _prepared(self, texture: Texture) -> tuple[Prepared, float]:
        """An image with its maps, and their milliseconds: made once, and counted every time."""
        if texture not in self.prepared:
            self.prepared.clear()  # pages come one after the other
            self.found.clear()
            made, ms, _ = costed(lambda: prepare(texture, "auto", patch=self.patch), self.device)
            self.prepared[texture] = made, ms
        return self.prepared[texture]


def without_colour(texture: Texture) -> Texture:
    """The texture with one channel, if all channels are equal: a third of the work for the same picture."""
    image = texture.levels[0]
    return Texture.open(image[:, :1]) if bool((image == image[:, :1]).all()) else texture
