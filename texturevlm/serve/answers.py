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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Thread, current_thread
from typing import Any

import torch
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from torch import Tensor

from texturevlm.ask import VLM, Answer
from texturevlm.ask.decoding import end_ids
from texturevlm.ask.generation import BATCH
from texturevlm.serve.lanes import Stop, Stopped
from texturevlm.serve.limits import ApiError

CLIENT_LEFT = 499  # nginx's status for a client that closed the connection; nobody reads it
UNFINISHED = "\ufffd"  # how a tokenizer decodes a character whose last byte has not come yet

# piece and a text; look and nothing: the model answers anew; answer and a Reply; error and an exception
Event = tuple[str, Any]


@dataclass(frozen=True)
class Reply:
    """A finished answer. finish: length if it was cut at the greatest length, else stop"""

    answer: Answer
    text: str
    prompt_tokens: int
    finish: str

    @property
    def probabilities(self) -> list[float]:
        """Of each token of the answer."""
        return [math.exp(logprob) for logprob in self.answer.logprobs]

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
    stops:   texts at which the answer ends
    spent:   seconds that choosing took before it was asked
    said:    of the answer, so far
    """

    session: Any
    prompt: Any
    options: dict[str, Any]
    stops: Sequence[str] = ()
    spent: float = 0.0
    stop: Stop = field(default_factory=Stop)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    said: str = ""
    done: bool = False
    prompt_tokens: int = 0

    def tell(self, kind: str, value: Any) -> None:
        """Hand an event to the client's coroutine, from any thread."""
        self.loop.call_soon_threadsafe(self.events.put_nowait, (kind, value))

    def begin(self) -> None:
        """The model answers, or answers anew."""
        self.said, self.done = "", False

    def grow(self, text: str, *, whole: bool = False) -> str:
        """Tell what is new in the text so far, or in the whole text, and return it up to the first stop text."""
        for stop in self.stops:
            head, found, _ = text.partition(stop)
            if found:
                text, self.done = head, True
        if text.startswith(self.said) and text != self.said and (whole or not text.endswith(UNFINISHED)):
            self.tell("piece", text[len(self.said) :])
            self.said = text
        return text


class Answerer:
    """The thread that asks one model. waiting: questions that may wait"""

    def __init__(self, model: VLM, *, waiting: int) -> None:
        self.model, self.waiting = model, waiting
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
            for question in self._queue:
                question.stop.set()
            self._changed.notify()

    def _watched(self) -> list[Any]:
        """Look before every layer whether somebody waits: a CPU reads a long prompt for minutes."""

        def look(*_: Any) -> None:
            if current_thread() is self._thread and all(question.stop.is_set() for question in self._asking):
                raise Stopped

        lists = (part for part in self.model.model.modules() if isinstance(part, torch.nn.ModuleList))
        return [layer.register_forward_pre_hook(look) for layers in lists for layer in layers]

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[Question]:
        """The questions to answer together; none when the server ends."""
        with self._changed:
            while True:
                self._queue = deque(question for question in self._queue if not question.stop.is_set())
                if self._closed:
                    return []
                if self._queue:
                    break
                self._changed.wait()
            first = self._queue[0]
            # Answers that may need another look are not generated together.
            looks = first.options.get("looks", self.model.config.looks)
            alike = [question for question in self._queue if question.options == first.options]
            batch = alike[: self.model.graphs.batches(len(alike), 1 if looks == "auto" else BATCH)[0]]
            self._queue = deque(question for question in self._queue if question not in batch)
            return batch

    def _answer(self, batch: list[Question]) -> None:
        for question in batch:
            question.begin()
        self._asking = batch
        try:
            answers = self._ask(batch)
        except Stopped:  # all have left
            return
        except Exception as error:  # whatever it is, the client is told, and the thread goes on
            if len(batch) > 1 and not any(question.said for question in batch):  # one is to blame: each by itself
                for question in batch:
                    self._answer([question])
                return
            if error_of(error).status == 500:
                traceback.print_exception(error)
            for question in batch:
                question.tell("error", error)
            return
        for question, answer in zip(batch, answers):
            text = question.grow(answer.text, whole=True)
            cut = not question.done and len(answer.tokens) >= question.options["max_new_tokens"]
            seconds = {**answer.seconds, "choose": answer.seconds.get("choose", 0.0) + question.spent}
            finish = "length" if cut else "stop"
            question.tell("answer", Reply(replace(answer, seconds=seconds), text, question.prompt_tokens, finish))

    def _ask(self, batch: list[Question]) -> list[Answer]:
        growth = Growth(batch, self.model.adapter.tokenizer, end_ids(self.model.model))
        options: Any = {**batch[0].options, "return_details": True, "stopping_criteria": [growth]}
        if len(batch) == 1:
            return [self.model.ask(batch[0].session, batch[0].prompt, **options)]
        sessions, prompts = [question.session for question in batch], [question.prompt for question in batch]
        return list(self.model.ask(sessions, prompts, **options))


def error_of(error: BaseException) -> ApiError:
    """What the client is told of an error; of one that the package did not expect nothing of the inside."""
    if isinstance(error, HTTPException) and isinstance(error.__cause__, ApiError):
        return error.__cause__  # of the guard, while FastAPI read the body
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if first["type"] != "json_invalid")
        return ApiError(422, f"{where or 'the request'}: {first['msg']}")
    if isinstance(error, (ValueError, ImportError)):  # of the package: it says what was wrong, or is not installed
        return ApiError(400 if isinstance(error, ValueError) else 409, " ".join(str(error).split()))
    if isinstance(error, Stopped):
        return ApiError(CLIENT_LEFT, "the client has left")
    return ApiError(500, "an error inside the server")


class Growth:
    """The stopping criterion: it tells each question of a batch its answer as it grows.

    ends: ids that end an answer
    """

    def __init__(self, batch: Sequence[Question], tokenizer: Any, ends: Sequence[int]) -> None:
        self.batch, self.tokenizer, self.ends = batch, tokenizer, set(ends)
        self.begin: int | None = None
        self.length = 0  # of prompt and answer at the last call

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        length = input_ids.shape[1]
        if self.begin is None or length != self.length + 1:  # another prompt: of a further look
            for question in self.batch if self.begin is not None else ():
                question.begin()
                question.tell("look", None)  # what was told before does not hold any more
            self.begin = length - 1
            self._count_prompts(input_ids[:, : self.begin])
        self.length = length
        for question, ids in zip(self.batch, input_ids[:, self.begin :].tolist()):
            if not question.done:
                question.done = ids[-1] in self.ends or question.stop.is_set()
                question.grow(self.tokenizer.decode(ids, skip_special_tokens=True).lstrip())
        return torch.tensor([question.done for question in self.batch], device=input_ids.device)

    def _count_prompts(self, prompts: Tensor) -> None:
        pad = self.tokenizer.pad_token_id
        for question, ids in zip(self.batch, prompts):
            filled = len(self.batch) > 1 and pad is not None  # prompts of one length need no padding
            question.prompt_tokens = int((ids != pad).sum()) if filled else len(ids)
