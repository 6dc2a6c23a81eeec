"""The server: routes of the page and its calls, and what happens to errors."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import Request

from texturevlm.ask import VLM
from texturevlm.ask.config import AskConfig
from texturevlm.defaults import BUDGET
from texturevlm.placement import TokenConfig
from texturevlm.serve import asking, chat, page
from texturevlm.serve.answers import Answerer
from texturevlm.serve.guard import Guard
from texturevlm.serve.lanes import Lane, Stopped
from texturevlm.serve.limits import ApiError, Limits
from texturevlm.serve.pictures import Pictures
from texturevlm.serve.plans import TokenOptions
from texturevlm.serve.proxy import Upstream
from texturevlm.serve.uploads import Uploads

STATIC = Path(__file__).parent / "static"
CLIENT_LEFT = 499  # nginx's status for a client that closed the connection; nobody reads it


@dataclass
class Settings:
    """What one server is given.

    model:    what answers questions; None: nothing does, unless there is an upstream
    name:     of the model, as clients see it
    upstream: an OpenAI-compatible server that answers in `proxy` mode
    budget:   where a client names none, without a model
    token:    what every call must bring; None on a loopback address
    created:  when the server began, in seconds since 1970
    """

    model: VLM | None = None
    name: str = ""
    upstream: Upstream | None = None
    token: str | None = None
    budget: int = BUDGET
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    limits: Limits = field(default_factory=Limits)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def config(self) -> AskConfig:
        """How tokens are placed where a client gives nothing."""
        return AskConfig(TokenConfig(budget=self.budget)) if self.model is None else self.model.config

    def config_for(self, asked: TokenOptions) -> AskConfig:
        """How tokens are placed for a client, checked."""
        if self.model is not None:
            return self.model.config_for(**asked.given)
        return self.config.given("serve", asked.given).check("serve")


class State:
    """What the routes share."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self.settings, self.limits = settings, limits
        self.uploads = Uploads(limits)
        self.pictures = Pictures(limits.cache_bytes, settings.device)
        common: Any = {"waiting": limits.waiting, "seconds": limits.seconds}
        self.looking = Lane("look", workers=2, **common)  # plans, maps, layers
        self.drawing = Lane("draw", workers=2, **common)  # tiles, which must not wait for OCR
        model = settings.model
        self.answerer = None if model is None else Answerer(model, waiting=limits.waiting)

    def close(self) -> None:
        self.looking.close()
        self.drawing.close()
        if self.answerer is not None:
            self.answerer.close()


def create_app(settings: Settings) -> Any:
    """The ASGI application."""
    state = State(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()

    # The usual pages of documentation load scripts from elsewhere; docs/serve.md is ours.
    app = FastAPI(
        title="texturevlm",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.serve = state
    for part in (page, asking, chat):
        app.include_router(part.router)

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _answer_errors(app)
    return Guard(app, token=settings.token, limits=settings.limits)


def _answer_errors(app: FastAPI) -> None:
    def answer(error: ApiError) -> JSONResponse:
        later = {"retry-after": "1"} if error.status == 429 else None
        return JSONResponse(error.body(), error.status, headers=later)

    @app.exception_handler(ApiError)
    async def ours(_: Request, error: ApiError) -> JSONResponse:
        return answer(error)

    @app.exception_handler(Stopped)
    async def left(_: Request, error: Stopped) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(ValueError)
    async def bad_value(_: Request, error: ValueError) -> JSONResponse:
        return answer(ApiError(400, " ".join(str(error).split())))  # of the library: it says what was wrong

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if first["type"] != "json_invalid")
        return answer(ApiError(422, f"{where or 'the request'}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def starlettes(_: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ApiError):  # of the guard, while FastAPI read the body
            return answer(error.__cause__)
        return answer(ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        traceback.print_exception(error)  # for the operator; the client learns nothing of the inside
        return answer(ApiError(500, "an error inside the server"))
