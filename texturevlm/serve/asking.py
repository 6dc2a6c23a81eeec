"""`POST /api/answer`: the answer of the model to the page's question, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.requests import Request

from texturevlm.ask.answer import Answer
from texturevlm.ask.attention import question_attention
from texturevlm.ask.documents import DocumentSession
from texturevlm.ask.evaluating import evaluating
from texturevlm.defaults import MOST_FINE_PAGES
from texturevlm.serve.answers import Event, Question, Told, error_of
from texturevlm.serve.images import opened, state_of
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import ApiError
from texturevlm.serve.plans import Choice, chosen, columns_of
from texturevlm.vlm import FAMILIES

router = APIRouter()


class AnswerRequest(Choice):
    """A question about one page of an upload.

    whole: about all pages of a document, or a whole video
    fine_pages: of a whole document, as for `ask`
    looks: as for `ask`: 2: an overview, then where the model's attention went; auto: more only if it is not sure
    """

    id: str = Field(max_length=64)
    page: int = Field(default=0, ge=0)
    whole: bool = False
    fine_pages: int | None = Field(default=None, ge=1, le=MOST_FINE_PAGES)
    looks: Literal[1, 2, "auto"] = 1
    max_tokens: int = Field(default=128, ge=1)


@router.post("/api/answer")
async def answer(request: Request, body: AnswerRequest) -> StreamingResponse:
    """Events: `piece` with a text, `look` when all begins anew, then `answer` with the details, or `error`."""
    state = state_of(request)
    if state.answerer is None:
        raise ApiError(409, "this server has no model; start it with --model")
    body.check()
    if not body.question.strip():
        raise ApiError(422, "question: a question is needed")
    model, upload = state.settings.model, state.uploads.get(body.id)

    def prepare(stop: Any) -> Any:
        if body.whole and upload.pages > 1:
            how = model.config_for(budget=body.budget, allocator=body.allocator, relevance=body.scorer)
            return state.pictures.whole(upload, model, body.question, how, stop)
        return opened(request, body.id, body.page).session(model), 0.0

    session, spent = await state.looking.run(request, prepare)
    # The second of two looks goes where the model's attention went, whatever scorer is named.
    options = {
        "budget": body.budget,
        "allocator": body.allocator,
        "relevance": "attention" if body.looks == 2 else body.scorer,
        "looks": body.looks,
        "max_new_tokens": min(body.max_tokens, state.limits.answer_tokens),
    }
    if isinstance(session, DocumentSession):
        options["fine_pages"] = body.fine_pages
    question = Question(session, body.question, options)
    question.spent = spent
    state.answerer.submit(question)
    return StreamingResponse(_sent(question, state.limits.seconds), media_type="text/event-stream")


@router.post("/api/attention")
async def attention(request: Request, body: AnswerRequest) -> dict[str, Any]:
    """How much the question attends to each token of the plan with the same settings; all together sum to 1."""
    state = state_of(request)
    model = state.settings.model
    if model is None or not FAMILIES[model.model.config.model_type][0].two_looks:
        raise ApiError(409, "this server has no model whose attention can be read")
    body.check()
    state.uploads.get(body.id)

    def work(stop: Stop) -> list[float]:
        picture = opened(request, body.id, body.page)
        allocation, _ = chosen(picture, body.model_copy(update={"patch": model.adapter.side}))
        stop.check()
        used, texture = int(allocation.valid.sum()), picture.texture.to(model.device)
        with model.adapter.lock, evaluating(model.model):
            (weights,) = question_attention(model.adapter, body.question, [texture], [allocation.to(model.device)])
        own: list[float] = weights[:used].tolist()
        return own

    return {"attention": await state.looking.run(request, work)}


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
            if kind in ("answer", "error"):
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
        "chance": told.answer.confidence,
        "looks": [_look(one) for one in (told.answer.earlier, told.answer) if one is not None],
        "visual_tokens": told.visual_tokens,
        "pages": told.answer.pages,
        "seconds": {name: round(value, 4) for name, value in told.answer.seconds.items()},
        "tokens": [[piece, round(chance, 4)] for piece, chance in zip(pieces, told.probabilities)],
    }


def _look(answer: Answer) -> dict[str, Any]:
    """What the model had seen when it answered so; the tokens of one image, of several only their number."""
    alone = answer.placements[0].given if len(answer.placements) == 1 else None
    tokens = None if alone is None else {"patch": alone.patch, **columns_of(alone)}
    return {"text": answer.text, "chance": answer.confidence, "visual_tokens": answer.visual_tokens, "tokens": tokens}
