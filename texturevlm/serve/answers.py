"""Questions to the model: queued with a limit, answered in batches, streamed, broken off when the client leaves.

One thread asks the model. It takes the first question that waits and all others that can be answered together with it:
the same budget and the same options. On a GPU one, two, four or eight are answered at once, from captured graphs.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Any

import torch

from texturevlm.ask.decoding import end_ids
from texturevlm.ask.model import BATCH
from texturevlm.serve.lanes import Stop, Stopped
from texturevlm.serve.limits import ApiError
from texturevlm.serve.rows import Row, Rows

if TYPE_CHECKING:
    from texturevlm.ask import VLM, Answer

# piece and a text; look and nothing: the model answers anew; answer and a Told; error and an exception
Event = tuple[str, Any]


@dataclass(frozen=True)
class Told:
    """A finished answer. length: whether it was cut at the greatest length"""

    answer: Answer
    text: str
    prompt_tokens: int
    length: bool

    @property
    def visual_tokens(self) -> int:
        return self.answer.visual_tokens

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
            one.tell("answer", Told(replace(answer, seconds=seconds), text, row.prompt_tokens, cut))

    def _ask(self, batch: list[Question], rows: list[Row]) -> list[Answer]:
        self.asked += len(batch)
        self.batches += 1
        ends = end_ids(self.model.model)
        told = Rows(rows, self.model.adapter.tokenizer, ends)
        sessions, prompts = [one.session for one in batch], [one.prompt for one in batch]
        options: Any = {**batch[0].options, "return_details": True, "stopping_criteria": [told]}
        if len(batch) == 1:
            return [self.model.ask(sessions[0], prompts[0], **options)]
        found: list[Answer] = self.model.ask(sessions, prompts, **options)
        return found


def error_of(error: BaseException) -> ApiError:
    """What the client is told of an error inside an answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (ValueError, TypeError)):
        return ApiError(400, " ".join(str(error).split()))
    if isinstance(error, Stopped):
        return ApiError(499, "the client has left")
    return ApiError(500, "an error inside the server")
