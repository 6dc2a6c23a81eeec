"""`/v1/chat/completions` as OpenAI has it, answered by our model (local) or by another server (proxy).

Images come as data URLs, or as `upload:ID` after `POST /api/images`. No address is ever fetched for a client.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field
from starlette.requests import Request

from texturevlm.ask import AskConfig, ImageSession
from texturevlm.ask.messages import images_of, question_of
from texturevlm.serve.answers import Question, Reply, error_of
from texturevlm.serve.asking import details, events_of
from texturevlm.serve.lanes import Stop, until_left
from texturevlm.serve.limits import ApiError, Limits
from texturevlm.serve.page import state_of
from texturevlm.serve.plans import TokenOptions, name_of
from texturevlm.serve.proxy import rewritten
from texturevlm.serve.uploads import Upload, Uploads, upload_of

router = APIRouter()
MODE, LOCAL, PROXY = "x-texturevlm-mode", "local", "proxy"  # who answers
MOST_MESSAGES = 100
UPLOADED = "upload:"
ROLES = ("system", "developer", "user", "assistant")
DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w=.-]+)*;base64,", re.ASCII)


class ChatRequest(TokenOptions):
    """OpenAI's fields that are used, beside ours. Others are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_MESSAGES)
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: str | list[str] | None = None
    n: int = Field(default=1, ge=1, le=1)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    def generating(self, limits: Limits) -> dict[str, Any]:
        """Options of `generate`; greedy unless a temperature is given."""
        longest = min(self.max_completion_tokens or self.max_tokens or 256, limits.answer_tokens)
        sampling = {"temperature": self.temperature or None, "top_p": self.top_p if self.temperature else None}
        return {"max_new_tokens": longest, **{name: value for name, value in sampling.items() if value is not None}}


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that answers."""
    settings = state_of(request).settings
    named = {"id": settings.name, "object": "model", "created": settings.created, "owned_by": "texturevlm"}
    own = [named] if settings.name else []
    return {"object": "list", "data": own}


@router.post("/v1/chat/completions", response_model=None)
async def complete(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    """OpenAI's chat completions, with the fields of TokenOptions beside theirs."""
    state = state_of(request)
    if state.answerer is not None:
        return await _local(request, body)
    if state.settings.upstream is not None:
        return await _proxy(request, body)
    raise ApiError(409, "this server has no model; start it with --model or --upstream")


async def _local(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    state = state_of(request)
    model, limits, options = state.settings.model, state.limits, body.given
    how = state.settings.config_for(body)

    def prepare(stop: Stop) -> Any:
        uploads = uploads_in(body.messages, state.uploads, limits, stop)
        if not uploads:
            raise ApiError(400, "messages: an image is needed")
        if len(uploads) == 1 and uploads[0].pages > 1:
            return state.pictures.whole(uploads[0], model, question_of(body.messages), how, stop)
        images = [state.pictures.get(upload) for upload in uploads]
        if len(images) == 1:
            return images[0].session(model), 0.0
        return ImageSession(model, [image.picture(how.tokens) for image in images]), 0.0

    session, spent = await state.looking.run(request, prepare)
    options |= body.generating(limits)
    question = Question(session, without_images(body.messages), options, body.stops, spent)
    state.answerer.submit(question)
    form = Completion(state.settings.name, how)
    if body.stream:
        usage = bool((body.stream_options or {}).get("include_usage"))
        return _streaming(_chunks(question, form, limits.seconds, usage), LOCAL)
    reply = await until_left(request, question.loop.create_task(_answer(question)), question.stop, limits.seconds)
    message = {"role": "assistant", "content": reply.text}
    return JSONResponse(form.part(reply, reply.finish, message=message), headers={MODE: LOCAL})


async def _answer(question: Question) -> Reply:
    async for kind, value in events_of(question, float("inf")):
        if kind == "error":
            raise error_of(value)
        if kind == "answer":
            reply: Reply = value
            return reply
    raise ApiError(500, "an error inside the server")


async def _chunks(question: Question, form: Completion, seconds: float, usage: bool) -> AsyncIterator[str]:
    yield _event(form.part(delta={"role": "assistant", "content": ""}))
    async for kind, value in events_of(question, seconds):
        if kind == "piece":
            yield _event(form.part(delta={"content": value}))
        elif kind == "answer":
            yield _event(form.part(finish=value.finish, delta={}))
            if usage:
                yield _event(form.part(value))
        elif kind == "error":
            yield _event(error_of(value).body())
    yield "data: [DONE]\n\n"


class Completion:
    """The form of the answers of our model to one request."""

    def __init__(self, model: str, how: AskConfig) -> None:
        self.how = how
        self.head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def part(self, reply: Reply | None = None, finish: str | None = None, **content: Any) -> dict[str, Any]:
        """The whole answer (content: message), a chunk of it (delta) or the last chunk; with a reply its usage."""
        kind = "chat.completion" if "message" in content else "chat.completion.chunk"
        choices = [{"index": 0, **content, "logprobs": None, "finish_reason": finish}] if content else []
        found = {**self.head, "object": kind, "choices": choices}
        if reply is None:
            return {**found, "texturevlm": {"mode": LOCAL}}
        known, count = details(reply), len(reply.answer.tokens)
        more = {name: known[name] for name in ("visual_tokens", "confidence", "seconds")}
        usage = {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": reply.prompt_tokens + count,
            "prompt_tokens_details": {"visual_tokens": known["visual_tokens"]},  # among those of the prompt
        }
        return {**found, "usage": usage, "texturevlm": {"mode": LOCAL, **more, **said_of(self.how)}}


def said_of(how: AskConfig) -> dict[str, Any]:
    """How the tokens were placed, for a client."""
    own = how.tokens
    return {"budget": own.budget, "allocator": name_of(own.allocator), "relevance": name_of(own.relevance)}


async def _proxy(request: Request, body: ChatRequest) -> JSONResponse | StreamingResponse:
    state = state_of(request)
    upstream, how = state.settings.upstream, state.settings.config_for(body)

    def rewrite(stop: Stop) -> Any:
        uploads = uploads_in(body.messages, state.uploads, state.limits, stop)
        images = [state.pictures.get(upload) for upload in uploads]
        return rewritten(body.messages, images, question_of(body.messages), how.tokens)

    messages, parts = await state.looking.run(request, rewrite)
    ours = TokenOptions.model_fields
    theirs = {name: value for name, value in (await request.json()).items() if name not in ours}
    asked = {**theirs, "messages": messages, "model": upstream.model or body.model}
    label = {**said_of(how), "parts": parts}
    if body.stream:
        return _streaming(await upstream.stream(asked, label), PROXY)
    answer = await upstream.ask(request, asked, state.limits.seconds)
    return JSONResponse({**answer, "texturevlm": {"mode": PROXY, **label}}, headers={MODE: PROXY})


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _streaming(chunks: AsyncIterator[str], mode: str) -> StreamingResponse:
    return StreamingResponse(chunks, media_type="text/event-stream", headers={MODE: mode})


def uploads_in(messages: list[dict[str, Any]], uploads: Uploads, limits: Limits, stop: Stop) -> list[Upload]:
    """The images of a conversation, in order."""
    _check(messages)
    held = images_of(messages)
    if len(held) > limits.images:
        raise ApiError(413, f"a chat must have at most {limits.images} images, got {len(held)}")
    return [_image(url, uploads, limits, stop) for url in held]


def _check(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        content = message.get("content")
        blocks = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
        if message.get("role") not in ROLES:
            raise ApiError(422, f"messages: role must be one of {', '.join(ROLES)}, got {message.get('role')!r:.40}")
        if not (isinstance(content, str) or blocks):
            raise ApiError(422, "messages: each must have content, a text or a list of blocks with a type")
        for part in content if isinstance(content, list) else ():
            text = isinstance(part.get("text"), str)
            if part["type"] not in ("text", "image_url") or (part["type"] == "text") != text:
                raise ApiError(422, "messages: a block must be a text or an image_url")
    if not any(message["role"] == "user" for message in messages):
        raise ApiError(422, "messages: one must be of the user")


def _image(url: Any, uploads: Uploads, limits: Limits, stop: Stop) -> Upload:
    if not isinstance(url, str):
        raise ApiError(422, "image_url: a url is needed")
    if url.startswith(UPLOADED):
        return uploads.get(url.removeprefix(UPLOADED))
    head = DATA_URL.match(url[:200])
    if head is None:
        wanted = "a data URL (data:image/png;base64,…) or upload:ID"
        raise ApiError(400, f"image_url: url must be {wanted}; addresses are not fetched")
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error:
        raise ApiError(400, "image_url: the data URL is not base64") from None
    return upload_of(content, "", limits, stop)


def without_images(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as a chat template takes it: where an image was, there is only its place."""

    def block(given: dict[str, Any]) -> dict[str, Any]:
        return {"type": "image"} if given["type"] == "image_url" else {"type": "text", "text": given["text"]}

    found = []
    for message in messages:
        role, content = message["role"], message["content"]
        content = content if isinstance(content, str) else [block(given) for given in content]
        found.append({"role": "system" if role == "developer" else role, "content": content})  # OpenAI's newer name
    return found
