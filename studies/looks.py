"""Looks that stop by themselves: accuracy against the tokens that a question takes, beside fixed budgets.

    python -m studies.looks DATA --out results [--limit N] [--model reader] [--split train] [--budget 273]

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
from typing import Any

import torch

from studies.study import MODEL, evenly, option, provenance, study_main
from texturevlm.ask import VLM, Answer, load_vlm
from texturevlm.ask.session import FIRST_LOOK
from texturevlm.evaluate.answers import anls
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.markdown import markdown_page, markdown_table
from texturevlm.journal import append, read_journal
from texturevlm.progress import Progress

SETS = ("sroie", "funsd")
SURE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
NEVER = 1.0  # a chance that no answer reaches: always two looks


def tokens_of(answer: Answer) -> int:
    return sum(int(one.allocation.valid.sum()) for one in answer.chosen)


def asked(model: VLM, sample: Sample, budget: int, relevance: str) -> dict[str, Any]:
    """ANLS and tokens of both looks and of fixed budgets, and the confidence in the first."""
    options: Any = {"relevance": relevance, "return_details": True}
    two = model.ask(sample.image, sample.question, looks="auto", sure=NEVER, budget=budget, **options)
    one = two.earlier or two
    found = {"id": sample.id, "chance": one.confidence, "looks": two.looks, "fixed": {}, "tokens": {}, "seconds": {}}
    for name, answer in (("first", one), ("second", two)):
        found[name] = anls(answer.text, sample.answers)
        found["tokens"][name] = tokens_of(answer)
    found["features"] = None if one.features is None else astuple(one.features)
    for fixed in (budget // 2, budget):
        started = time.perf_counter()
        answer = model.ask(sample.image, sample.question, budget=fixed, **options)
        found["seconds"][str(fixed)] = time.perf_counter() - started
        found["fixed"][str(fixed)] = anls(answer.text, sample.answers)
        found["tokens"][str(fixed)] = tokens_of(answer)
    return found


def policies(rows: Sequence[dict[str, Any]], budget: int) -> list[tuple[str, float, float, float]]:
    """Name, ANLS, tokens per question, share of questions that stop after the first look."""
    count = len(rows)
    found = [("one look, a quarter", _mean(rows, "first"), _tokens(rows, "first"), 1.0)]
    for fixed in (str(budget // 2), str(budget)):
        score = sum(row["fixed"][fixed] for row in rows) / count
        found.append((f"one look, {fixed} tokens", score, _tokens(rows, fixed), 1.0))
    found.append(("two looks, always", _mean(rows, "second"), _tokens(rows, "second"), 0.0))
    for sure in SURE:
        kept = [row["chance"] >= sure for row in rows]
        names = ["first" if one else "second" for one in kept]
        score = sum(row[name] for row, name in zip(rows, names)) / count
        tokens = sum(row["tokens"][name] for row, name in zip(rows, names)) / count
        found.append((f"looks that stop, sure = {sure:g}", score, tokens, sum(kept) / count))
    return found


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _tokens(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(row["tokens"][name] for row in rows) / len(rows))


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
        (name, f"{score:.3f}", f"{tokens:.0f}", f"{share:.0%}") for name, score, tokens, share in policies(rows, budget)
    ]
    bins = [(name, count, f"{share:.2f}") for name, count, share in calibration(rows)]
    return markdown_page(
        "# Looks that stop by themselves",
        provenance(record),
        f"{len(rows)} questions of the {record['split']} split, model {record['model']}, budget {budget}, relevance "
        f"{record['relevance']}. The first look has {FIRST_LOOK:g} of the budget. "
        "Tokens are those that a question took.",
        markdown_table(["how", "ANLS", "tokens per question", "stopped after the first look"], table),
        "How often the first answer is right, by the chance that the model was given:",
        markdown_table(["chance", "answers", "right"], bins),
    )


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = load_vlm(options.model, budget=options.budget)
    without = [] if options.without is None else read_journal(options.without, "answers of a calibration", dict)
    known = {row["id"] for row in without}
    samples: list[Sample] = []
    for name in SETS:
        data = load_data(options.data / name, split=options.split, answered=True, skip_broken=True)
        samples += evenly([sample for sample in data.samples if sample.id not in known], options.limit)
    journal = options.out / "looks-rows.jsonl"
    rows: list[dict[str, Any]] = read_journal(journal, "rows of this study", dict)
    done = {row["id"] for row in rows}
    progress = Progress(len(samples), "questions")
    for sample in samples:
        if sample.id not in done:
            rows.append(asked(model, sample, options.budget, options.relevance))
            append(journal, rows[-1:])
        progress.step()
    given = {name: getattr(options, name) for name in ("model", "budget", "split", "relevance")}
    return {**given, "rows": rows}


main = study_main(
    __name__,
    __doc__,
    study,
    report,
    MODEL,
    option("--without", type=Path, metavar="ROWS", help="leave out questions that calibrated the model"),
    option("--split", default="train", help="train or eval (default: train)"),
    option("--budget", type=int, default=273, metavar="N", help="(default: 273)"),
    option("--relevance", default="scout", metavar="NAME", help="(default: scout)"),
)
