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

from texturevlm.ask import Answer
from texturevlm.ask.attention import question_attention
from texturevlm.defaults import MOST_FINE_PAGES
from texturevlm.placement import TokenConfig, place
from texturevlm.serve.answers import Event, Question, Reply, error_of
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import ApiError
from texturevlm.serve.page import looked, looks_of, opened, state_of
from texturevlm.serve.pictures import KeptImage
from texturevlm.serve.plans import PageOptions, columns_of
from texturevlm.vlm import evaluating

router = APIRouter()


class AnswerRequest(PageOptions):
    """A question about one page of an upload.

    whole: about all pages of a document, or a whole video
    fine_pages: of a whole document, as for `ask`
    looks: as for `ask`: 2: an overview, then where the model's attention went; auto: more only if it is not sure
    """

    whole: bool = False
    fine_pages: int | None = Field(default=None, ge=1, le=MOST_FINE_PAGES)
    looks: Literal[1, 2, "auto"] | None = None
    max_tokens: int = Field(default=128, ge=1)

    @property
    def given(self) -> dict[str, Any]:
        """The second of two looks goes where the model's attention went, whatever scorer is named."""
        found = super().given
        if self.looks == 2:
            found.pop("relevance", None)
        return found


@router.post("/api/answer")
async def answer(request: Request, body: AnswerRequest) -> StreamingResponse:
    """Events: `piece` with a text, `look` when all begins anew, then `answer` with the details, or `error`."""
    state = state_of(request)
    if state.answerer is None:
        raise ApiError(409, "this server has no model; start it with --model")
    if not body.question.strip():
        raise ApiError(422, "question: a question is needed")
    model, upload, how = state.settings.model, state.uploads.get(body.id), state.settings.config_for(body)

    def prepare(stop: Stop) -> Any:
        if body.whole and upload.pages > 1:
            return state.pictures.whole(upload, model, body.question, how, stop)
        return opened(request, body.id, body.page).session(model), 0.0

    session, spent = await state.looking.run(request, prepare)
    options = {**body.given, "max_new_tokens": min(body.max_tokens, state.limits.answer_tokens)}
    question = Question(session, body.question, options, spent=spent)
    state.answerer.submit(question)
    return StreamingResponse(_sent(question, state.limits.seconds), media_type="text/event-stream")


@router.post("/api/attention")
async def attention(request: Request, body: AnswerRequest) -> dict[str, Any]:
    """How much the question attends to each token of the plan with the same settings; all together sum to 1."""
    model = state_of(request).settings.model
    if 2 not in looks_of(model):
        raise ApiError(409, "this server has no model whose attention can be read")

    def work(image: KeptImage, how: TokenConfig, stop: Stop) -> list[float]:
        placement = place(image.picture(how), body.question, how)
        stop.check()
        texture, allocation = placement.picture.texture.to(model.device), placement.allocation.to(model.device)
        with model.adapter.lock, evaluating(model.model):
            (weights,) = question_attention(model.adapter, body.question, [texture], [allocation])
        own: list[float] = weights[: placement.tokens].tolist()
        return own

    return {"attention": await looked(request, body, work)}


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


def details(reply: Reply) -> dict[str, Any]:
    """A finished answer, for the page and for the chat."""
    found = reply.answer
    pieces = [token.replace("Ġ", " ").replace("▁", " ") for token in found.tokens]
    return {
        "text": reply.text,
        "confidence": reply.confidence,
        "unreadable": found.unreadable,
        "chance": found.confidence,
        "looks": [_look(look) for look in (found.earlier, found) if look is not None],
        "visual_tokens": found.visual_tokens,
        "pages": found.pages,
        "seconds": {name: round(value, 4) for name, value in found.seconds.items()},
        "tokens": [[piece, round(chance, 4)] for piece, chance in zip(pieces, reply.probabilities)],
    }


def _look(answer: Answer) -> dict[str, Any]:
    """What the model had seen when it answered so; the tokens of one image, of several only their number."""
    alone = answer.placements[0].given if len(answer.placements) == 1 else None
    tokens = None if alone is None else {"patch": alone.patch, **columns_of(alone)}
    return {"text": answer.text, "chance": answer.confidence, "visual_tokens": answer.visual_tokens, "tokens": tokens}
