"""Tokens of several scales in the vision tower: apart, together or causal, with a trained model.

    python -m texturevlm_lab.studies.levels DATA --out results [--limit N] [--model reader] [--split train] [--budget
        273]

DATA holds sroie/ and funsd/. `apart`: tokens of one scale attend to one another. `joint`: all do. `causal`: finer ones
attend to coarser ones, never the reverse. Each question is asked in one look, and in two, the second appended to the
cache; and once more with the tokens of both looks in one prefill, in reading order. What a second look changes in the
encoding of the first shows as a difference between the last two.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from texturevlm.ask import VLM
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.views import LEVELS
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.asking import ASKING, asked_one_by_one
from texturevlm_lab.studies.looks import NEVER
from texturevlm_lab.studies.study import lead, provenance, study_main

MOST = 48  # tokens of an answer


def asked(model: VLM, sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """ANLS by levels and way of asking, whether two looks answer as one prefill, and by how much they differ."""
    found: dict[str, Any] = {}
    how: Any = {"budget": options.budget, "relevance": options.relevance, "return_details": True}
    how["max_new_tokens"] = MOST
    session = model.prepare(sample.image)
    for levels in LEVELS:
        one = session.ask(sample.question, levels=levels, **how)
        two = session.ask(sample.question, levels=levels, looks="auto", sure=NEVER, **how)
        both = two.placements[0].upright

        def same_tokens(texture: Texture, *_: Any, both: Allocation = both, **__: Any) -> Allocation:
            return both

        wide = {**how, "budget": both.budget, "allocator": same_tokens}
        again = session.ask(sample.question, levels=levels, **wide)
        texts = {"one": one.text, "two": two.text, "again": again.text}
        scores = {name: anls(text, sample.answers) for name, text in texts.items()}
        away = abs(two.logprobs[0] - again.logprobs[0]) if two.tokens[:1] == again.tokens[:1] else None
        found[levels] = {**scores, "same": two.text == again.text, "away": away}
    return found


def lines(rows: Sequence[dict[str, Any]], trained: str) -> list[tuple[str, ...]]:
    """One line per levels: scores, the difference to the levels of the training, and what a second look changes."""
    pages, found = [row["page"] for row in rows], []
    for levels in LEVELS:
        own = {name: [row[levels][name] for row in rows] for name in ("one", "two", "again", "same")}
        means = [f"{sum(values) / len(values):.3f}" for values in (own["one"], own["two"], own["again"])]
        base = None if levels == trained else [row[trained]["one"] for row in rows]
        away = [row[levels]["away"] for row in rows if row[levels]["away"] is not None]
        said = [f"{sum(own['same']) / len(rows):.2f}", f"{sum(away) / max(1, len(away)):.4f}"]
        found.append((levels, means[0], lead(own["one"], base, pages), *means[1:], *said))
    return found


def report(record: dict[str, Any]) -> str:
    rows = record["rows"]
    heads = ["levels", "ANLS, one look", "minus the trained one", "two looks, appended", "the same tokens, one prefill"]
    heads += ["same answer", "log-probability of the first token: difference"]
    return markdown_page(
        "# Scales apart, together and causal in the vision tower",
        provenance(record),
        f"{len(rows)} questions of the {record['split']} split on {len({row['page'] for row in rows})} pages, model "
        f"{record['model']}, which was trained with levels {record['trained']}; budget {record['budget']}, relevance "
        f"{record['relevance']}, one thread of a CPU. Intervals: 95 %, paired, by page. The last two columns compare "
        "the two before them.",
        markdown_table(heads, lines(rows, record["trained"])),
    )


main = study_main(__name__, __doc__, partial(asked_one_by_one, "levels", asked=asked), report, *ASKING)
