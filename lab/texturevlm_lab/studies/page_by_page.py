"""Ask a model page by page, in several processes, and keep what was found if the run is cut."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from texturevlm.check import check_count
from texturevlm.journal import append, cut_unfinished, read_journal
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.provenance import code_digest


def page_by_page(
    study: str,
    options: argparse.Namespace,
    by_set: Mapping[str, Sequence[Sample]],
    asked: Callable[..., Any],
    *given: Any,
) -> Iterator[tuple[str, Sequence[Sample], Any]]:
    """The set, the questions about a page, and what `asked` found, page by page in --at-once processes.

    Pages that are done are kept in --out, in the study's journal, until all are done: a run that was cut goes on there.

    study: the name of its module
    asked: a function of a module. It gets the questions about one page, `given`, and the threads it may use; what it
           returns must be JSON
    """
    check_count(study, "--at-once", options.at_once, 1)
    journal, code = options.out / f"{study.replace('_', '-')}.jsonl", code_digest(f"texturevlm_lab.studies.{study}")
    pages: dict[tuple[str, str], list[Sample]] = {}
    for name, samples in by_set.items():
        for sample in samples:
            pages.setdefault((name, str(sample.image)), []).append(sample)
    pages = dict(sorted(pages.items(), key=lambda page: -len(page[1])))  # no process is left with a long one at the end
    made_by = [code, *map(str, given)]
    done = _done(journal, pages, made_by)
    progress = Progress(len(pages), "pages", done=len(done))
    for key, found in done.items():
        yield key[0], pages[key], found
    left = [key for key in pages if key not in done]
    constant = map(repeat, (*given, torch.get_num_threads() // options.at_once or 1))
    context = get_context("spawn")  # neither threads nor CUDA survive a fork
    with ProcessPoolExecutor(options.at_once, mp_context=context) as pool:
        for key, found in zip(left, pool.map(asked, [pages[key] for key in left], *constant)):
            append(journal, [{**_what(key, pages[key], made_by), "found": found}])
            yield key[0], pages[key], found
            progress.step()
    journal.unlink(missing_ok=True)


def _what(key: tuple[str, str], samples: Sequence[Sample], made_by: Sequence[str]) -> dict[str, Any]:
    """What a line of the journal is about, and the code and settings that made it."""
    return {"page": [*key], "questions": [one.id for one in samples], "made by": [*made_by]}


def _done(journal: Path, pages: Mapping[tuple[str, str], Sequence[Sample]], made_by: Sequence[str]) -> dict[Any, Any]:
    """What a journal says of the pages; one of another run, or of other code, is refused."""
    cut_unfinished(journal)
    found = {}
    for line in read_journal(journal, "a page of this study", dict):
        key = tuple(line.get("page", ()))
        if key not in pages or {**line, **_what(key, pages[key], made_by)} != line:
            raise ValueError(f"{journal} must be of this run, got one of another; remove it or choose another --out")
        found[key] = line["found"]
    return found
