"""Looks that stop by themselves: accuracy against the tokens that a question takes, beside fixed budgets.

    python -m texturevlm_lab.studies.looks DATA --out results [--limit N] [--model reader] [--split train] [--budget
        273]

DATA holds sroie/ and funsd/. Each question is asked in two looks (a quarter of the budget, then the rest appended to
the cache) and with fixed budgets. From the answer and the confidence of the first look, every threshold can be judged:
who is sure keeps the first answer and has paid for the first look alone.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from texturevlm.ask import VLM
from texturevlm.ask.attention import FIRST_LOOK
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.journal import read_journal
from texturevlm_lab.studies.asking import ASKING, asked_one_by_one, samples_by_set
from texturevlm_lab.studies.study import option, provenance, study_main

SURE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MOST = 256  # tokens of an answer
NEVER = 1.0  # a chance that no answer reaches: always two looks


def asked(model: VLM, sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """ANLS and tokens of both looks and of fixed budgets, and the confidence in the first."""
    how: Any = {"relevance": options.relevance, "return_details": True, "max_new_tokens": MOST}
    two = model.ask(sample.image, sample.question, looks="auto", sure=NEVER, budget=options.budget, **how)
    one = two.earlier or two
    found = {"chance": one.confidence, "looks": two.looks, "fixed": {}, "tokens": {}, "seconds": {}}
    for name, answer in (("first", one), ("second", two)):
        found[name] = anls(answer.text, sample.answers)
        found["tokens"][name] = answer.visual_tokens
        found["seconds"][name] = sum(answer.seconds.values())  # its stages follow one another
    found["features"] = None if one.features is None else astuple(one.features)
    for fixed in (options.budget // 2, options.budget):
        started = time.perf_counter()
        answer = model.ask(sample.image, sample.question, budget=fixed, **how)
        found["seconds"][str(fixed)] = time.perf_counter() - started
        found["fixed"][str(fixed)] = anls(answer.text, sample.answers)
        found["tokens"][str(fixed)] = answer.visual_tokens
    return found


class Policy(NamedTuple):
    """One way to spend tokens, means over questions. stopped: the share that stops after the first look"""

    name: str
    score: float
    tokens: float
    seconds: float
    stopped: float


def policies(rows: Sequence[dict[str, Any]], budget: int) -> list[Policy]:
    """Fixed budgets, two looks, and looks that stop, by how sure they must be."""
    found = [_policy("one look, a quarter", rows, ["first"] * len(rows))]
    for fixed in (str(budget // 2), str(budget)):
        found.append(_policy(f"one look, {fixed} tokens", rows, [fixed] * len(rows)))
    found.append(_policy("two looks, always", rows, ["second"] * len(rows)))
    for sure in SURE:
        names = ["first" if row["chance"] >= sure else "second" for row in rows]
        found.append(_policy(f"looks that stop, sure = {sure:g}", rows, names))
    return found


def _policy(name: str, rows: Sequence[dict[str, Any]], taken: Sequence[str]) -> Policy:
    """taken: per question, the answer that counts"""
    scores = [row["fixed"][one] if one in row["fixed"] else row[one] for row, one in zip(rows, taken)]
    tokens, seconds = ([row[what][one] for row, one in zip(rows, taken)] for what in ("tokens", "seconds"))
    score, used, lasted = (float(sum(values) / len(rows)) for values in (scores, tokens, seconds))
    return Policy(name, score, used, lasted, sum(one != "second" for one in taken) / len(rows))


def calibration(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, float]]:
    """Bins of the chance: their name, how many answers, and the share that was right (ANLS of at least 0.5)."""
    edges = (0.0, 0.2, 0.4, 0.6, 0.8, 1.01)
    found = []
    for low, high in pairwise(edges):
        own = [row["first"] >= 0.5 for row in rows if low <= row["chance"] < high]
        if own:
            found.append((f"{low:g} to {min(high, 1):g}", len(own), sum(own) / len(own)))
    return found


def report(record: dict[str, Any]) -> str:
    rows, budget = record["rows"], record["budget"]
    table = [
        (one.name, f"{one.score:.3f}", f"{one.tokens:.0f}", f"{one.seconds:.1f}", f"{one.stopped:.0%}")
        for one in policies(rows, budget)
    ]
    bins = [(name, count, f"{share:.2f}") for name, count, share in calibration(rows)]
    return markdown_page(
        "# Looks that stop by themselves",
        provenance(record),
        f"{len(rows)} questions of the {record['split']} split, model {record['model']}, budget {budget}, relevance "
        f"{record['relevance']}. The first look has {FIRST_LOOK:g} of the budget. "
        "Tokens and seconds are those that a question took, with opening the file, on one thread of a CPU.",
        markdown_table(["how", "ANLS", "tokens per question", "seconds", "stopped after the first look"], table),
        "How often the first answer is right, by the chance that the model was given:",
        markdown_table(["chance", "answers", "right"], bins),
    )


def study(options: argparse.Namespace) -> dict[str, Any]:
    without = [] if options.without is None else read_journal(options.without, "answers of a calibration", dict)
    return asked_one_by_one("looks", options, asked, samples_by_set(options, {row["id"] for row in without}))


WITHOUT = option("--without", type=Path, metavar="ROWS", help="leave out questions that calibrated the model")
main = study_main(__name__, __doc__, study, report, WITHOUT, *ASKING)
