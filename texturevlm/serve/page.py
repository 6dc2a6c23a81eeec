"""The calls of the page, but for its answers: upload, plan, tiles, relevance, layers, a box that is read, shares."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any

import torch
from fastapi import APIRouter, File, Query, UploadFile
from fastapi.responses import Response
from pydantic import FiniteFloat
from starlette.requests import Request
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import CHANNELS
from texturevlm.pages.scouting import evidence_on, page_worth
from texturevlm.placement import TokenConfig
from texturevlm.rebuilding import pixel_box, rebuild
from texturevlm.relevance import client_scorers, read_page
from texturevlm.scout import encode, load_scout
from texturevlm.serve.clips import clip_of
from texturevlm.serve.drawing import LARGEST_THUMBNAIL, THUMBNAIL, TILE, coloured, heat, thumbnail, tile
from texturevlm.serve.gaze import gaze_map
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import LARGEST_BUDGET, ApiError
from texturevlm.serve.pictures import KeptImage, drawable, read_pages
from texturevlm.serve.plans import PageOptions, PlanRequest, box_in, name_of, placement_of, plan
from texturevlm.serve.uploads import Document, Video, upload_of
from texturevlm.text import similarity
from texturevlm.vlm import FAMILIES

router = APIRouter()
Page = Annotated[int, Query(ge=0)]
ROOM = 512  # tokens of a context, for the question and the answer
SMALLEST_BOX = 4  # pixels along a side


def state_of(request: Request) -> Any:
    """What all routes share: `app.State`."""
    return request.app.state.serve


def opened(request: Request, identity: str, page: int) -> KeptImage:
    """A page of an upload; raises if there is none. It may take long: call it in a lane."""
    state = state_of(request)
    upload = state.uploads.get(identity)
    if page >= upload.pages:
        raise ApiError(404, f"page must be from 0 to {upload.pages - 1}, got {page}")
    found: KeptImage = state.pictures.get(upload, page)
    return found


async def looked(request: Request, body: PageOptions, work: Callable[[KeptImage, TokenConfig, Stop], Any]) -> Any:
    """What `work` makes of a page of an upload and of how its tokens are placed, in the lane of such work."""
    state = state_of(request)
    how = state.settings.config_for(body).tokens
    state.uploads.get(body.id)
    return await state.looking.run(request, lambda stop: work(opened(request, body.id, body.page), how, stop))


@router.get("/api/about")
async def about(request: Request) -> dict[str, Any]:
    """What this server can do, and its own options, which hold where a client gives none."""
    state = state_of(request)
    settings, limits, how = state.settings, state.limits, state.settings.config.tokens
    ocr = find_spec("rapidocr") is not None
    layers = [
        {"name": layer.name, "holds": layer.holds, "drawn": drawable(layer.name), "needs": layer.needs}
        for layer in CHANNELS.values()
    ]
    return {
        "model": settings.name,
        "mode": "local" if settings.model is not None else "proxy" if settings.upstream is not None else "none",
        "budget": how.budget,
        "patch": how.patch,
        "allocator": name_of(how.allocator),
        "relevance": name_of(how.relevance),
        "allocators": list(ALLOCATORS.clients),
        "scorers": [name for name in client_scorers() if name != "words" or ocr],
        "channels": layers,
        "limits": {"bytes": limits.upload_bytes, "pixels": limits.pixels, "budget": most_tokens(settings.model)},
        "tile": TILE,
        "looks": looks_of(settings.model),
        "ocr": ocr,
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
    family = FAMILIES[model.model.config.model_type]
    return [1, *([2] if family.two_looks else []), *(["auto"] if family.grows else [])]


@router.post("/api/images")
async def add_image(request: Request, file: Annotated[UploadFile, File()]) -> Any:
    """Upload an image, a PDF or a video; returns its id, its pages and their sizes."""
    state = state_of(request)
    content, name = await file.read(), file.filename or ""

    def work(stop: Stop) -> dict[str, Any]:
        upload = upload_of(content, name, state.limits, stop)
        image = state.pictures.get(upload)  # what cannot be decoded is not kept
        return {"id": state.uploads.add(upload), **upload.about(), **_shape(image)}

    return await state.looking.run(request, work)


@router.get("/api/images/{identity}")
async def get_image(request: Request, identity: str, page: Page = 0) -> dict[str, Any]:
    """What is known of an upload, and the size of one of its pages."""
    state = state_of(request)
    upload = state.uploads.get(identity)
    image = await state.looking.run(request, lambda stop: opened(request, identity, page))
    return {"id": identity, "page": page, **upload.about(), **_shape(image)}


def _shape(image: KeptImage) -> dict[str, Any]:
    return {"size": list(image.texture.size), "levels": len(image.texture.levels)}


@router.post("/api/plan")
async def make_plan(request: Request, body: PlanRequest) -> Any:
    """Where the tokens lie for a question, and their pixels."""
    return await looked(request, body, lambda image, how, stop: plan(image, body, how, stop))


@router.post("/api/allocation")
async def get_allocation(request: Request, body: PlanRequest) -> Response:
    """The tokens of a plan as `Allocation.from_json` reads them, in the image as it was given."""
    text = await looked(request, body, lambda image, how, stop: placement_of(image, body, how).given.to_json())
    return Response(text, media_type="application/json")


@router.post("/api/relevance")
async def get_relevance(request: Request, body: PlanRequest) -> Response:
    """What matters for a plan, one transparent pixel per cell, as PNG."""
    return _file(await looked(request, body, lambda image, how, stop: heat(placement_of(image, body, how))), "png")


@router.post("/api/gaze")
async def get_gaze(request: Request, body: PlanRequest) -> Response:
    """The channel `gaze` of a trail, in colours."""

    def work(image: KeptImage, how: TokenConfig, stop: Stop) -> bytes:
        return coloured("gaze", gaze_map(body.trail, image.texture.size)[0], small=False)

    return _file(await looked(request, body, work))


class ReadRequest(PlanRequest):
    """A box of a plan, xyxy in pixels of the image."""

    box: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]


@router.post("/api/read")
async def read(request: Request, body: ReadRequest) -> Any:
    """The text of a box as it is delivered and as it is in the original, and how alike they are, 0 to 1."""

    def work(image: KeptImage, how: TokenConfig, stop: Stop) -> dict[str, Any]:
        left, top, right, bottom = box = pixel_box(body.box, image.texture.size)
        if min(right - left, bottom - top) < SMALLEST_BOX:
            raise ApiError(422, f"box: both sides must have at least {SMALLEST_BOX} pixels")
        placement = placement_of(image, body, how)
        stop.check()
        picture = placement.picture
        inside = pixel_box(box_in(picture.frame.inverse(), box), picture.texture.size)
        seen = rebuild(picture.texture, placement.allocation, box=inside, grey=image.grey)
        original = picture.texture.levels[0][:, :, inside[1] : inside[3], inside[0] : inside[2]]
        texts = [_text(part[:, :3]) for part in (seen, original)]
        return {"seen": texts[0], "original": texts[1], "alike": similarity(*texts), "box": list(box)}

    return await looked(request, body, work)


def _text(part: Tensor) -> str:
    return " ".join(word.text for word in read_page(part.cpu()).words)


@router.post("/api/shares")
async def shares(request: Request, body: PlanRequest) -> dict[str, Any]:
    """Per page of a document the chance that the question is about it."""
    state = state_of(request)
    how, upload = state.settings.config_for(body).tokens, state.uploads.of_kind(body.id, Document)

    def work(stop: Stop) -> list[float]:
        device = state.settings.device
        sights = read_pages(state.pictures.document(upload), how, device, stop)
        scout, words = load_scout(device=device), encode([body.question])
        evidence = torch.stack([evidence_on(scout, spots, words) for spots, _ in sights])  # as `choose_pages` has it
        found: list[float] = page_worth(evidence, words).tolist()
        return found

    return {"id": body.id, "shares": await state.looking.run(request, work)}


@router.post("/api/clip")
async def clip(request: Request, body: PlanRequest) -> Any:
    """Per moment of a video its time, the share of it that changed, and its tokens when the whole video is asked
    about."""
    state = state_of(request)
    how, upload = state.settings.config_for(body).tokens, state.uploads.of_kind(body.id, Video)
    device = state.settings.device
    return await state.looking.run(request, lambda stop: clip_of(upload, body, how, device, stop))


@router.get("/api/tiles/{identity}/{level}/{column}_{row}.jpg")
async def get_tile(request: Request, identity: str, level: int, column: int, row: int, page: Page = 0) -> Response:
    """A tile of a mip level; level 0 is the finest."""
    return await _drawn(request, identity, page, lambda image: tile(image.texture, level, column, row))


@router.get("/api/thumbnails/{identity}.jpg")
async def get_thumbnail(
    request: Request,
    identity: str,
    page: Page = 0,
    side: Annotated[int, Query(ge=16, le=LARGEST_THUMBNAIL)] = THUMBNAIL,
) -> Response:
    """A page, small."""
    return await _drawn(request, identity, page, lambda image: thumbnail(image.texture, side))


@router.get("/api/channels/{identity}/{name}.jpg")
async def get_channel(request: Request, identity: str, name: str, page: Page = 0, small: bool = False) -> Response:
    """One of the forty layers, in colours."""
    if not (name in CHANNELS and drawable(name)):
        raise ApiError(404, f"channel must be one that an image alone gives, got {name!r:.40}")

    def work(stop: Stop) -> bytes:
        return coloured(name, opened(request, identity, page).layer(name), small=small)

    return _file(await state_of(request).looking.run(request, work))


async def _drawn(request: Request, identity: str, page: int, draw: Callable[[KeptImage], bytes]) -> Response:
    drawing = state_of(request).drawing
    return _file(await drawing.run(request, lambda stop: draw(opened(request, identity, page))))


def _file(content: bytes, kind: str = "jpeg") -> Response:
    # What an id stands for never changes, and the id is a secret of this browser.
    return Response(content, media_type=f"image/{kind}", headers={"cache-control": "private, max-age=3600"})
