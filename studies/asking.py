"""What studies share that put questions to a model: of SROIE and FUNSD one by one, or of any sets page by page."""

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from studies.study import MODEL, SPLIT, evenly, option
from texturevlm.check import check_count
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.journal import append, read_journal
from texturevlm.progress import Progress

SETS = ("sroie", "funsd")
Found = TypeVar("Found")
ASKING = (
    MODEL,
    SPLIT,
    option("--budget", type=int, default=273, metavar="N", help="(default: 273)"),
    option("--relevance", default="scout", metavar="NAME", help="(default: scout)"),
)


def samples_by_set(options: argparse.Namespace, without: Collection[str] = ()) -> dict[str, list[Sample]]:
    """At most --limit questions of each set, evenly spread; without: the ids of those that are left out."""
    found = {}
    for name in SETS:
        data = load_data(options.data / name, split=options.split, answered=True, skip_broken=True)
        found[name] = evenly([sample for sample in data.samples if sample.id not in without], options.limit)
    return found


def asked_once(
    samples: Sequence[Sample], ask: Callable[[Sample], dict[str, Any]], journal: Path
) -> list[dict[str, Any]]:
    """A row per sample, by its id; those that the journal of a run that was cut holds are not asked again."""
    rows: list[dict[str, Any]] = read_journal(journal, "rows of this study", dict)
    done = {row["id"] for row in rows}
    progress = Progress(len(samples), "questions")
    for sample in samples:
        if sample.id not in done:
            rows.append(ask(sample))
            append(journal, rows[-1:])
        progress.step()
    return rows


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of ASKING, for a record."""
    return {name: getattr(options, name) for name in ("model", "budget", "split", "relevance")}


def page_by_page(
    by_set: Mapping[str, Sequence[Sample]], asked: Callable[..., Found], at_once: int, *given: Any
) -> Iterator[tuple[str, Sequence[Sample], Found]]:
    """The set, the questions about a page, and what `asked` found, page by page in `at_once` processes.

    asked: a function of a module. It gets the questions about one page, `given`, and the threads it may use
    """
    check_count("studies", "--at-once", at_once, 1)
    pages: dict[tuple[str, Path], list[Sample]] = {}
    for name, samples in by_set.items():
        for sample in samples:
            pages.setdefault((name, sample.image), []).append(sample)
    pages = dict(sorted(pages.items(), key=lambda page: -len(page[1])))  # no process is left with a long one at the end
    progress, context = Progress(len(pages), "pages"), get_context("spawn")  # neither threads nor CUDA survive a fork
    constant = map(repeat, (*given, torch.get_num_threads() // at_once or 1))
    with ProcessPoolExecutor(at_once, mp_context=context) as pool:
        for ((name, _), samples), found in zip(pages.items(), pool.map(asked, pages.values(), *constant)):
            yield name, samples, found
            progress.step()
