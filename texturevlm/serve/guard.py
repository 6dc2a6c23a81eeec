"""The gate before every request: who may ask, how large a request may be, and the headers of every answer.

A browser lets any web site send requests to a server on this machine. So requests with a foreign `Host` (DNS rebinding)
or a foreign `Origin` are refused, even if there is no token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse

from texturevlm.serve.limits import ApiError, Limits

Scope = dict[str, Any]
OPEN_PATHS = ("/", "/static/")  # the page itself holds no secret; its calls need the token
UPLOAD, CHAT = "/api/images", "/v1/chat/completions"  # the calls with files in them
BODY_SLACK = 1 << 20  # bytes of a request beyond the file in it
MOST_PARTS = 100_000  # of JSON: values between commas and brackets. A parser of millions stops all other requests
OSD_STYLE = "'sha256-9xTiqzfwFaL2SGb1rmr8gysEwVVjIvqWAgmZgqFqpEE='"  # that OpenSeadragon adds to the page
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {OSD_STYLE}; "
        "img-src 'self' blob: data:; connect-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host(address: str) -> tuple[str, str]:
    """The host of an address, and the host with its port; empty if it has none."""
    try:
        found = urlsplit(address)
        return found.hostname or "", found.netloc
    except ValueError:  # a bracket that is not closed
        return "", ""


class Guard:
    """ASGI middleware.

    token: what `Authorization: Bearer …` must hold; None: nothing, for a server on a loopback address
    """

    def __init__(self, app: Any, *, token: str | None, limits: Limits) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.held = 0  # bytes of the bodies of all requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer, body = _Answer(send, keep=scope["path"].startswith("/static/")), None
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check(scope, headers)
            body = _Body(receive, scope["path"], headers, self)
            await self.app(scope, body, answer)
        except ApiError as error:
            if not answer.begun:
                await JSONResponse(error.body(), error.status)(scope, receive, answer)
        finally:
            self.held -= 0 if body is None else body.arrived

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_host(f"//{host}")[0]):
            raise ApiError(403, "this server answers only to localhost")
        origin = headers.get("origin")
        if origin is not None and _host(origin)[1] != host:
            raise ApiError(403, "requests from other web sites are refused")
        path = scope["path"]
        if self.token is None or path == OPEN_PATHS[0] or path.startswith(OPEN_PATHS[1]):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise ApiError(401, "a token is needed: Authorization: Bearer TOKEN")


class _Body:
    """`receive`, for a body of limited size that must arrive in time."""

    def __init__(self, receive: Any, path: str, headers: dict[str, str], guard: Guard) -> None:
        limits = guard.limits
        # A chat holds files in base64, which makes three bytes four.
        files = {UPLOAD: limits.upload_bytes, CHAT: limits.upload_bytes * 4 // 3}.get(path, 0)
        self.receive, self.guard, self.most, self.json = receive, guard, files + BODY_SLACK, path != UPLOAD
        self.seconds, self.begun, self.arrived, self.parts, self.complete = limits.seconds, 0.0, 0, 0, False
        said = headers.get("content-length", "0")
        if not said.isdecimal() or int(said) > self.most:
            raise self._too_large()

    async def __call__(self) -> Any:
        if self.complete:
            return await self.receive()
        clock = asyncio.get_running_loop().time
        self.begun = self.begun or clock()
        try:
            message = await asyncio.wait_for(self.receive(), max(0.0, self.begun + self.seconds - clock()))
        except TimeoutError:
            raise ApiError(408, f"the request must arrive within {self.seconds:g} s") from None
        content = message.get("body", b"")
        more = len(content)
        self.arrived += more
        self.parts += sum(content.count(mark) for mark in (b",", b"[", b"{")) if self.json else 0
        self.guard.held += more
        self.complete = not message.get("more_body", False)
        if self.arrived > self.most:
            raise self._too_large()
        if self.parts > MOST_PARTS:
            raise ApiError(413, f"a request must have at most {MOST_PARTS} values")
        if self.guard.held > self.guard.limits.held_bytes:
            raise ApiError(429, "the server is busy: too much is sent to it at once; try again in a moment")
        return message

    def _too_large(self) -> ApiError:
        return ApiError(413, f"a request must have at most {self.most} bytes")


class _Answer:
    """`send`, with the headers that every answer has. keep: whether a browser may keep it, after asking again"""

    def __init__(self, send: Any, *, keep: bool) -> None:
        self.send, self.begun = send, False
        self.headers = {**HEADERS, "cache-control": "no-cache" if keep else "no-store"}

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in self.headers.items() if name.encode() not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        await self.send(message)
