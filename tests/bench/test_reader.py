"""`texturevlm bench reader`, small: every row has a number, and the captured path reads as `ask` does."""

import torch

from texturevlm.ask.messages import conversation_about
from texturevlm.placement import choose_tokens
from texturevlm.types import Texture
from texturevlm.vlm.captured import CapturedPrefill
from texturevlm_lab.bench import reader
from texturevlm_lab.bench.report import Report, measure

SIZE = (350, 248)


def test_a_quick_run():
    report = measure("reader", "cpu", quick=True)
    (row,) = report.rows
    assert row.work == "248×350 → answer of 12 tokens" and row.timing.median > 0
    assert any("choose" in note and "first_token" in note for note in report.notes)


def test_the_captured_reading_is_that_of_the_plain_path():
    model = reader.random_reader("cpu", 24)
    model.model.float()
    fixed = CapturedPrefill(model.adapter, 24, masked=True)
    found = reader.captured_reading(Report("Reader", "cpu", 1e9), fixed, SIZE)()
    texture = Texture.open(reader.page(1, *SIZE)).mipmapped()
    allocation = choose_tokens(texture, reader.READER_QUESTION, budget=24, patch=32, relevance="scout")
    prompt = conversation_about(1, reader.READER_QUESTION, model.adapter.marks)
    with torch.no_grad():
        wanted = model.model(**model.adapter.prepare(prompt, texture, allocation)).logits[0, -1]
    assert found == [int(wanted.argmax())]
