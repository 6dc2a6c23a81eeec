"""Answers of a model to questions about fifty pages, by how many pages are seen finely, and together or apart.

    python -m texturevlm_lab.studies.document_answers DATA --out DIR [--limit N] [--files N] [--tokens N,N]
        [--together] [--model M] [--device D] [--seconds S]

DATA is a folder like docvqa_half; its train pages are bound into PDFs of 50 pages, as for
texturevlm_lab.studies.documents. The first
--limit questions of each file are answered with each number of fine pages: with all of them in one prompt, and with
each page in a prompt of its own, of which the likeliest answer counts; and with one page beside the sheet of the
others. All ways spend the same tokens. --together leaves out all ways but the first, which is what `ask` does.
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
from texturevlm.ask.asked import Asked
from texturevlm.ask.choose import Chosen
from texturevlm.ask.messages import conversation_with
from texturevlm.commands.arguments import counts
from texturevlm.defaults import ALLOCATOR
from texturevlm.pages import Pages, open_pages
from texturevlm.pages.choose import FINE_PIXELS, shown_small
from texturevlm.pages.scouting import PageSight, scouted
from texturevlm.pages.sheet import sheet_tokens
from texturevlm.progress import Progress
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.scout.spotter import PIXELS
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.documents import best, bound_files, write_pdf
from texturevlm_lab.studies.study import DEVICE, MODEL, SECONDS, deadline, device_of, option, provenance, study_main

FINE = (1, 2, 3, 5)
BUDGETS = [273, 1024]
QUESTIONS = 25  # of a file
LENGTH = 32  # tokens of an answer at most
AT_ONCE = 4  # questions whose pages are held
BASELINE = "1 page, together"


@dataclass(frozen=True)
class Said:
    """One answer: to a prompt with these pages. logprob: the mean over its tokens; doubt: as `Answer.unreadable`."""

    pages: list[int]
    worth: float
    score: float
    logprob: float
    doubt: float


@dataclass(frozen=True, eq=False)
class Part:
    """A picture of a prompt: the number of its page, from 0, and its tokens."""

    index: int
    texture: Texture
    relevance: Relevance
    allocation: Allocation


@dataclass(frozen=True, eq=False)
class Prompt:
    """One prompt of a way to ask; a way that asks pages apart has several."""

    way: str
    pages: list[int]
    worth: float
    asked: Asked


@dataclass(frozen=True, eq=False)
class Question:
    """A question about a file. opened: a page in fine pixels, with its relevance; coarse: in those of the scout"""

    text: str
    sights: Sequence[PageSight]
    opened: Callable[[int], tuple[Texture, Relevance]]
    coarse: Callable[[int], Texture]


def prompts_for(vlm: VLM, question: Question, budget: int, *, together: bool = False) -> Iterator[Prompt]:
    """All ways to spend a budget on a question; together: only those that `ask` has."""
    sights, opened = question.sights, question.opened

    def prompt(way: str, parts: Sequence[Part], numbered: bool = False) -> Prompt:
        names = [f"Page {one.index + 1} of {len(sights)}:" for one in parts] if numbered else []
        said = conversation_with(question.text, len(parts), vlm.adapter.marks, apart=True, names=names)
        chosen = [Chosen(one.allocation, one.relevance) for one in parts]
        worth = sum(sights[one.index].worth for one in parts if one.index >= 0)
        asked = Asked(said, [one.texture for one in parts], chosen, budget)
        return Prompt(way, [one.index + 1 for one in parts], worth, asked)

    def resized(index: int, tokens: int, texture: Texture) -> Part:
        maps = find_relevance(texture, patch=vlm.adapter.side, relevance="none")
        found = ALLOCATORS["resize"](texture, maps, budget=tokens, patch=vlm.adapter.side)
        return Part(index, texture, maps, found)

    for fine in FINE:
        parts = _fine_parts(vlm, question, budget, fine)
        some = "1 page" if fine == 1 else f"{fine} pages"
        yield prompt(f"{some}, together", parts)
        if fine > 1 and not together:
            yield prompt(f"{some}, together, numbered", parts, numbered=True)
            yield from (prompt(f"{some}, apart", [one]) for one in parts)
    if together:
        return
    yield prompt("1 page, beside the sheet", _beside_sheet(vlm, question, budget))
    top = best(sights)
    yield prompt("the top page, resized", [resized(top[0], budget, opened(top[0])[0])])
    yield prompt("the top 5 pages, resized", [resized(one, budget // len(top), opened(one)[0]) for one in sorted(top)])
    each = budget // len(sights)
    yield prompt("all pages, resized", [resized(one, each, question.coarse(one)) for one in range(len(sights))])


def _fine_parts(vlm: VLM, question: Question, budget: int, most: int) -> list[Part]:
    """The pages that a budget is spent on, at most so many, in their order."""
    items = [Item(partial(question.opened, index), sight.worth) for index, sight in enumerate(question.sights)]
    found = []
    for index, share in enumerate(spend(items, budget=budget, most=most, patch=vlm.adapter.side)):
        if share:
            texture, relevance = question.opened(index)
            allocation = ALLOCATORS[ALLOCATOR](texture, relevance, budget=share, patch=vlm.adapter.side)
            found.append(Part(index, texture, relevance, allocation))
    return found


def _beside_sheet(vlm: VLM, question: Question, budget: int) -> list[Part]:
    """The best page, and the sheet of all others behind it, which counts as page 0."""
    sights = question.sights
    (one,) = _fine_parts(vlm, question, budget - sheet_tokens(len(sights) - 1), 1)
    others = [index for index in range(len(sights)) if index != one.index]
    sheet = shown_small(others, sights, vlm.adapter.side, vlm.device)
    return [one, Part(-1, sheet.texture, sheet.relevance, sheet.allocation)]


def answered(vlm: VLM, prompts: Sequence[Prompt], right: Sequence[Sequence[str]]) -> list[Said]:
    """What the answers to the prompts are worth, all asked at once. right: the answers that count, per prompt"""
    options = {"do_sample": False, "max_new_tokens": LENGTH}
    answers = vlm.generator.details([one.asked for one in prompts], options, {})
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
            rows += _file(vlm, file, open_pages(path), options, end, progress)
    return {"rows": rows, "files": len(files), "model": options.model, "device": str(vlm.device)}


def _file(
    vlm: VLM, file: Sequence[Sample], pages: Pages, options: argparse.Namespace, end: float, progress: Progress
) -> Iterator[dict[str, Any]]:
    """A row per question and budget: what each way says. end: when nothing new begins"""

    def opened(question: str, index: int) -> tuple[Texture, Relevance]:
        texture = pages.texture(index, FINE_PIXELS, vlm.device).mipmapped()
        return texture, find_relevance(texture, question, patch=vlm.adapter.side, relevance="scout")

    texts = [sample.question for sample in file[: options.limit or QUESTIONS]]
    ways_of = partial(prompts_for, vlm, together=options.together)
    every = scouted(pages, texts, patch=vlm.adapter.side, device=vlm.device)
    coarse = cache(lambda index: pages.texture(index, PIXELS, vlm.device).mipmapped())
    for first in range(0, len(texts), AT_ONCE):
        if time.monotonic() > end:
            return
        some = range(first, min(first + AT_ONCE, len(texts)))
        questions = {at: Question(texts[at], every[at], cache(partial(opened, texts[at])), coarse) for at in some}
        for budget in options.tokens:
            each = {at: list(ways_of(question, budget)) for at, question in questions.items()}
            asked = [(one, file[at].answers) for at, own in each.items() for one in own]
            said = iter(answered(vlm, *zip(*asked)))
            for at, own in each.items():
                ways: dict[str, list[dict[str, Any]]] = {}
                for one in own:
                    ways.setdefault(one.way, []).append(asdict(next(said)))
                yield {"page": file[at].image.name, "number": at + 1, "budget": budget, "ways": ways}
                progress.step()


def likeliest(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer that counts of pages that were asked apart."""
    return max(said, key=lambda one: float(one["logprob"]))


def report(found: dict[str, Any]) -> str:
    blocks = []
    for budget in dict.fromkeys(row["budget"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["budget"] == budget]
        names = [row["page"] for row in rows]
        scores, table = {}, []
        for way in rows[0]["ways"]:
            kept = [likeliest(row["ways"][way]) for row in rows]
            scores[way] = [one["score"] for one in kept]
            here = mean(row["number"] in one["pages"] for one, row in zip(kept, rows))
            gain = paired_difference(scores[way], scores[BASELINE], groups=names)
            shown = "" if way == BASELINE else format_interval(gain)
            table.append([way, len(rows), f"{mean(scores[way]):.3f}", shown, f"{here:.2f}"])
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


main = study_main(
    __name__,
    __doc__,
    measure,
    report,
    MODEL,
    option("--files", type=int, default=2, metavar="N", help="of 50 pages (default: 2)"),
    option("--tokens", type=counts, default=BUDGETS, metavar="N,N", help="(default: 273,1024)"),
    option("--together", action="store_true", help="only what `ask` does: all fine pages in one prompt"),
    DEVICE,
    SECONDS,
)
