"""The calls of the page: upload, plan, tiles, relevance, layers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, UploadFile
from fastapi.responses import Response
from starlette.requests import Request

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import CHANNELS
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.serve.gaze import gaze_map, trail_of
from texturevlm.serve.limits import LARGEST_BUDGET, LONGEST_QUESTION, SIDES, ApiError
from texturevlm.serve.pictures import Picture, drawable
from texturevlm.serve.plans import Choice, PlanRequest, chosen, plan, scorer_names, weighed
from texturevlm.serve.uploads import upload_of
from texturevlm.serve.views import (
    LARGEST_THUMBNAIL,
    THUMBNAIL,
    TILE,
    gaze_view,
    layer_view,
    relevance_picture,
    thumbnail,
    tile,
)
from texturevlm.vlm import FAMILIES

router = APIRouter()
Page = Annotated[int, Query(ge=0)]
ROOM = 512  # tokens of a context, for the question and the answer


def state_of(request: Request) -> Any:
    """What all routes share: `app.State`."""
    return request.app.state.serve


def opened(request: Request, identity: str, page: int) -> Picture:
    """A page of an upload; raises if there is none. It may take long: call it in a lane."""
    state = state_of(request)
    upload = state.uploads.get(identity)
    if page >= upload.pages:
        raise ApiError(404, f"page must be from 0 to {upload.pages - 1}, got {page}")
    found: Picture = state.pictures.get(upload, page)
    return found


@router.get("/api/about")
async def about(request: Request) -> dict[str, Any]:
    """What this server can do."""
    state = state_of(request)
    settings, limits = state.settings, state.limits
    layers = [
        {"name": one.name, "holds": one.holds, "drawn": drawable(one.name), "needs": one.needs}
        for one in CHANNELS.values()
    ]
    return {
        "model": settings.name,
        "mode": "local" if settings.model is not None else "proxy" if settings.upstream is not None else "none",
        "budget": BUDGET if settings.model is None else settings.model.budget,
        "patch": PATCH if settings.model is None else settings.model.adapter.side,
        "allocators": list(ALLOCATORS.clients),
        "scorers": list(scorer_names()),
        "channels": layers,
        "limits": {"bytes": limits.upload_bytes, "pixels": limits.pixels, "budget": most_tokens(settings.model)},
        "tile": TILE,
        "looks": looks_of(settings.model),
        "ocr": find_spec("rapidocr") is not None,
        "cache": {"bytes": state.pictures.held, "most": state.pictures.nbytes, "opened": state.pictures.opened},
    }


def most_tokens(model: Any) -> int:
    """The largest budget: its context must also hold the question and the answer."""
    longest = None if model is None else getattr(model.model.config.get_text_config(), "max_position_embeddings", None)
    return LARGEST_BUDGET if longest is None else max(1, min(LARGEST_BUDGET, longest - ROOM))


def looks_of(model: Any) -> list[int | str]:
    """How often a model may look, as `ask` takes it."""
    if model is None:
        return []
    family = FAMILIES[model.model.config.model_type][0]
    return [1, *([2] if family.two_looks else []), *(["auto"] if family.grows else [])]


@router.post("/api/images")
async def add_image(request: Request, file: Annotated[UploadFile, File()]) -> dict[str, Any]:
    """Upload an image, a PDF or a video; returns its id, its pages and their sizes."""
    state = state_of(request)
    content, name = await file.read(), file.filename or ""

    def work(stop: Any) -> dict[str, Any]:
        upload = upload_of(content, name, state.limits, stop)
        picture = state.pictures.get(upload)  # what cannot be decoded is not kept
        return {"id": state.uploads.add(upload), **upload.about(), **_shape(picture)}

    found: dict[str, Any] = await state.looking.run(request, work)
    return found


@router.get("/api/images/{identity}")
async def get_image(request: Request, identity: str, page: Page = 0) -> dict[str, Any]:
    """What is known of an upload, and the size of one of its pages."""
    state = state_of(request)
    upload = state.uploads.get(identity)
    picture = await state.looking.run(request, lambda stop: opened(request, identity, page))
    return {"id": identity, "page": page, **upload.about(), **_shape(picture)}


def _shape(picture: Picture) -> dict[str, Any]:
    return {"size": list(picture.texture.size), "levels": len(picture.texture.levels)}


@router.post("/api/plan")
async def make_plan(request: Request, body: PlanRequest) -> dict[str, Any]:
    """Where the tokens lie for a question, and their pixels."""
    body.check()
    state = state_of(request)
    state.uploads.get(body.id)
    found: dict[str, Any] = await state.looking.run(
        request, lambda stop: plan(opened(request, body.id, body.page), body, stop)
    )
    return found


@router.post("/api/allocation")
async def get_allocation(request: Request, body: PlanRequest) -> Response:
    """The tokens of a plan as `Allocation.from_json` reads them."""
    body.check()
    state = state_of(request)
    state.uploads.get(body.id)

    def work(stop: Any) -> str:
        return chosen(opened(request, body.id, body.page), body)[0].to_json()

    return Response(await state.looking.run(request, work), media_type="application/json")


@router.get("/api/tiles/{identity}/{level}/{column}_{row}.jpg")
async def get_tile(request: Request, identity: str, level: int, column: int, row: int, page: Page = 0) -> Response:
    """A tile of a mip level; level 0 is the finest."""
    state = state_of(request)
    found = await state.drawing.run(request, lambda stop: tile(opened(request, identity, page), level, column, row))
    return _picture(found, "image/jpeg")


@router.get("/api/thumbnails/{identity}.jpg")
async def get_thumbnail(
    request: Request,
    identity: str,
    page: Page = 0,
    side: Annotated[int, Query(ge=16, le=LARGEST_THUMBNAIL)] = THUMBNAIL,
) -> Response:
    """A page, small."""
    state = state_of(request)
    return _picture(
        await state.drawing.run(request, lambda stop: thumbnail(opened(request, identity, page), side)), "image/jpeg"
    )


@router.get("/api/relevance/{identity}.png")
async def get_relevance(
    request: Request,
    identity: str,
    page: Page = 0,
    question: Annotated[str, Query(max_length=LONGEST_QUESTION)] = "",
    relevance: str = "scout",
    patch: Annotated[int, Query(ge=SIDES[0], le=SIDES[1])] = PATCH,
    trail: Annotated[str, Query(max_length=LONGEST_QUESTION)] = "",
) -> Response:
    """What matters for a question, one transparent pixel per cell. trail: where a person has looked, x,y,seconds;…"""
    looked, state = trail_of(trail), state_of(request)
    how = Choice(question=question, relevance=relevance, patch=patch, trail=looked).check()

    def work(stop: Any) -> bytes:
        return relevance_picture(weighed(opened(request, identity, page), how))

    return _picture(await state.looking.run(request, work), "image/png")


@router.get("/api/channels/{identity}/{name}.jpg")
async def get_channel(
    request: Request,
    identity: str,
    name: str,
    page: Page = 0,
    small: bool = False,
    trail: Annotated[str, Query(max_length=LONGEST_QUESTION)] = "",
) -> Response:
    """One of the forty layers, in colours; `gaze` with a trail, as for the relevance."""
    looked = trail_of(trail)
    if not (name in CHANNELS and drawable(name)) and not (name == "gaze" and looked):
        raise ApiError(404, f"channel must be one that an image alone gives, got {name!r:.40}")
    state = state_of(request)

    def work(stop: Any) -> bytes:
        picture = opened(request, identity, page)
        if looked and name == "gaze":
            return gaze_view(gaze_map(looked, picture.texture.size), small=small)
        return layer_view(picture, name, small=small)

    return _picture(await state.looking.run(request, work), "image/jpeg")


def _picture(content: bytes, kind: str) -> Response:
    # What an id stands for never changes, and the id is a secret of this browser.
    return Response(content, media_type=kind, headers={"cache-control": "private, max-age=3600"})
