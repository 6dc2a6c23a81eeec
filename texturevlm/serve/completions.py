"""The routes of the chat: answered by our model (local) or by another server (proxy)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import Request

from texturevlm.ask.messages import question_of
from texturevlm.serve.answers import Question, Told, error_of
from texturevlm.serve.asking import details, events_of
from texturevlm.serve.chat import ChatRequest, Completion, uploads_in, usage_of, without_images
from texturevlm.serve.images import state_of
from texturevlm.serve.lanes import until_left
from texturevlm.serve.limits import ApiError
from texturevlm.serve.plans import Choice
from texturevlm.serve.proxy import rewritten

router = APIRouter()
LOCAL, PROXY = "local", "proxy"


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that answers."""
    settings = state_of(request).settings
    named = {"id": settings.name, "object": "model", "created": settings.created, "owned_by": "texturevlm"}
    own = [named] if settings.name else []
    return {"object": "list", "data": own}


@router.post("/v1/chat/completions", response_model=None)
async def complete(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    """OpenAI's chat completions, with the fields budget, allocator and relevance beside theirs."""
    state = state_of(request)
    if state.answerer is not None:
        return await _local(request, body)
    if state.settings.upstream is not None:
        return await _proxy(request, body)
    raise ApiError(409, "this server has no model; start it with --model or --upstream")


async def _local(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    state = state_of(request)
    model, limits = state.settings.model, state.limits
    how = body.choice(model.budget)

    def prepare(stop: Any) -> Any:
        from texturevlm.ask import ImageSession

        given = uploads_in(body.messages, state.uploads, limits, stop)
        if not given:
            raise ApiError(400, "messages: an image is needed")
        if len(given) == 1 and given[0].pages > 1:
            choosing = model.config_for(budget=how.budget, allocator=how.allocator, relevance=how.scorer)
            return state.pictures.whole(given[0], model, question_of(body.messages), choosing, stop)
        sessions = [state.pictures.get(one).session(model) for one in given]
        alone = len(sessions) == 1
        return sessions[0] if alone else ImageSession(model, [one.pictures[0] for one in sessions]), 0.0

    session, spent = await state.looking.run(request, prepare)
    options = {"budget": how.budget, "allocator": how.allocator, "relevance": how.scorer}
    options |= {"max_new_tokens": body.longest(limits), **body.sampling()}
    question = Question(session, without_images(body.messages), options, body.stops, spent)
    state.answerer.submit(question)
    form = Completion(state.settings.name, LOCAL)
    if body.stream:
        usage = bool((body.stream_options or {}).get("include_usage"))
        return _streaming(_chunks(question, form, how, limits.seconds, usage))
    told = await until_left(request, question.loop.create_task(_answer(question)), question.stop, limits.seconds)
    finish, usage_said, more = _ending(told, how)
    return _labelled(JSONResponse(form.whole(told.text, finish, usage_said, more)), LOCAL)


async def _answer(question: Question) -> Told:
    async for kind, value in events_of(question, float("inf")):
        if kind == "error":
            raise error_of(value)
        if kind == "answer":
            told: Told = value
            return told
    raise ApiError(500, "an error inside the server")


async def _chunks(question: Question, form: Completion, how: Choice, seconds: float, usage: bool) -> AsyncIterator[str]:
    yield _event(form.chunk({"role": "assistant", "content": ""}))
    async for kind, value in events_of(question, seconds):
        if kind == "piece":
            yield _event(form.chunk({"content": value}))
        elif kind == "answer":
            finish, said, more = _ending(value, how)
            yield _event(form.chunk({}, finish))
            if usage:
                yield _event(form.last(said, more))
        elif kind == "error":
            yield _event(error_of(value).body())
    yield "data: [DONE]\n\n"


def _ending(told: Told, how: Choice) -> tuple[str, dict[str, Any], dict[str, Any]]:
    usage = usage_of(told.prompt_tokens, told.visual_tokens, len(told.answer.tokens))
    known = details(told)
    more = {name: known[name] for name in ("visual_tokens", "confidence", "seconds")}
    more |= {"budget": how.budget, "allocator": how.allocator, "relevance": how.scorer}
    return "length" if told.length else "stop", usage, more


async def _proxy(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    state = state_of(request)
    upstream, how = state.settings.upstream, body.choice(state.settings.budget)

    def rewrite(stop: Any) -> Any:
        given = uploads_in(body.messages, state.uploads, state.limits, stop)
        return rewritten(body.messages, [state.pictures.get(one) for one in given], how)

    messages, parts = await state.looking.run(request, rewrite)
    asked = {**(await request.json()), "messages": messages, "model": upstream.model or body.model}
    for ours in ("budget", "allocator", "relevance"):
        asked.pop(ours, None)
    label = {"budget": how.budget, "relevance": how.scorer, "parts": parts}
    if body.stream:
        return _streaming(await upstream.stream(asked, label), PROXY)
    answer = await upstream.ask(request, asked, state.limits.seconds)
    return _labelled(JSONResponse({**answer, "texturevlm": {"mode": PROXY, **label}}), PROXY)


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _streaming(chunks: AsyncIterator[str], mode: str = LOCAL) -> StreamingResponse:
    found = StreamingResponse(chunks, media_type="text/event-stream")
    found.headers["x-texturevlm-mode"] = mode
    return found


def _labelled(answer: JSONResponse, mode: str) -> JSONResponse:
    answer.headers["x-texturevlm-mode"] = mode
    return answer
