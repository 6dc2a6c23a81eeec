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
from itertools import zip_longest
from typing import Any

import torch

from texturevlm.ask import VLM, load_vlm
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.views import LEVELS
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.asking import ASKING, asked_once, samples_by_set, settings_of
from texturevlm_lab.studies.looks import NEVER
from texturevlm_lab.studies.study import provenance, study_main

MOST = 48  # tokens of an answer


def asked(model: VLM, sample: Sample, budget: int, relevance: str) -> dict[str, Any]:
    """ANLS by levels and way of asking, whether two looks answer as one prefill, and by how much they differ."""
    found: dict[str, Any] = {"id": sample.id, "page": sample.image.name}
    options: Any = {"budget": budget, "relevance": relevance, "return_details": True, "max_new_tokens": MOST}
    session = model.prepare(sample.image)
    for levels in LEVELS:
        one = session.ask(sample.question, levels=levels, **options)
        two = session.ask(sample.question, levels=levels, looks="auto", sure=NEVER, **options)
        both = two.chosen[0].allocation

        def same_tokens(texture: Texture, *_: Any, both: Allocation = both, **__: Any) -> Allocation:
            return both.scaled_to(texture.size)  # a small page is enlarged, `both` is in its own pixels

        wide = {**options, "budget": both.budget, "allocator": same_tokens}
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
        apart = "–"
        if levels != trained:
            one = paired_difference(own["one"], [row[trained]["one"] for row in rows], groups=pages)
            apart = f"{one.mean:+.3f} ({one.low:+.3f} to {one.high:+.3f})"
        away = [row[levels]["away"] for row in rows if row[levels]["away"] is not None]
        said = [f"{sum(own['same']) / len(rows):.2f}", f"{sum(away) / max(1, len(away)):.4f}"]
        found.append((levels, means[0], apart, *means[1:], *said))
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


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = load_vlm(options.model, budget=options.budget)
    # In turns: a run that is cut has asked as many questions of each set.
    turns = zip_longest(*samples_by_set(options).values())
    samples = [sample for turn in turns for sample in turn if sample is not None]
    ask = partial(asked, model, budget=options.budget, relevance=options.relevance)
    rows = asked_once(samples, ask, options.out / "levels-rows.jsonl")
    return {**settings_of(options), "trained": model.adapter.trained.levels, "rows": rows}


main = study_main(
    __name__,
    __doc__,
    study,
    report,
    *ASKING,
)
