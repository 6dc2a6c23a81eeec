"""Answers of a model to questions about fifty pages, by how many pages are seen finely.

    python -m texturevlm_lab.studies.document_answers DATA --out DIR [--limit N] [--files N] [--tokens N,N]
        [--model M] [--device D] [--seconds S]

DATA is a folder like docvqa_half; its train pages are bound into PDFs of 50 pages, as for documents.py. The first
--limit questions of each file are answered with each number of fine pages, all of them in one prompt, as `ask` does.
All ways spend the same tokens.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import Item, spend
from texturevlm.ask import VLM, load_vlm
from texturevlm.ask.answer import Request
from texturevlm.ask.messages import conversation_with
from texturevlm.commands.arguments import counts
from texturevlm.defaults import ALLOCATOR
from texturevlm.pages import open_pages
from texturevlm.pages.choose import FINE_PIXELS
from texturevlm.pages.pictures import PagePictures
from texturevlm.pages.scouting import PageSight, scouted
from texturevlm.placement import Picture, Placement, TokenConfig
from texturevlm.progress import Progress
from texturevlm.relevance import Relevance
from texturevlm.types import Texture
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.documents import bound_files, write_pdf
from texturevlm_lab.studies.study import (
    DEVICE,
    MODEL,
    SECONDS,
    deadline,
    device_of,
    lead,
    option,
    provenance,
    study_main,
)

FINE = (1, 2, 3, 5)
BUDGETS = [273, 1024]
QUESTIONS = 25  # of a file
LENGTH = 32  # tokens of an answer at most
AT_ONCE = 4  # questions whose pages are held
BASELINE = "1 page, together"
PageOpener = Callable[[int], tuple[Picture, Relevance]]  # a page in fine pixels, with its relevance to a question


@dataclass(frozen=True)
class Said:
    """One answer: to a prompt with these pages. logprob: the mean over its tokens; doubt: as `Answer.unreadable`."""

    pages: list[int]
    worth: float
    score: float
    logprob: float
    doubt: float


@dataclass(frozen=True, eq=False)
class Prompt:
    """A question about so many fine pages, as the model is asked."""

    way: str
    pages: list[int]
    worth: float
    asked: Request


def prompts_for(vlm: VLM, text: str, sights: Sequence[PageSight], open_page: PageOpener, budget: int) -> list[Prompt]:
    """The prompts of a question, by how many pages are seen finely."""

    def texture_and_relevance(index: int) -> tuple[Texture, Relevance]:
        picture, relevance = open_page(index)
        return picture.texture, relevance

    items, found = [Item(partial(texture_and_relevance, index), sight.worth) for index, sight in enumerate(sights)], []
    for fine in FINE:
        placements = {}
        for index, share in enumerate(spend(items, budget=budget, most=fine, patch=vlm.adapter.side)):
            if share:
                picture, relevance = open_page(index)
                tokens = ALLOCATORS[ALLOCATOR](picture.texture, relevance, budget=share, patch=vlm.adapter.side)
                placements[index] = Placement(picture, tokens, relevance)
        said = conversation_with(text, len(placements), vlm.adapter.marks, apart=True)
        way, worth = f"{fine} page{'s' if fine > 1 else ''}, together", sum(sights[index].worth for index in placements)
        asked = Request(said, list(placements.values()), budget)
        found.append(Prompt(way, [index + 1 for index in placements], worth, asked))
    return found


def answered(vlm: VLM, prompts: Sequence[Prompt], right: Sequence[Sequence[str]]) -> list[Said]:
    """What the answers to the prompts are worth, all asked at once. right: the answers that count, per prompt"""
    options = {"do_sample": False, "max_new_tokens": LENGTH}
    answers = vlm.generator.answers([one.asked for one in prompts], options, {})
    return [
        Said(one.pages, one.worth, anls(answer.text, true), mean(answer.logprobs), answer.unreadable or 0.0)
        for one, answer, true in zip(prompts, answers, right)
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    files = bound_files(load_data(options.data, split="train").samples, options.files)
    place, end = device_of(options), deadline(options)
    dtype = torch.float32 if place == "cpu" else None  # half precision is slow there
    vlm = load_vlm(options.model, device=place, dtype=dtype, captured=False, turn=0.0)
    asked = options.limit or QUESTIONS
    rows: list[dict[str, Any]] = []
    progress = Progress(sum(min(asked, len(file)) for file in files) * len(options.tokens), "questions")
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            if time.monotonic() > end:
                break
            path = Path(folder) / f"{number}.pdf"
            write_pdf(file, path)
            rows += _file(vlm, file, PagePictures(open_pages(path)), options, end, progress)
    return {"rows": rows, "files": len(files), "model": options.model, "device": str(vlm.device)}


def _file(
    vlm: VLM, file: Sequence[Sample], pages: PagePictures, options: argparse.Namespace, end: float, progress: Progress
) -> Iterator[dict[str, Any]]:
    """A row per question and budget: what each way says. end: when nothing new begins"""

    how = TokenConfig(patch=vlm.adapter.side, turn=0.0)

    def opened(question: str, index: int) -> tuple[Picture, Relevance]:
        picture = pages.picture(index, FINE_PIXELS, how, vlm.device)
        return picture, picture.memo.find(question, scorer="scout")

    texts = [sample.question for sample in file[: options.limit or QUESTIONS]]
    sights = scouted(pages, texts, how=how, device=vlm.device)
    for first in range(0, len(texts), AT_ONCE):
        if time.monotonic() > end:
            return
        some = range(first, min(first + AT_ONCE, len(texts)))
        openers = {at: cache(partial(opened, texts[at])) for at in some}
        for budget in options.tokens:
            prompts = {at: prompts_for(vlm, texts[at], sights[at], openers[at], budget) for at in some}
            asked = [(one, file[at].answers) for at, own in prompts.items() for one in own]
            said = iter(answered(vlm, *zip(*asked)))
            for at, own in prompts.items():
                ways = {one.way: [asdict(next(said))] for one in own}
                yield {"page": file[at].image.name, "number": at + 1, "budget": budget, "ways": ways}
                progress.step()


def report(found: dict[str, Any]) -> str:
    blocks = []
    for budget in dict.fromkeys(row["budget"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["budget"] == budget]
        names = [row["page"] for row in rows]
        base, table = [row["ways"][BASELINE][0]["score"] for row in rows], []
        for way in rows[0]["ways"]:
            said = [row["ways"][way][0] for row in rows]
            scores = [one["score"] for one in said]
            here = mean(row["number"] in one["pages"] for one, row in zip(said, rows))
            gain = "" if way == BASELINE else lead(scores, base, names)
            table.append([way, len(rows), f"{mean(scores):.3f}", gain, f"{here:.2f}"])
        heads = ("pages", "n", "ANLS", "− 1 page", "the right page is read")
        blocks += [f"## {budget} tokens", markdown_table(heads, table)]
    return markdown_page(
        "# Answers from fifty pages",
        f"Pages of different documents (`train`), bound into {found['files']} PDFs of 50 pages, "
        f"model {found['model']}, relevance scout, device {found['device']}. Apart: each page is asked in a prompt of "
        "its own, and the likeliest answer counts; together: one prompt. Differences are paired by question, with 95% "
        "intervals by page. Right page: of the answer that counts.",
        *blocks,
        provenance(found),
    )


OPTIONS = (
    option("--files", type=int, default=2, metavar="N", help="of 50 pages (default: 2)"),
    option("--tokens", type=counts, default=BUDGETS, metavar="N,N", help="(default: 273,1024)"),
)
main = study_main(__name__, __doc__, measure, report, MODEL, *OPTIONS, DEVICE, SECONDS)
