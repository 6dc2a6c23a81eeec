"""The words of a prompt about a stream: before and behind the video, and around each of its moments."""

from __future__ import annotations

import math
from typing import Any

import torch

from texturevlm.ask.messages import VIDEO, conversation_about
from texturevlm.types import Allocation
from texturevlm.vlm.views import moment_view

LATE = 99999.9  # seconds: a time of many digits


class Wording:
    """The ids of words.

    adapter: of a Qwen model
    longest: ids around a moment at most
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.longest = sum(map(len, self.of_moment(LATE)))

    def of_moment(self, time: float) -> tuple[list[int], list[int]]:
        """Before and behind the tokens of a moment. time: in seconds"""
        one = Allocation.of_boxes(torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), (1, 1), 1)
        view = moment_view(torch.zeros(1, 1, 3, 1, 1), one, levels="joint", number=0, seconds=time, fps=1.0)
        text = self.adapter.filling([view], math.inf)
        ids: list[int] = self.adapter.tokenizer(text, add_special_tokens=False)["input_ids"]
        (at,) = [index for index, one in enumerate(ids) if one in self.adapter.visual_ids]
        return ids[:at], ids[at + 1 :]

    def of_question(self, question: str) -> tuple[list[int], list[int]]:
        """Before and behind the video."""
        adapter, mark = self.adapter, self.adapter.visual_ids[1]
        ids = adapter.spell(conversation_about(1, question, adapter.marks, VIDEO), [], [adapter.word(mark)])
        at = ids.index(mark)
        return ids[:at], ids[at + 1 :]
