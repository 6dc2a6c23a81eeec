"""Questions to the model: queued with a limit, answered in batches, streamed, broken off when the client leaves.

One thread asks the model. It takes the first question that waits and all others that can be answered together with it:
the same budget and the same options. On a GPU one, two, four or eight are answered at once, from captured graphs.
`generate` calls a stopping criterion after every token of a batch. That is where pieces of text leave, and where the
answer of a client who left ends, while the others go on. A model that looks again answers again: the text begins anew.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Thread, current_thread
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask import VLM, Answer
from texturevlm.ask.decoding import end_ids
from texturevlm.ask.generation import BATCH
from texturevlm.serve.lanes import Stop, Stopped
from texturevlm.serve.limits import ApiError

UNFINISHED = "\ufffd"  # how a tokenizer decodes a character whose last byte has not come yet

# piece and a text; look and nothing: the model answers anew; answer and a Reply; error and an exception
Event = tuple[str, Any]


@dataclass(frozen=True)
class Reply:
    """A finished answer. length: whether it was cut at the greatest length"""

    answer: Answer
    text: str
    prompt_tokens: int
    length: bool

    @property
    def probabilities(self) -> list[float]:
        """Of each token of the answer."""
        return [math.exp(one) for one in self.answer.logprobs]

    @property
    def confidence(self) -> float:
        """The geometric mean of the tokens' probabilities."""
        logprobs = self.answer.logprobs
        return math.exp(sum(logprobs) / max(1, len(logprobs)))


@dataclass(eq=False)
class Question:
    """A question that waits.

    session: what `VLM.prepare` returned
    prompt:  a text or a conversation
    options: of `VLM.ask`; questions with equal ones are answered together
    spent:   seconds that choosing took before it was asked
    """

    session: Any
    prompt: Any
    options: dict[str, Any]
    stops: Sequence[str] = ()
    spent: float = 0.0
    stop: Stop = field(default_factory=Stop)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    def tell(self, kind: str, value: Any) -> None:
        """Hand an event to the client's coroutine, from any thread."""
        self.loop.call_soon_threadsafe(self.events.put_nowait, (kind, value))

    def row(self) -> Row:
        """Its answer, as it grows."""
        return Row(lambda piece: self.tell("piece", piece), lambda: self.tell("look", None), self.stop, self.stops)


class Answerer:
    """The thread that asks one model.

    waiting: questions that may wait
    asked:   questions that the model was asked; batches: in so many calls
    """

    def __init__(self, model: VLM, *, waiting: int, most_together: int = BATCH) -> None:
        self.model, self.waiting, self.most_together = model, waiting, most_together
        self.asked = self.batches = 0
        self._queue: deque[Question] = deque()
        self._asking: list[Question] = []  # now
        self._changed = Condition()
        self._closed = False
        self._hooks = self._watched() if model.device.type == "cpu" else []
        self._thread = Thread(target=self._work, name="texturevlm-model", daemon=True)
        self._thread.start()

    def submit(self, question: Question) -> None:
        """Queue a question; its events follow."""
        with self._changed:
            if len(self._queue) >= self.waiting:
                raise ApiError(429, "the server is busy; try again in a moment")
            self._queue.append(question)
            self._changed.notify()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        with self._changed:
            self._closed = True
            for one in self._queue:
                one.stop.set()
            self._changed.notify()

    def _watched(self) -> list[Any]:
        """Look before every layer whether somebody waits: a CPU reads a long prompt for minutes."""

        def look(*_: Any) -> None:
            if current_thread() is self._thread and all(one.stop.wanted for one in self._asking):
                raise Stopped

        lists = (one for one in self.model.model.modules() if isinstance(one, torch.nn.ModuleList))
        return [layer.register_forward_pre_hook(look) for layers in lists for layer in layers]

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[Question]:
        """The questions to answer together; none when the server ends."""
        with self._changed:
            while True:
                self._queue = deque(one for one in self._queue if not one.stop.wanted)
                if self._closed:
                    return []
                if self._queue:
                    break
                self._changed.wait()
            first = self._queue[0]
            # Answers that may need another look are not generated together.
            most = 1 if first.options.get("looks") == "auto" else self.most_together
            alike = [one for one in self._queue if one.options == first.options]
            batch = alike[: self.model.graphs.batches(len(alike), most)[0]]
            self._queue = deque(one for one in self._queue if one not in batch)
            return batch

    def _answer(self, batch: list[Question]) -> None:
        rows = [one.row() for one in batch]
        self._asking = batch
        try:
            answers = self._ask(batch, rows)
        except Stopped:  # all have left
            return
        except Exception as error:  # whatever it is, the client is told, and the thread goes on
            if len(batch) > 1 and not any(row.said for row in rows):  # one of them is to blame: each by itself
                for one in batch:
                    self._answer([one])
                return
            if not isinstance(error, (ValueError, TypeError)):
                traceback.print_exception(error)
            for one in batch:
                one.tell("error", error)
            return
        for one, row, answer in zip(batch, rows, answers):
            text = row.cut(answer.text)
            if text.startswith(row.said) and len(text) > len(row.said):
                one.tell("piece", text[len(row.said) :])
            cut = not row.done and len(answer.tokens) >= one.options["max_new_tokens"]
            seconds = {**answer.seconds, "choose": answer.seconds.get("choose", 0.0) + one.spent}
            one.tell("answer", Reply(replace(answer, seconds=seconds), text, row.prompt_tokens, cut))

    def _ask(self, batch: list[Question], rows: list[Row]) -> list[Answer]:
        self.asked += len(batch)
        self.batches += 1
        ends = end_ids(self.model.model)
        told = Rows(rows, self.model.adapter.tokenizer, ends)
        sessions, prompts = [one.session for one in batch], [one.prompt for one in batch]
        options: Any = {**batch[0].options, "return_details": True, "stopping_criteria": [told]}
        if len(batch) == 1:
            return [self.model.ask(sessions[0], prompts[0], **options)]
        return list(self.model.ask(sessions, prompts, **options))


def error_of(error: BaseException) -> ApiError:
    """What the client is told of an error inside an answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (ValueError, TypeError)):
        return ApiError(400, " ".join(str(error).split()))
    if isinstance(error, Stopped):
        return ApiError(499, "the client has left")
    return ApiError(500, "an error inside the server")


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
