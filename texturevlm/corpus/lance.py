"""A corpus as one Lance data set, for fast random reads; written when the corpus is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from texturevlm.corpus.arrow import schema_of, table_of
from texturevlm.corpus.dataset import Corpus
from texturevlm.corpus.rows import DTYPES, Row

BATCH = 64  # rows


def check_lance(out: str | os.PathLike[str]) -> None:
    """Lance must be installed, and the folder new."""
    if find_spec("lance") is None:
        raise ImportError("corpus: Lance needs the extra lance: pip install 'texturevlm[lance]'")
    if os.path.exists(out):
        raise FileExistsError(f"corpus: lance must be a new folder, got {os.fspath(out)}")


def export_lance(corpus: Corpus, out: str | os.PathLike[str]) -> int:
    """Write all rows, in order, to a new Lance data set; returns how many.

    Their columns are those of the parquet files. Not resumable: what is there is refused, and an unfinished one is not
    seen, since Lance writes its manifest last.
    """
    check_lance(out)
    import lance

    recipe = corpus.recipe
    about = {"write": recipe.write, "patch": recipe.patch, "recipe": recipe.digest}
    schema = schema_of(about, DTYPES[recipe.write])

    def batches() -> Iterator[Any]:
        waiting: list[Row] = []
        for number in range(len(corpus)):
            waiting.append(corpus.row(number))
            if len(waiting) == BATCH or number == len(corpus) - 1:
                yield from table_of(waiting, schema).to_batches()
                waiting = []

    lance.write_dataset(batches(), os.fspath(out), schema=schema)
    return len(corpus)
