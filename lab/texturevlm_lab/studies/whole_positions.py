"""Whole positions in the language model: what do chosen tokens lose under vLLM, which has no others?

    python -m texturevlm_lab.studies.whole_positions DATA --out results [--limit N] [--model reader] [--split train]
        [--budget 273]

DATA holds sroie/ and funsd/. The same tokens of the same page are read twice: at their exact rows and columns, and at
the nearest whole ones, as the plug-in for vLLM puts them (texturevlm/vllm_plugin/positions.py). The vision tower is the
same.
"""

import argparse
from functools import partial
from statistics import mean
from typing import Any
from unittest.mock import patch

from torch import Tensor

from texturevlm.ask import VLM
from texturevlm.vllm_plugin.positions import nearest
from texturevlm.vlm.families import qwen
from texturevlm.vlm.places import mrope_positions
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.asking import ASKING, SETS, asked_one_by_one
from texturevlm_lab.studies.study import lead, provenance, study_main

MOST = 48  # tokens of an answer


def whole(*given: Any) -> tuple[Tensor, Tensor]:
    """Positions as vLLM has them."""
    place, further = mrope_positions(*given)
    return nearest(place), further


def asked(model: VLM, sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """ANLS at exact and at whole positions, whether the answers are the same, and how far the first token moved."""
    how: Any = {"budget": options.budget, "relevance": options.relevance, "return_details": True}
    session = model.prepare(sample.image)
    exact = session.ask(sample.question, max_new_tokens=MOST, **how)
    with patch.object(qwen, "mrope_positions", whole):
        moved = session.ask(sample.question, max_new_tokens=MOST, **how)
    return {
        "exact": anls(exact.text, sample.answers),
        "whole": anls(moved.text, sample.answers),
        "same": exact.text == moved.text,
        "away": abs(exact.logprobs[0] - moved.logprobs[0]) if exact.tokens[:1] == moved.tokens[:1] else None,
    }


def report(record: dict[str, Any]) -> str:
    heads = ("set", "questions", "ANLS, exact", "ANLS, whole", "whole − exact", "same answer", "moved")
    table = []
    for name in SETS:
        own = [row for row in record["rows"] if row["set"] == name]
        exact, moved = ([row[kind] for row in own] for kind in ("exact", "whole"))
        away = [row["away"] for row in own if row["away"] is not None]
        cells = [len(own), *(f"{mean(values):.3f}" for values in (exact, moved))]
        cells += [lead(moved, exact, [row["page"] for row in own]), f"{mean(row['same'] for row in own):.2f}"]
        table.append((name, *cells, f"{sum(away) / max(1, len(away)):.4f}"))
    return markdown_page(
        "# Whole positions in the language model",
        provenance(record),
        f"Questions of the {record['split']} split, model {record['model']}, budget {record['budget']}, relevance "
        f"{record['relevance']}, one thread of a CPU. Intervals: 95 %, paired, by page. Moved: the mean difference of "
        "the log-probability of the first token, where it is the same.",
        markdown_table(heads, table),
    )


main = study_main(__name__, __doc__, partial(asked_one_by_one, "whole_positions", asked=asked), report, *ASKING)
