"""`texturevlm bench reader`: a page and a question → an answer of the reader that comes with the package.

The weights are random, which changes no time: the length of the answer is fixed. On a CPU the whole answer is timed,
from an image in memory, tokens chosen by the scout; on a GPU the first token, all stages captured.
"""

from __future__ import annotations

from functools import partial

import torch

from texturevlm.ask import VLM, PlainProcessor, conversation_about
from texturevlm.defaults import ALLOCATOR, BUDGET
from texturevlm.draw import to_pil
from texturevlm.vlm import CapturedPrefill
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work
from texturevlm_lab.bench.vlm_model import captured_first_token, first_token_of
from texturevlm_lab.train.reader.alphabet import make_tokenizer
from texturevlm_lab.train.reader.network import make_image_processor, make_network

TITLE = "Reader"
SIZES = ((1754, 1240), (3508, 2480))  # A4 at 150 and at 300 dots per inch
READER_QUESTION = "What is the total?"
LENGTH = 12  # tokens: 12,066.31 has ten, with its end
ANSWER_BAR, FIRST_TOKEN_BAR = 2.5e6, 4000.0  # microseconds


def bench(report: Report) -> None:
    """Time an answer and its stages; a quick run takes a small page and few tokens."""
    budget, sizes = (24, ((350, 248),)) if report.quick else (BUDGET, SIZES)
    model = random_reader(report.device, budget)
    for size in sizes:
        (_first_token if report.device == "cuda" else _answer)(report, model, size)
    report.notes += [
        f"{sum(one.numel() for one in model.model.parameters()) / 1e6:.1f} million random weights in "
        f"{model.model.dtype}, {budget} tokens by the scout, question {READER_QUESTION!r}."
    ]


def random_reader(device: str, budget: int) -> VLM:
    """The reader as `load_vlm` gives it, with random weights in the dtype of the shipped ones."""
    network = make_network().to(device, torch.bfloat16).eval().requires_grad_(False)
    processor = PlainProcessor(make_tokenizer(), make_image_processor())
    return VLM(network, processor, budget=budget, relevance="scout")


def _answer(report: Report, model: VLM, size: tuple[int, int]) -> None:
    """The whole answer on a CPU, and what each stage takes."""
    image = to_pil(page(1, *size))
    asking = partial(model.ask, image, READER_QUESTION, max_new_tokens=LENGTH, min_new_tokens=LENGTH)
    asking()
    where, bar = f"{size[1]}×{size[0]}", None if report.quick else ANSWER_BAR
    report.add(f"{where} → answer of {LENGTH} tokens", "reader, ask", asking, "cpu", bar=bar, repeats=5)
    stages = [f"{name} {part:.2f} s" for name, part in asking(return_details=True).seconds.items()]
    report.notes.append(f"{where}, stages: {', '.join(stages)}.  ")


def _first_token(report: Report, model: VLM, size: tuple[int, int]) -> None:
    """The first token on a GPU, from an image there."""
    fixed = CapturedPrefill(model.adapter, model.budget, masked=True)
    reading = captured_reading(report, fixed, size)
    bar = None if report.quick or size != SIZES[-1] else FIRST_TOKEN_BAR
    report.add_call(first_token_of(size), f"reader, asked: scout, {ALLOCATOR}, all captured", reading, bar=bar)
    report.notes += [f"{first_token_of(size)}: {reason}.  " for reason in fixed.reasons]


def captured_reading(report: Report, fixed: CapturedPrefill, size: tuple[int, int]) -> Work:
    """The first token of a page on the device; the prompt is spelled anew."""
    adapter = fixed.adapter
    filling = [adapter.image_filling(fixed.budget)]

    def spell() -> list[int]:
        ids: list[int] = adapter.spell(conversation_about(1, READER_QUESTION, adapter.marks), (), filling)
        return ids

    return captured_first_token(report, fixed, page(1, *size).to(report.device), READER_QUESTION, spell)
