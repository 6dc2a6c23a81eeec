"""Discrete tokens: what codes of the tower's features lose, and what that does to the answers of a model.

    python -m texturevlm_lab.studies.codebook DATA --out DIR [--limit N] [--pages N] [--also DIR] [--views N]
        [--entries N,N] [--groups N,N] [--stages N] [--device D] [--seconds S]

DATA is a folder like sroie. Books are fitted on --pages pages of the train split, and on all of that of --also, each
chosen without a question and with up to --views questions. The first --limit questions about DATA's other pages are
answered from the features themselves, and from codes of several sizes.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from texturevlm.ask import VLM, load_vlm
from texturevlm.codebook import (
    Codebook,
    TokenFeatures,
    fit_codebook,
    joined_features,
    refine,
    split_features,
    token_features,
    tower_digest,
)
from texturevlm.codebook.fit import HELD
from texturevlm.commands.arguments import counts
from texturevlm.defaults import BUDGET
from texturevlm.vlm import StoredFeatures
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.prompted import Prompted, chosen_prompt, generated
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import (
    DEVICE,
    MODEL,
    SECONDS,
    by_page,
    deadline,
    device_of,
    each,
    evenly,
    option,
    provenance,
    study_main,
)

QUESTIONS, FITTED = 48, 96
BATCH = 24
LENGTH = 48  # tokens of an answer at most
STAGES = 4
GROUPS = (3, 12, 48)  # 3: embedding and DeepStack
SHOWN = (1, 2, 4)  # stages that are answered from
VARIED = 12  # groups of the book that is also refined, and fitted for all levels at once, with the fewest entries
OWN = 4  # entries of an image's own


@dataclass(frozen=True, eq=False)
class Asked:
    """A question, ready for the model, and the features of its tokens."""

    sample: Sample
    prompt: Prompted
    features: list[TokenFeatures]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    samples = load_data(options.data, split="train").samples
    pages_of = by_page(samples)
    images = list(pages_of)
    fitted = evenly(images, options.pages)
    others = [sample for sample in samples if sample.image not in fitted]
    if len(fitted) < HELD or not others:
        raise ValueError(
            f"--pages must be at least {HELD} and fewer than the {len(images)} of DATA, got {options.pages}"
        )
    asked = evenly(others, options.limit or QUESTIONS)
    learned = [pages_of[image] for image in fitted]
    if options.also is not None:
        learned += by_page(load_data(options.also, split="train").samples).values()
    place, end = device_of(options), deadline(options)
    dtype = torch.float32 if place == "cpu" else None  # half precision is slow there
    torch.set_float32_matmul_precision("high")  # of the search for nearest entries, on a GPU
    vlm = load_vlm(options.model, device=place, dtype=dtype, captured=False, turn=0.0)
    views = list(_views(vlm, learned, options.views))
    prepared = cache(vlm.prepare)  # several questions may be about one page
    prompts = [_asked(vlm, prepared(sample.image), sample) for sample in asked]
    whole = _answers(vlm, prompts, None)
    scores = [anls(said, one.sample.answers) for said, one in zip(whole, prompts)]
    pages = [str(one.sample.image) for one in prompts]
    rows: list[dict[str, Any]] = []
    for entries in options.entries:
        if time.monotonic() > end:
            print(f"{entries} entries: no time left", flush=True)
            break
        for name, book, own in _books(vlm, views, entries, options, varied=entries == min(options.entries)):
            said = _answers(vlm, prompts, book, own)
            ours = [anls(text, one.sample.answers) for text, one in zip(said, prompts)]
            rows.append(
                {
                    "book": name,
                    "bytes": _bytes(book, prompts, own),
                    "lost": _lost(book, prompts, own),
                    "same": mean(text == other for text, other in zip(said, whole)),
                    "score": mean(ours),
                    "difference": paired_difference(ours, scores, groups=pages),
                }
            )
            print(f"{name}: {rows[-1]}", flush=True)
    return {
        "rows": rows,
        "score": mean(scores),
        "feature_bytes": 2 * views[0].rows.shape[1],
        "questions": len(prompts),
        "pages": len(set(pages)),
        "fitted": len(learned),
        "tokens": sum(map(len, views)),
        "device": str(vlm.device),
    }


def _views(vlm: VLM, pages: Sequence[Sequence[Sample]], questions: int) -> Iterator[TokenFeatures]:
    """The tokens of each page as it is chosen without a question and with some."""
    for samples in each(pages, "pages"):
        session = vlm.prepare(samples[0].image)
        asked = ("", *(sample.question for sample in samples[:questions]))
        views = [_prompt(vlm, session, question).views for question in asked]
        found = iter(token_features(vlm.adapter, [view for own in views for view in own]))  # the tower runs once
        yield from (joined_features(list(islice(found, len(own)))) for own in views)


def _prompt(vlm: VLM, session: Any, question: str) -> Prompted:
    relevance = "scout" if question else "prior"
    (placement,) = session.choose(question, budget=BUDGET, relevance=relevance)
    return chosen_prompt(vlm.adapter, question, [placement.picture.texture], [placement.allocation])


def _asked(vlm: VLM, session: Any, sample: Sample) -> Asked:
    prompt = _prompt(vlm, session, sample.question)
    return Asked(sample, prompt, token_features(vlm.adapter, prompt.views))


def _books(
    vlm: VLM, views: Sequence[TokenFeatures], entries: int, options: argparse.Namespace, *, varied: bool
) -> Iterator[tuple[str, Codebook, int]]:
    """Name, book, and entries of an image's own."""
    digest, most = tower_digest(vlm.adapter), options.stages
    for groups in options.groups:
        book, found = fit_codebook(views, entries=entries, stages=most, groups=groups, digest=digest)
        print(found, flush=True)
        book.check_model("codebook", vlm.adapter)
        for stages in SHOWN:
            if stages <= most:
                yield f"{entries} entries, {groups} × {stages}", book.first(stages), 0
        if varied and groups == VARIED:
            yield f"{entries} entries, {groups} × {most}, {OWN} of the image's own", book, OWN
            one, _ = fit_codebook(views, entries=entries, stages=most, groups=groups, per_level=False)
            yield f"{entries} entries, {groups} × {most}, one book for all levels", one, 0


def _decoded(book: Codebook, one: Asked, own: int) -> list[torch.Tensor]:
    """The rows of each view, from its codes."""
    found = []
    for features in one.features:
        codes = book.encode(features)
        rows = book.decode(codes, features.level)
        found.append(refine(book, features, codes, count=own).apply(rows) if own else rows)
    return found


def _answers(vlm: VLM, prompts: Sequence[Asked], book: Codebook | None, own: int = 0) -> list[str]:
    """Answers from the features, or from codes of them."""
    found: list[str] = []
    for first in range(0, len(prompts), BATCH):
        some = prompts[first : first + BATCH]
        rows = [part for one in some for part in _rows(one, book, own)]
        with vlm.adapter.lock, StoredFeatures(split_features(vlm.adapter, rows)).run(vlm.adapter):
            found += generated(vlm.adapter, [one.prompt for one in some], max_new_tokens=LENGTH)
    return found


def _rows(one: Asked, book: Codebook | None, own: int) -> list[torch.Tensor]:
    return [features.rows for features in one.features] if book is None else _decoded(book, one, own)


def _bytes(book: Codebook, prompts: Sequence[Asked], own: int) -> float:
    """Of a token, with its part of what the image adds."""
    tokens = sum(len(part) for one in prompts for part in one.features)
    views = sum(len(one.features) for one in prompts)
    added = views * 2 * own * book.width / tokens + 1 if own else 0
    return book.token_bytes + added


def _lost(book: Codebook, prompts: Sequence[Asked], own: int) -> float:
    """The share of the features' variance that is lost, all parts alike."""
    left, total = 0.0, 0.0
    for one in prompts:
        for features, rows in zip(one.features, _decoded(book, one, own)):
            number = book.book(features.level)
            left += float(((rows - features.rows) / book.spread[number]).square().sum())
            total += float(((features.rows - book.mean[number]) / book.spread[number]).square().sum())
    return left / total


def report(found: dict[str, Any]) -> str:
    heads = ("book: entries, groups × stages", "bytes per token", "× smaller", "variance lost", "same answer", "ANLS")
    size = found["feature_bytes"]
    rows = [["features, 16 bits per number", str(size), "1", "0", "", f"{found['score']:.3f}", ""]]
    for one in found["rows"]:
        smaller = f"{size / one['bytes']:.0f}"
        numbers = [f"{one['bytes']:.0f}", smaller, f"{one['lost']:.1%}", f"{one['same']:.2f}", f"{one['score']:.3f}"]
        rows.append([one["book"], *numbers, format_interval(one["difference"])])
    return markdown_page(
        "# Discrete tokens",
        f"{found['questions']} questions about {found['pages']} `train` pages, {BUDGET} tokens each, chosen by the "
        f"scout; the books were fitted on {found['tokens']} tokens of {found['fitted']} other pages, an eighth of them "
        f"left out. Device: {found['device']}. "
        "Differences are paired by question, with 95% intervals over pages.",
        markdown_table((*heads, "− features"), rows),
        provenance(found),
    )


OPTIONS = (
    option("--pages", type=int, default=FITTED, metavar="N", help=f"to fit on (default: {FITTED})"),
    option("--also", type=Path, metavar="DIR", help="another data set, whose train pages are all fitted on"),
    option("--views", type=int, default=1, metavar="N", help="questions per page to fit on (default: 1)"),
    option("--entries", type=counts, default=[1024], metavar="N,N", help="of a stage (default: 1024)"),
    option("--groups", type=counts, default=list(GROUPS), metavar="N,N", help="(default: 3,12,48)"),
    option("--stages", type=int, default=STAGES, metavar="N", help=f"at most (default: {STAGES})"),
)
main = study_main(__name__, __doc__, measure, report, MODEL, *OPTIONS, DEVICE, SECONDS)
