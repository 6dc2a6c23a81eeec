"""What studies share that ask a model questions of SROIE and FUNSD, one by one."""

import argparse
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from texturevlm.journal import append, read_journal
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.studies.study import MODEL, SPLIT, evenly, option

SETS = ("sroie", "funsd")
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
