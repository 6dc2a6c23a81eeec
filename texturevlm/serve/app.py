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
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import Request

from texturevlm.ask import VLM, AskConfig
from texturevlm.defaults import BUDGET
from texturevlm.placement import TokenConfig
from texturevlm.serve import asking, chat, page
from texturevlm.serve.answers import Answerer, error_of
from texturevlm.serve.guard import Guard
from texturevlm.serve.lanes import Lane, Stopped
from texturevlm.serve.limits import ApiError, Limits
from texturevlm.serve.pictures import Pictures
from texturevlm.serve.plans import TokenOptions
from texturevlm.serve.proxy import Upstream
from texturevlm.serve.uploads import Uploads

STATIC = Path(__file__).parent / "static"


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
    without: Any = {"docs_url": None, "redoc_url": None}
    app = FastAPI(title="texturevlm", openapi_url="/api/openapi.json", lifespan=lifespan, **without)
    app.state.serve = state
    for part in (page, asking, chat):
        app.include_router(part.router)

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    async def answer(_: Request, error: Exception) -> JSONResponse:
        found = error_of(error)
        if found.status == 500:
            traceback.print_exception(error)  # for the operator; the client learns nothing of the inside
        later = {"retry-after": "1"} if found.status == 429 else None
        return JSONResponse(found.body(), found.status, headers=later)

    for kind in (ApiError, Stopped, ValueError, ImportError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    return Guard(app, token=settings.token, limits=settings.limits)
