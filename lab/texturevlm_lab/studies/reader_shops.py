"""Receipts of shops that also occur in train, apart from those of other shops, and each field apart.

    python -m texturevlm_lab.studies.reader_shops DATA results/reader-sroie-rows.jsonl [--out DIR]

DATA is the folder sroie. A reader may know a shop's name and address from its training; the scores of shops that it
cannot know say what it reads.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from texturevlm.text.edits import letters_and_digits
from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, Condition
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import DATA, ROW_FILE, mean_by_page, table_main

FIELDS = ("company", "date", "address", "total")


def known_shops(listing: Path) -> set[str]:
    """The `eval` images whose shop also has a receipt in train, by the letters and digits of its name."""
    rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    names = [row for row in rows if row["id"].endswith("company")]
    trained = {letters_and_digits(row["answers"][0]) for row in names if row["split"] == "train"}
    return {
        Path(row["image"]).name
        for row in names
        if row["split"] == "eval" and letters_and_digits(row["answers"][0]) in trained
    }


def mean_of(answers: AnswerRows, condition: Condition, chosen: Sequence[int]) -> str:
    """The mean score of some questions."""
    rows = {number: row for number, row in answers.rows[condition].items() if number in chosen}
    return mean_by_page([row.score for row in rows.values()], [answers.questions[number][1] for number in rows])


def report(answers: AnswerRows, known: set[str], made_by: str) -> str:
    numbers = range(len(answers.questions))
    parts = {"shops in train": [number for number in numbers if answers.questions[number][1] in known]}
    parts["other shops"] = [number for number in numbers if number not in parts["shops in train"]]
    parts |= {name: [one for one in numbers if answers.questions[one][0].endswith(name)] for name in FIELDS}
    conditions = [one for one in answers.rows if one.kind == CHOSEN and not one.reduce]
    table = [
        [f"{one.allocator}, {one.relevance}", one.budget, *(mean_of(answers, one, some) for some in parts.values())]
        for one in sorted(conditions, key=lambda one: (one.budget or 0, one.allocator))
    ]
    return markdown_page(
        "# Receipts of shops that training knows, and of others",
        made_by,
        f"{answers.settings['model']}, weights {answers.settings['weights']}; ANLS, 95% intervals by resampling pages.",
        markdown_table(["chooser", "tokens", *parts], table),
    )


def made(options: argparse.Namespace) -> str:
    known = known_shops(options.data / "questions.jsonl")
    return report(AnswerRows.read(options.rows[0]), known, options.made_by)


main = table_main(__name__, __doc__, made, "reader-shops.md", DATA, ROW_FILE)
