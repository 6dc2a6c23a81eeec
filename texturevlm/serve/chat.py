"""`/v1/chat/completions` as OpenAI has it: what a request holds, and the form of the answers.

Images come as data URLs, or as `upload:ID` after `POST /api/images`. No address is ever fetched for a client.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from texturevlm.ask.messages import images_of, question_of
from texturevlm.defaults import ALLOCATOR
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import LARGEST_BUDGET, LONGEST_QUESTION, ApiError, Limits
from texturevlm.serve.plans import QUICK, Choice
from texturevlm.serve.uploads import Upload, Uploads, upload_of

MOST_MESSAGES = 100
UPLOADED = "upload:"
ROLES = ("system", "developer", "user", "assistant")
DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w=.-]+)*;base64,", re.ASCII)


class ChatRequest(BaseModel):
    """OpenAI's fields that are used, and ours: budget, allocator, relevance. Others are accepted and ignored."""

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
    budget: int | None = Field(default=None, ge=1, le=LARGEST_BUDGET)
    allocator: str = ALLOCATOR
    relevance: str = QUICK

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    def choice(self, budget: int) -> Choice:
        """How the tokens are chosen, checked. budget: if the request has none"""
        question = question_of(self.messages)[:LONGEST_QUESTION]
        how = Choice(
            question=question, budget=self.budget or budget, allocator=self.allocator, relevance=self.relevance
        )
        return how.check()

    def longest(self, limits: Limits) -> int:
        """Tokens of the answer, at most."""
        return min(self.max_completion_tokens or self.max_tokens or 256, limits.answer_tokens)

    def sampling(self) -> dict[str, Any]:
        """Options of `generate`; greedy unless a temperature is given."""
        if not self.temperature:
            return {}
        return {"temperature": self.temperature, **({} if self.top_p is None else {"top_p": self.top_p})}


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
