"""Run allocators over questions: the metrics judge what each configuration delivers, beside the baselines.

The ideal resize, a resize in whole tokens and `grid` are always included, and the controls: the full image (the
ceiling), the question of another page, and no question. Results are written as they come: a stopped run resumes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from texturevlm.check import check_choice, check_count
from texturevlm.evaluate.cost import Cost, costed
from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.delivered import Delivered
from texturevlm.evaluate.legibility import as_bytes, crop_boxes, legibility_score
from texturevlm.evaluate.metrics import LEGIBILITY, METRICS, suited
from texturevlm.evaluate.ocr import CachedOcr, OcrEngine, open_ocr
from texturevlm.evaluate.page_cache import PageCache
from texturevlm.evaluate.results import (
    FULL_IMAGE,
    IDEAL_RESIZE,
    NONE,
    OTHER,
    OWN,
    Configuration,
    ResultRow,
    Results,
    code_digest,
)
from texturevlm.pipeline import choose_tokens
from texturevlm.progress import Progress
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import SCORERS, Prepared, find_scorer, prepare
from texturevlm.scout import Spots
from texturevlm.types import Allocation, Texture

CONTROLS = (OTHER, NONE)
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
    ocr: OcrEngine | str = "auto",
    out: Path,
    controls: Sequence[str] = CONTROLS,
    choose: Choose | None = None,
    device: torch.device | str = "cpu",
    pages: Path | None = None,
    fresh: bool = False,
) -> "Evaluation":
    """Judge every allocator with every relevance at every budget on every sample, beside baselines and controls.

    allocators: names, or a dict from names to what `choose_tokens` takes as allocator; relevances likewise
    metrics:    legibility, recall, fidelity, objects; None: those that the samples allow
    ocr:        an engine, or its name
    out:        folder for results.jsonl, readings.jsonl and the pages' words
    controls:   other (another page's question), none (no question): for every allocator and relevance that asks
    choose:     replaces `texturevlm.choose_tokens`
    pages:      folder of the pages' words (default: in `out`)
    fresh:      discard the results in `out`
    returns     the samples that were judged and all results in `out`
    """
    chosen_metrics = _check_metrics(metrics, samples)
    judged = [sample for sample in samples if _allows(sample, chosen_metrics)]
    if not judged:
        raise ValueError(f"evaluate: samples must allow one of {', '.join(chosen_metrics)}, got none that does")
    for budget in budgets:
        check_count("evaluate", "budget", budget, 1)
    for control in controls:
        check_choice("evaluate", "control", control, CONTROLS)
    engine = open_ocr(ocr) if isinstance(ocr, str) and LEGIBILITY in chosen_metrics else ocr
    cached = None if isinstance(engine, str) else CachedOcr(engine, out / "readings.jsonl")
    settings = {
        "images": str(judged[0].image.parent.resolve()),  # other data belongs in another folder
        "patch": check_count("evaluate", "patch", patch, 1),
        "ocr": cached.name if cached is not None else None,
        "device": str(device),
        "code": code_digest(),
    }
    results = Results.open(out / "results.jsonl", settings, fresh=fresh)
    wanted = configurations(list(allocators), list(relevances), budgets, controls)
    runner = Runner(
        choose=choose or choose_tokens,
        allocators=_by_name(allocators),
        relevances=_by_name(relevances),
        others=other_questions(judged),
        pages=PageCache(pages or out / "pages"),
        patch=patch,
        metrics=tuple(chosen_metrics),
        ocr=cached,
        device=torch.device(device),
    )
    todo = [
        (
            image,
            [(sample, one) for sample in group for one in wanted if not results.has(sample.id, one, runner.metrics)],
        )
        for image, group in _by_image(judged)
    ]
    left = sum(len(work) for _, work in todo)
    progress = Progress(len(judged) * len(wanted), "results", done=len(judged) * len(wanted) - left)
    for image, work in todo:
        if work:
            results.add(runner.judge(image, work))
            progress.step(len(work))
    return Evaluation(judged, results, runner)


def _check_metrics(metrics: Sequence[str] | None, samples: Sequence[Sample]) -> list[str]:
    if metrics is None:
        return suited(samples)
    return [check_choice("evaluate", "metrics", name, [LEGIBILITY, *METRICS]) for name in metrics]


def _allows(sample: Sample, metrics: Iterable[str]) -> bool:
    """Whether some metric can judge a sample; fidelity judges any."""
    needs = {
        LEGIBILITY: bool(sample.boxes and sample.answers),
        "recall": bool(sample.boxes and sample.answers),
        "objects": bool(sample.objects),
    }
    return any(needs.get(name, True) for name in metrics)


def _by_name(named: Named) -> dict[str, Any]:
    return dict(named) if isinstance(named, Mapping) else {name: name for name in named}


def _by_image(samples: Sequence[Sample]) -> Iterator[tuple[Path, list[Sample]]]:
    """Samples grouped by image, in the order of first appearance."""
    order = {image: number for number, image in enumerate(dict.fromkeys(sample.image for sample in samples))}
    together = sorted(samples, key=lambda sample: order[sample.image])
    return ((image, list(group)) for image, group in groupby(together, key=lambda sample: sample.image))


def configurations(
    allocators: Sequence[str], relevances: Sequence[str], budgets: Sequence[int], controls: Sequence[str]
) -> list[Configuration]:
    """Baselines first, then each allocator with each relevance, then the controls."""
    found = [Configuration(FULL_IMAGE)]
    for budget in budgets:
        found += [Configuration(IDEAL_RESIZE, budget=budget), Configuration("resize", NONE, budget)]
        found += [Configuration(name, relevance, budget) for name in ("grid", *allocators) for relevance in relevances]
        found += [
            Configuration(name, relevance, budget, asked)
            for asked in controls
            for name in allocators
            for relevance in relevances
            if relevance != NONE and name not in ("grid", "resize")
        ]
    return list(dict.fromkeys(found))


def other_questions(samples: Sequence[Sample]) -> dict[str, str]:
    """For each sample the question of another page, half the list away; the same one in every run."""
    found = {}
    for number, sample in enumerate(samples):
        others = (samples[(number + len(samples) // 2 + step) % len(samples)] for step in range(len(samples)))
        found[sample.id] = next((other.question for other in others if other.image != sample.image), "")
    return found


@dataclass(frozen=True, eq=False)
class Runner:
    """Everything needed to judge a page."""

    choose: Choose
    allocators: dict[str, Any]
    relevances: dict[str, Any]
    others: dict[str, str]
    pages: PageCache
    patch: int
    metrics: tuple[str, ...]
    ocr: OcrEngine | None
    device: torch.device
    warm: set[str] = field(default_factory=set)  # methods whose models are loaded
    prepared: dict[Texture, tuple[Prepared, float]] = field(default_factory=dict)

    def allocation(self, sample: Sample, configuration: Configuration) -> Allocation:
        """Computes the tokens of one sample again, since a run keeps no allocations."""
        texture = Texture.open(sample.image, device=self.device)
        return self._choose(sample.image, texture, configuration, self._question(sample, configuration))[0]

    def _question(self, sample: Sample, configuration: Configuration) -> str:
        return {OWN: sample.question, OTHER: self.others[sample.id], NONE: ""}[configuration.asked]

    def judge(self, image: Path, work: Sequence[tuple[Sample, Configuration]]) -> list[ResultRow]:
        """The rows of one image; OCR reads all its crops in one batch."""
        texture = Texture.open(image, device=self.device)
        grey_texture = without_colour(texture)
        grey = median_grey(grey_texture)
        known: dict[tuple[Configuration, str], tuple[Allocation, Cost, float]] = {}
        rows, crops, counts = [], [], []
        for sample, configuration in work:
            row, delivered = self._deliver(sample, configuration, texture, grey_texture, grey, known)
            scores: dict[str, float] = {}
            for name in self.metrics:
                if name != LEGIBILITY:
                    scores.update(METRICS[name](delivered, sample))
            rows.append(replace(row, scores=scores))
            has_answer = LEGIBILITY in self.metrics and sample.answers
            boxes = crop_boxes(sample.boxes, sample.size) if has_answer else []
            crops += [as_bytes(delivered.picture(box)) for box in boxes]
            counts.append(len(boxes))
        texts = iter(self.ocr.read(crops) if self.ocr is not None else [])
        for number, (count, (sample, _)) in enumerate(zip(counts, work)):
            if count:
                read = tuple(next(texts) for _ in range(count))
                scores = {LEGIBILITY: legibility_score(read, sample.answers), **rows[number].scores}
                rows[number] = replace(rows[number], scores=scores, read=read)
        return rows

    def _deliver(
        self,
        sample: Sample,
        configuration: Configuration,
        texture: Texture,
        grey_texture: Texture,
        grey: torch.Tensor,
        known: dict[tuple[Configuration, str], tuple[Allocation, Cost, float]],
    ) -> tuple[ResultRow, Delivered]:
        row = ResultRow(sample.id, sample.image.name, configuration, self.metrics, {})
        if configuration.allocator == FULL_IMAGE:
            return row, Delivered(grey_texture, grey)
        if configuration.allocator == IDEAL_RESIZE:
            return row, Delivered(grey_texture, grey, budget=configuration.budget, patch=self.patch)
        question = self._question(sample, configuration)
        if (configuration, question) not in known:
            known[configuration, question] = self._choose(sample.image, texture, configuration, question)
        allocation, cost, ms_page = known[configuration, question]
        tokens = int(allocation.valid.sum())
        if tokens > configuration.budget:
            raise RuntimeError(f"evaluate: {configuration} must use at most its budget, got {tokens} tokens")
        costs: Any = {"tokens": tokens, "ms": cost.ms, "ms_page": ms_page, "mb": cost.mb}
        return replace(row, **costs), Delivered(grey_texture, grey, allocation)

    def _choose(
        self, image: Path, texture: Texture, configuration: Configuration, question: str
    ) -> tuple[Allocation, Cost, float]:
        relevance = self.relevances.get(configuration.relevance, configuration.relevance)
        options: Any = {
            "budget": configuration.budget,
            "patch": self.patch,
            "allocator": self.allocators.get(configuration.allocator, configuration.allocator),
            "relevance": relevance,
        }
        ms_page = ms_maps = 0.0
        if relevance in ("auto", *SCORERS):
            prepared, ms_maps = self._prepared(texture)
            prepared.scorer = relevance
            if (read := self.pages.read(relevance, question, image, texture)) is not None:
                reading, ms_page = read
                scorer = find_scorer("evaluate", relevance, question)
                prepared.keep(scorer, reading if isinstance(reading, Spots) else (reading,))
            options["relevance"] = prepared
        if configuration.method not in self.warm:  # loading models is not a page's cost
            self.choose(texture, question, **options)
            self.warm.add(configuration.method)
        allocation, cost = costed(lambda: self.choose(texture, question, **options), self.device)
        return allocation, cost._replace(ms=cost.ms + ms_maps), ms_page

    def _prepared(self, texture: Texture) -> tuple[Prepared, float]:
        """An image with its maps, and their milliseconds: made once, and counted every time."""
        if texture not in self.prepared:
            self.prepared.clear()  # pages come one after the other
            made, cost = costed(lambda: prepare(texture, "auto", patch=self.patch), self.device)
            self.prepared[texture] = made, cost.ms
        return self.prepared[texture]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The samples that were judged, the results, and the runner that made them."""

    samples: list[Sample]
    results: Results
    runner: Runner


def without_colour(texture: Texture) -> Texture:
    """The texture with one channel, if all channels are equal: a third of the work for the same picture."""
    image = texture.levels[0]
    return Texture.open(image[:, :1]) if bool((image == image[:, :1]).all()) else texture
