"""Compute a table of results/ again from its file of scores per question.

    python -m studies.recompute results/legibility-rows.csv

Prints means and paired differences to resize, with intervals from resampling pages, for each score.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from studies.study import MISTAKES
from texturevlm.evaluate.compare import summarise
from texturevlm.evaluate.report import by_score, detail_table
from texturevlm.evaluate.rows import read_rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.recompute", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", type=Path, metavar="ROWS", help="a file of scores per question")
    options = parser.parse_args(arguments)
    try:
        summary = summarise(read_rows(options.rows))
    except MISTAKES as error:
        print(f"studies.recompute: {error}", file=sys.stderr)
        return 2
    for names in by_score(summary):
        print(f"{names[0].partition('/')[0]}\n\n{detail_table(names, [summary[name] for name in names])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
