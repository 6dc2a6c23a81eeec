"""`POST /api/answer`: the answer of the model to the page's question, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.requests import Request

from texturevlm.serve.answers import Event, Question, Told, error_of
from texturevlm.serve.images import opened, state_of
from texturevlm.serve.limits import ApiError
from texturevlm.serve.plans import Choice

router = APIRouter()


class AnswerRequest(Choice):
    """A question about one page of an upload. whole: about all pages of a document, or a whole video"""

    id: str = Field(max_length=64)
    page: int = Field(0, ge=0)
    whole: bool = False
    max_tokens: int = Field(128, ge=1)


@router.post("/api/answer")
async def answer(request: Request, body: AnswerRequest) -> StreamingResponse:
    """Events: `piece` with a text, then `answer` with the details, or `error`."""
    state = state_of(request)
    if state.answerer is None:
        raise ApiError(409, "this server has no model; start it with --model")
    body.check()
    if not body.question.strip():
        raise ApiError(422, "question: a question is needed")
    model, upload = state.settings.model, state.uploads.get(body.id)

    def prepare(stop: Any) -> Any:
        picture = opened(request, body.id, body.page)
        return upload.session(model) if body.whole and upload.pages > 1 else picture.session(model)

    session = await state.looking.run(request, prepare)
    options = {
        "budget": body.budget,
        "allocator": body.allocator,
        "relevance": body.scorer,
        "max_new_tokens": min(body.max_tokens, state.limits.answer_tokens),
    }
    question = Question(session, body.question, options)
    state.answerer.submit(question)
    return StreamingResponse(_sent(question, state.limits.seconds), media_type="text/event-stream")


async def _sent(question: Question, seconds: float) -> AsyncIterator[str]:
    async for kind, value in events_of(question, seconds):
        if kind == "error":
            value = error_of(value).body()["error"]
        elif kind == "answer":
            value = details(value)
        yield f"event: {kind}\ndata: {json.dumps(value)}\n\n"


async def events_of(question: Question, seconds: float) -> AsyncIterator[Event]:
    """The events of a question, up to its answer or its error. It is broken off if nobody reads on."""
    deadline = question.loop.time() + seconds
    try:
        while True:
            try:
                left = max(0.0, deadline - question.loop.time())
                kind, value = await asyncio.wait_for(question.events.get(), left)
            except TimeoutError:
                kind, value = "error", ApiError(504, f"the answer took longer than {seconds:g} s")
            yield kind, value
            if kind != "piece":
                return
    finally:
        question.stop.set()


def details(told: Told) -> dict[str, Any]:
    """A finished answer, for the page and for the chat."""
    pieces = [token.replace("Ġ", " ").replace("▁", " ") for token in told.answer.tokens]
    return {
        "text": told.text,
        "confidence": told.confidence,
        "unreadable": told.answer.unreadable,
        "looks": told.answer.looks,
        "visual_tokens": told.visual_tokens,
        "pages": told.answer.pages,
        "seconds": {name: round(value, 4) for name, value in told.answer.seconds.items()},
        "tokens": [[piece, round(chance, 4)] for piece, chance in zip(pieces, told.probabilities)],
    }
