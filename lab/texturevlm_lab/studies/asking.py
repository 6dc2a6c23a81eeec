"""What studies share that ask a model: questions of SROIE and FUNSD, or page by page in several processes.

What is found is kept piece by piece in the study's journal, where a run that was cut goes on.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from texturevlm.ask import VLM, load_vlm
from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.provenance import code_digest
from texturevlm_lab.journal import append, cut_unfinished, read_journal
from texturevlm_lab.studies.study import MODEL, SPLIT, evenly, option

SETS = ("sroie", "funsd")
ASKING = (
    MODEL,
    SPLIT,
    option("--budget", type=int, default=273, metavar="N", help="(default: 273)"),
    option("--relevance", default="scout", metavar="NAME", help="(default: scout)"),
)
Piece = TypeVar("Piece")


def piece_by_piece(
    study: str,
    out: Path,
    pieces: Mapping[str, Piece],
    work: Callable[[Sequence[Piece]], Iterable[Any]],
    *settings: Any,
    unit: str = "questions",
) -> Iterator[tuple[Piece, Any]]:
    """Each piece of work and what was found of it; pieces that a run that was cut has done are not done again.

    A journal of other pieces or settings, or of other code, is refused. It is removed when all pieces are done.

    study: the name of its module
    work:  gives what it finds of pieces, in their order; must be JSON
    """
    journal = out / f"{study.replace('_', '-')}.jsonl"
    made_by = [code_digest(f"{__package__}.{study}"), *map(str, settings)]
    cut_unfinished(journal)
    done = {}
    for line in read_journal(journal, "a piece of this study", dict):
        if line.get("made by") != made_by or line["piece"] not in pieces:
            raise ValueError(f"{journal} must be of this run, got one of another; remove it or choose another --out")
        done[line["piece"]] = line["found"]
    progress = Progress(len(pieces), unit, done=len(done))
    yield from ((pieces[name], found) for name, found in done.items())
    left = {name: piece for name, piece in pieces.items() if name not in done}
    for (name, piece), found in zip(left.items(), work(list(left.values()))):
        append(journal, [{"made by": made_by, "piece": name, "found": found}])
        yield piece, found
        progress.step()
    journal.unlink(missing_ok=True)


def samples_by_set(
    options: argparse.Namespace, without: Collection[str] = (), sets: Sequence[str] = SETS
) -> dict[str, list[Sample]]:
    """At most --limit questions of each set, evenly spread; without: the ids of those that are left out."""
    found = {}
    for name in sets:
        data = load_data(options.data / name, split=options.split, answered=True, skip_broken=True)
        found[name] = evenly([sample for sample in data.samples if sample.id not in without], options.limit)
    return found


def asked_one_by_one(
    study: str,
    options: argparse.Namespace,
    asked: Callable[[VLM, Sample, argparse.Namespace], dict[str, Any]],
    by_set: Mapping[str, Sequence[Sample]] | None = None,
    **loading: Any,
) -> dict[str, Any]:
    """The record of a study with the options of ASKING: those, the device, and a row per question, the sets in turns.

    asked:   gives the row of a question
    by_set:  the questions (default: `samples_by_set`)
    loading: as `load_vlm` takes it
    """
    torch.set_num_threads(1)
    model = load_vlm(options.model, budget=options.budget, **loading)
    each = [[(name, sample) for sample in own] for name, own in (by_set or samples_by_set(options)).items()]
    pairs = {f"{pair[0]} {pair[1].id}": pair for turn in zip_longest(*each) for pair in turn if pair is not None}
    settings = {name: getattr(options, name) for name in ("model", "budget", "split", "relevance")}

    def work(left: Sequence[tuple[str, Sample]]) -> Iterator[dict[str, Any]]:
        return (asked(model, sample, options) for _, sample in left)

    rows = [
        {"set": name, "id": sample.id, "page": sample.image.name, **row}
        for (name, sample), row in piece_by_piece(study, options.out, pairs, work, *settings.values())
    ]
    return {**settings, "device": str(model.device), "trained": model.adapter.trained.levels, "rows": rows}


def page_by_page(
    study: str,
    options: argparse.Namespace,
    by_set: Mapping[str, Sequence[Sample]],
    asked: Callable[..., Any],
    *given: Any,
) -> Iterator[tuple[str, Sequence[Sample], Any]]:
    """The set, the questions about a page, and what `asked` found, page by page in --at-once processes.

    study: the name of its module
    asked: a function of a module. It gets the questions about one page, `given`, and the threads it may use
    """
    check_count(study, "--at-once", options.at_once, 1)
    pages: dict[tuple[str, Path], list[Sample]] = {}
    for name, samples in by_set.items():
        for sample in samples:
            pages.setdefault((name, sample.image), []).append(sample)
    longest_first = sorted(pages.items(), key=lambda page: -len(page[1]))  # no process is left with one at the end
    pieces = {f"{key} {[one.id for one in own]}": (key[0], own) for key, own in longest_first}
    constant = (*given, torch.get_num_threads() // options.at_once or 1)
    with ProcessPoolExecutor(options.at_once, mp_context=get_context("spawn")) as pool:  # neither threads nor CUDA fork

        def work(left: Sequence[tuple[str, list[Sample]]]) -> Iterable[Any]:
            return pool.map(asked, [own for _, own in left], *map(repeat, constant))

        for (name, own), found in piece_by_piece(study, options.out, pieces, work, *given, unit="pages"):
            yield name, own, found
