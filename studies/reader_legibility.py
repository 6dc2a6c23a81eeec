"""Do a model's answers follow legibility, question by question?

    python -m studies.reader_legibility results/legibility-rows.csv results/reader-docvqa-rows.jsonl [--out DIR]

Joins the scores per question of `texturevlm eval`, without a model and with one, where both have the same question,
chooser and budget: the mean score of answers where OCR reads the answer's line from the same tokens and where it does
not, the rank correlation, and how each of the judges orders the choosers.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.study import report_from_files
from texturevlm.evaluate.answer_rows import AnswerRows
from texturevlm.evaluate.compare import score_names
from texturevlm.evaluate.conditions import CHOSEN
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.provenance import origin
from texturevlm.evaluate.results import OWN, Results
from texturevlm.evaluate.rows import read_rows
from texturevlm.evaluate.statistics import paired_difference

LEGIBLE = 0.5  # the least ANLS of what OCR read


class Judged(NamedTuple):
    """A question under one chooser and budget: its id and page, the score of the answer, legibility by each engine."""

    chooser: str
    budget: int
    question: str
    page: str
    answer: float
    legibility: tuple[float, ...]


def judged(results: Results, answers: AnswerRows, engines: Sequence[str]) -> list[Judged]:
    """All that both files hold."""
    numbers = {name: number for number, (name, _) in enumerate(answers.questions)}
    own = {
        (condition.allocator, condition.relevance, condition.budget): rows
        for condition, rows in answers.rows.items()
        if condition.kind == CHOSEN and not condition.reduce
    }
    found = []
    for (sample, configuration), row in results.rows.items():
        asked = own.get((configuration.allocator, configuration.relevance, configuration.budget), {})
        answer = asked.get(numbers.get(sample, -1))
        if answer is None or configuration.asked != OWN or not all(engine in row.scores for engine in engines):
            continue
        legibility = tuple(row.scores[engine] for engine in engines)
        found.append(Judged(configuration.method, configuration.budget, sample, row.image, answer.score, legibility))
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, equal values sharing their mean rank; nan where one side is constant."""
    ranks = [_ranks(np.asarray(values)) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return float("nan")
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    middle: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return middle


def report(results: Results, answers: AnswerRows, command: str) -> str:
    engines = [score for score in score_names(results) if score.startswith("legibility/")]
    rows = judged(results, answers, engines)
    if not rows:
        raise ValueError("reader_legibility: both files must hold a question in common, got none")
    names = [engine.partition("/")[2] for engine in engines]
    questions = {row.question for row in rows}
    return markdown_page(
        "# Answers and legibility, question by question",
        f"Command: `{command}`; {origin('studies.reader_legibility')}.",
        f"{answers.settings['model']}, weights {answers.settings['weights']}; {len(questions)} questions of "
        f"{answers.settings['data set']}, those with a located answer that it was asked. An answer is legible to an "
        f"OCR engine if what it reads from the tokens has an ANLS of at least {LEGIBLE}.",
        "The mean score of answers, 95% intervals by resampling pages, all choosers and budgets together:",
        _by_engine(rows, names),
        "Each chooser, by each judge:",
        _by_chooser(rows, names),
    )


def _by_engine(rows: Sequence[Judged], names: Sequence[str]) -> str:
    table = []
    for number, name in enumerate(names):
        cells = []
        for legible in (True, False):
            some = [row for row in rows if (row.legibility[number] >= LEGIBLE) == legible]
            cells.append(mean_by_page([row.answer for row in some], [row.page for row in some]))
        ranked = rank_correlation([row.legibility[number] for row in rows], [row.answer for row in rows])
        table.append([name, *cells, f"{ranked:.2f}"])
    return markdown_table(["OCR engine", "where legible", "where not", "rank correlation"], table)


def mean_by_page(scores: Sequence[float], pages: Sequence[str]) -> str:
    """The mean, its interval by resampling pages, and how many scores there are; a dash if there are none."""
    if not scores:
        return "–"
    found = paired_difference(scores, [0.0] * len(scores), groups=pages)
    return f"{format_interval(found, '.3f')}, n = {len(scores)}"


def _by_chooser(rows: Sequence[Judged], names: Sequence[str]) -> str:
    table = []
    for budget, chooser in sorted({(row.budget, row.chooser) for row in rows}):
        own = [row for row in rows if (row.budget, row.chooser) == (budget, chooser)]
        scores = [mean(row.legibility[number] for row in own) for number in range(len(names))]
        answer = mean(row.answer for row in own)
        table.append([chooser, budget, len(own), *(f"{score:.3f}" for score in (*scores, answer))])
    return markdown_table(["chooser", "tokens", "questions", *names, "answers"], table)


def main(arguments: Sequence[str] | None = None) -> int:
    name = "studies.reader_legibility"
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("legibility", type=Path, metavar="ROWS", help="scores per question, without a model")
    parser.add_argument("answers", type=Path, metavar="ANSWERS", help="rows of answers, with a model")

    def made(options: argparse.Namespace) -> str:
        command = f"python -m {name} results/{options.legibility.name} results/{options.answers.name} --out DIR"
        return report(read_rows(options.legibility), AnswerRows.read(options.answers), command)

    return report_from_files(parser, arguments, made, "reader-legibility.md")


if __name__ == "__main__":
    sys.exit(main())
