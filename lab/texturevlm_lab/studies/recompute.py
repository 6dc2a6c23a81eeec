"""Compute a table of results/ again from its file of scores per question.

    python -m texturevlm_lab.studies.recompute results/legibility-rows.csv

Prints means and paired differences to resize, with intervals from resampling pages, for each score.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from texturevlm_lab.evaluate.compare import summarise
from texturevlm_lab.evaluate.report import by_score, detail_table
from texturevlm_lab.evaluate.rows import read_rows
from texturevlm_lab.studies.study import MISTAKES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.recompute", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("rows", type=Path, metavar="ROWS", help="a file of scores per question")
    options = parser.parse_args(arguments)
    try:
        summary = summarise(read_rows(options.rows))
    except MISTAKES as error:
        print(f"texturevlm_lab.studies.recompute: {error}", file=sys.stderr)
        return 2
    for names in by_score(summary):
        print(f"{names[0].partition('/')[0]}\n\n{detail_table(names, [summary[name] for name in names])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
