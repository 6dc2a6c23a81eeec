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

from texturevlm.ask import ImageSession
from texturevlm.ask.config import AskConfig
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
LOCAL, PROXY = "local", "proxy"
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
        alone = len(images) == 1
        return images[0].session(model) if alone else _together(model, images, how), 0.0

    session, spent = await state.looking.run(request, prepare)
    options |= body.generating(limits)
    question = Question(session, without_images(body.messages), options, body.stops, spent)
    state.answerer.submit(question)
    form = Completion(state.settings.name, LOCAL)
    if body.stream:
        usage = bool((body.stream_options or {}).get("include_usage"))
        return _streaming(_chunks(question, form, how, limits.seconds, usage))
    reply = await until_left(request, question.loop.create_task(_answer(question)), question.stop, limits.seconds)
    finish, usage_said, more = _ending(reply, how)
    return _labelled(JSONResponse(form.whole(reply.text, finish, usage_said, more)), LOCAL)


def _together(model: Any, images: list[Any], how: AskConfig) -> ImageSession:
    return ImageSession(model, [image.picture(how.tokens) for image in images])


async def _answer(question: Question) -> Reply:
    async for kind, value in events_of(question, float("inf")):
        if kind == "error":
            raise error_of(value)
        if kind == "answer":
            reply: Reply = value
            return reply
    raise ApiError(500, "an error inside the server")


async def _chunks(
    question: Question, form: Completion, how: AskConfig, seconds: float, usage: bool
) -> AsyncIterator[str]:
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


def _ending(reply: Reply, how: AskConfig) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Why an answer ended, its usage, and what is said of how it was made."""
    known = details(reply)
    usage = usage_of(reply.prompt_tokens, reply.answer.visual_tokens, len(reply.answer.tokens))
    more = {name: known[name] for name in ("visual_tokens", "confidence", "seconds")} | said_of(how)
    return "length" if reply.length else "stop", usage, more


def said_of(how: AskConfig) -> dict[str, Any]:
    """How the tokens were placed, for a client."""
    tokens = how.tokens
    return {
        "budget": tokens.budget,
        "allocator": name_of(tokens.allocator),
        "relevance": name_of(tokens.relevance),
    }


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


def uploads_in(messages: list[dict[str, Any]], uploads: Uploads, limits: Limits, stop: Stop) -> list[Upload]:
    """The images of a conversation, in order."""
    _check(messages)
    held = images_of(messages)
    if len(held) > limits.images:
        raise ApiError(413, f"a chat must have at most {limits.images} images, got {len(held)}")
    return [_image(one, uploads, limits, stop) for one in held]


def _check(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        content = message.get("content")
        blocks = isinstance(content, list) and all(isinstance(one, dict) and "type" in one for one in content)
        if message.get("role") not in ROLES:
            raise ApiError(422, f"messages: role must be one of {', '.join(ROLES)}, got {message.get('role')!r:.40}")
        if not (isinstance(content, str) or blocks):
            raise ApiError(422, "messages: each must have content, a text or a list of blocks with a type")
        for one in content if isinstance(content, list) else ():
            if one["type"] not in ("text", "image_url") or (one["type"] == "text") != isinstance(one.get("text"), str):
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
    known = {"developer": "system"}  # OpenAI's newer name for it
    return [{"role": known.get(one["role"], one["role"]), "content": _places(one["content"])} for one in messages]


def _places(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "image"} if one["type"] == "image_url" else {"type": "text", "text": one["text"]} for one in content
    ]


class Completion:
    """The form of the answers to one request. mode: local or proxy, said in every one of them"""

    def __init__(self, model: str, mode: str) -> None:
        self.model, self.mode = model, mode
        self.id, self.created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())

    def whole(self, text: str, finish: str, usage: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage, **self.label(more)}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **self.label({})}

    def last(self, usage: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        """The chunk with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage, **self.label(more)}

    def label(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"texturevlm": {"mode": self.mode, **more}}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage_of(prompt: int, visual: int, answer: int) -> dict[str, Any]:
    """Tokens; the visual ones are among those of the prompt."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"visual_tokens": visual},
    }
