"""What a reader answers to six questions about examples/invoice.png, at several budgets and by several choosers.

    python -m texturevlm_lab.studies.reader_invoice examples --out results [--model reader]

That page, the script that draws it and its values are never in training.
"""

import argparse
import math
from typing import Any

from texturevlm.ask import load_vlm
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import MODEL, option, provenance, study_main

ANSWERS = {
    "What is the total?": "12,066.31",
    "What is the invoice number?": "INV-25-004817",
    "What is the date?": "17 March 2025",
    "What is the due date?": "16 April 2025",
    "To whom is it addressed?": "Tessaly Water Analytics Cooperative",
    "What is the VAT?": "1,926.55",
}
BUDGETS = (96, 192, 273, 512)
MOST = 60  # tokens of an answer
CHOOSERS = (("scout", "auto"), ("none", "resize"))  # relevance and allocator


def measure(options: argparse.Namespace) -> dict[str, Any]:
    page = options.data / "invoice.png"
    if not page.is_file():
        raise FileNotFoundError(f"DATA must hold invoice.png, got {options.data}")
    rows = []
    for budget in [options.budget] if options.budget else BUDGETS:
        model = load_vlm(options.model, budget=budget, relevance="scout")
        for relevance, allocator in CHOOSERS:
            given: dict[str, Any] = {"relevance": relevance, "allocator": allocator, "max_new_tokens": MOST}
            answers = model.ask(page, list(ANSWERS)[: options.limit], return_details=True, **given)
            for (question, wanted), answer in zip(ANSWERS.items(), answers):
                sure, right = math.exp(answer.logprob / len(answer.tokens)), anls(answer.text, [wanted])
                row = {"budget": budget, "chooser": relevance if relevance != "none" else allocator}
                rows.append({**row, "question": question, "answer": answer.text, "anls": right, "sure": sure})
    return {"model": options.model, "rows": rows}


def report(record: dict[str, Any]) -> str:
    names = ("budget", "chooser", "question", "answer")
    table = [[*(row[name] for name in names), f"{row['anls']:.2f}", f"{row['sure']:.2f}"] for row in record["rows"]]
    return markdown_page(
        "# Six questions about an unseen invoice",
        f"{record['model']}. Probability: of a token, the geometric mean.",
        markdown_table(["tokens", "chosen by", "question", "answer", "ANLS", "probability"], table),
        provenance(record),
    )


main = study_main(
    __name__,
    __doc__,
    measure,
    report,
    MODEL,
    option("--budget", type=int, metavar="N", help="this one alone"),
)
