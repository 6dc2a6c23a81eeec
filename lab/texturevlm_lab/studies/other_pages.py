"""What a reader could score on another page by reading that page rightly: the baseline of the condition "page".

    python -m texturevlm_lab.studies.other_pages DATA results/reader-sroie-rows.jsonl … [--out DIR]

DATA holds the folders of the data sets. `texturevlm eval` asks each question about another page too. Where that page
has an answer to the same question, whatever its case and marks, a perfect reader gives it, and two receipts may have
one date: what this scores is no fault of a model. Where the page has no such question, it scores 0.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from texturevlm.text.edits import letters_and_digits
from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.answering import other_pages
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.conditions import PAGE
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import DATA, ROW_FILES, mean_by_page, table_main


def true_answers(asked: Sequence[Sample], all_questions: Sequence[Sample]) -> list[float | None]:
    """For each question the best score of the other page's own answers to it; None if it has no such question."""
    known: dict[tuple[Path, str], list[str]] = {}
    for one in all_questions:
        known.setdefault((one.image, letters_and_digits(one.question)), []).extend(one.answers)
    found: list[float | None] = []
    for sample, other in zip(asked, other_pages(asked)):
        answers = known.get((asked[other].image, letters_and_digits(sample.question)), ())
        found.append(max((anls(text, sample.answers) for text in answers), default=None))
    return found


def row_of(answers: AnswerRows, samples: Sequence[Sample]) -> list[str | int]:
    """The line of the table for one run."""
    by_id = {sample.id: sample for sample in samples}
    missing = [name for name, _ in answers.questions if name not in by_id]
    if missing:
        raise ValueError(f"other_pages: DATA must hold the questions of {answers.path.name}, {missing[0]} is missing")
    conditions = [one for one in answers.rows if one.kind == PAGE]
    if not conditions:
        raise ValueError(f"other_pages: {answers.path.name} must hold answers about another page, got none")
    perfect = true_answers([by_id[name] for name, _ in answers.questions], samples)
    own = answers.rows[conditions[0]]
    pages = [answers.questions[number][1] for number in own]
    same = sum(perfect[number] is not None for number in own)
    baseline, scores = [perfect[number] or 0.0 for number in own], [row.score for row in own.values()]
    difference = paired_difference(scores, baseline, groups=pages)
    cells = [mean_by_page(scores, pages), f"{mean(baseline):.3f}", format_interval(difference)]
    return [str(answers.settings["data set"]), len(own), same, *cells]


def report(rows: Sequence[Sequence[str | int]], model: str, made_by: str) -> str:
    return markdown_page(
        "# Questions about another page",
        made_by,
        f"{model}, shown another page than the one that a question is about: its ANLS, what the true answers of the "
        "page that it was shown would score, and the paired difference, 95% intervals by resampling pages.",
        markdown_table(
            ["set", "questions", "that page has too", "its answers", "true answers of that page", "difference"], rows
        ),
    )


def made(options: argparse.Namespace) -> str:
    runs = [AnswerRows.read(path) for path in options.rows]
    models = sorted({f"{run.settings['model']}, weights {run.settings['weights']}" for run in runs})
    if len(models) > 1:
        raise ValueError(f"other_pages: ROWS must be of one model, got {'; '.join(models)}")
    rows = []
    for answers in runs:
        folder = options.data / answers.settings["data set"]
        data = load_data(folder, split=answers.settings["split"], answered=True, skip_broken=True)
        rows.append(row_of(answers, data.samples))
    return report(rows, models[0], options.made_by)


main = table_main(__name__, __doc__, made, "reader-other-pages.md", DATA, ROW_FILES)
