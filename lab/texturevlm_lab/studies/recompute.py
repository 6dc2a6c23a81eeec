"""Compute a table of results/ again from its file of scores per question.

    python -m texturevlm_lab.studies.recompute results/legibility-rows.csv

Prints means and paired differences to resize, with intervals from resampling pages, for each score.
"""

import argparse

from texturevlm_lab.evaluate.compare import summarise
from texturevlm_lab.evaluate.report import by_score, detail_table
from texturevlm_lab.evaluate.rows import read_rows
from texturevlm_lab.studies.study import ROW_FILE, command


def work(name: str, options: argparse.Namespace) -> None:
    summary = summarise(read_rows(options.rows[0]))
    for names in by_score(summary):
        print(f"{names[0].partition('/')[0]}\n\n{detail_table(names, [summary[name] for name in names])}\n")


main = command(__name__, __doc__, work, ROW_FILE)
