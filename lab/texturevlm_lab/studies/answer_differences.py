"""Choosers against the scout, and the scout with few tokens against a resize to many, question by question.

    python -m texturevlm_lab.studies.answer_differences ROWS … [--out DIR]

ROWS are answers.jsonl of `texturevlm eval … --model`, whose table compares with resize at the same budget alone, under
the names that they have in results/.
"""

import argparse
from collections.abc import Iterator

from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, ORACLE, Condition
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import ROW_FILES, lead, table_main

MANY = 273  # tokens of the resize that fewer chosen ones are compared with


def pairs(answers: AnswerRows) -> Iterator[tuple[Condition, Condition]]:
    """What is compared with what, as far as it was asked."""
    scouts = {one.budget: one for one in answers.rows if one == Condition(CHOSEN, "auto", "scout", one.budget)}
    for one in answers.rows:
        other = scouts.get(one.budget)
        if one.kind in (CHOSEN, ORACLE) and other not in (None, one) and not one.reduce:
            yield one, other
    resize = Condition(CHOSEN, "resize", "none", MANY)
    if resize in answers.rows:
        yield from ((one, resize) for budget, one in scouts.items() if budget is not None and budget < MANY)


def report(named: dict[str, AnswerRows], made_by: str) -> str:
    table = []
    for name, answers in named.items():
        for one, other in pairs(answers):
            both = [number for number in answers.rows[one] if number in answers.rows[other]]
            if not both:
                raise ValueError(
                    f"answer_differences: {name} must have questions that both {one} and {other} were asked"
                )
            scores = [[answers.rows[which][number].score for number in both] for which in (one, other)]
            pages = [answers.questions[number][1] for number in both]
            means = [f"{sum(own) / len(own):.3f}" for own in scores]
            table.append([name, str(one), str(other), len(both), *means, lead(scores[0], scores[1], pages)])
    return markdown_page(
        "# Answers, compared question by question",
        made_by,
        "Mean scores of the questions that both were asked, and the paired difference, 95% intervals by resampling "
        "pages. The tables of the same names say which model, metric and hardware.",
        markdown_table(["rows", "this", "against", "questions", "this scores", "that scores", "difference"], table),
    )


def made(options: argparse.Namespace) -> str:
    files = {path.name.removesuffix("-rows.jsonl"): path for path in options.rows}
    if len(files) < len(options.rows):
        raise ValueError("answer_differences: ROWS must have different file names, got one twice")
    return report({name: AnswerRows.read(path) for name, path in files.items()}, options.made_by)


main = table_main(__name__, __doc__, made, "answer-differences.md", ROW_FILES)
