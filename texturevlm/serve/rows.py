"""Answers that are generated together, each told to its own client as it grows.

`generate` calls a stopping criterion after every token of a batch. That is where pieces of text leave, and where the
answer of a client who left ends, while the others go on. A model that looks again answers again: the text begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.serve.lanes import Stop

UNFINISHED = "\ufffd"  # how a tokenizer decodes a character whose last byte has not come yet


class Row:
    """One answer of a batch.

    tell:  takes each new piece of text
    again: called when the model answers anew, after another look; what was told before does not hold any more
    stops: texts at which the answer ends
    """

    def __init__(
        self, tell: Callable[[str], None], again: Callable[[], None], stop: Stop, stops: Sequence[str] = ()
    ) -> None:
        self.tell, self.again, self.stop, self.stops = tell, again, stop, tuple(stops)
        self.said = ""
        self.done = False
        self.prompt_tokens = 0

    def restart(self) -> None:
        """The model has looked again."""
        self.said, self.done = "", False
        self.again()

    def grow(self, text: str) -> None:
        """Tell what is new in the text so far."""
        text = self.cut(text.lstrip())
        if text.startswith(self.said) and not text.endswith(UNFINISHED) and len(text) > len(self.said):
            self.tell(text[len(self.said) :])
            self.said = text

    def cut(self, text: str) -> str:
        """The text before the first stop text."""
        for one in self.stops:
            head, found, _ = text.partition(one)
            if found:
                text, self.done = head, True
        return text


class Rows:
    """The stopping criterion. ends: ids that end an answer"""

    def __init__(self, rows: Sequence[Row], tokenizer: Any, ends: Sequence[int]) -> None:
        self.rows, self.tokenizer, self.ends = rows, tokenizer, set(ends)
        self.begin: int | None = None
        self.length = 0  # of prompt and answer at the last call

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        length = input_ids.shape[1]
        if self.begin is None or length != self.length + 1:  # another prompt: of a further look
            for row in self.rows if self.begin is not None else ():
                row.restart()
            self.begin = length - 1
            self._count_prompts(input_ids[:, : self.begin])
        self.length = length
        answers = input_ids[:, self.begin :].tolist()
        for row, ids in zip(self.rows, answers):
            if not row.done:
                row.done = ids[-1] in self.ends or row.stop.wanted
                row.grow(self.tokenizer.decode(ids, skip_special_tokens=True))
        return torch.tensor([row.done for row in self.rows], device=input_ids.device)

    def _count_prompts(self, prompts: Tensor) -> None:
        pad = self.tokenizer.pad_token_id
        for row, ids in zip(self.rows, prompts):
            filled = len(self.rows) > 1 and pad is not None  # prompts of one length need no padding
            row.prompt_tokens = int((ids != pad).sum()) if filled else len(ids)
