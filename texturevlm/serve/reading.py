"""`POST /api/read`: what OCR reads in a box of the delivered picture and of the original, where OCR is installed.

`POST /api/shares`: how likely each page of a document holds the answer to a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from fastapi import APIRouter
from pydantic import FiniteFloat
from starlette.requests import Request
from torch import Tensor

from texturevlm.pages.scouting import evidence_on, page_worth
from texturevlm.placement import TokenConfig
from texturevlm.rebuilding import pixel_box, rebuild
from texturevlm.relevance import read_page
from texturevlm.scout import Spots, encode, load_scout
from texturevlm.serve.images import opened, state_of
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import ApiError
from texturevlm.serve.pictures import read_pages
from texturevlm.serve.plans import PlanRequest, chosen
from texturevlm.serve.uploads import Document
from texturevlm.text import similarity

router = APIRouter()
SMALLEST_BOX = 4  # pixels along a side


class ReadRequest(PlanRequest):
    """A box of a plan, xyxy in pixels of the image."""

    box: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]


@router.post("/api/read")
async def read(request: Request, body: ReadRequest) -> dict[str, Any]:
    """The text of a box as it is delivered and as it is in the original, and how alike they are, 0 to 1."""
    if find_spec("rapidocr") is None:
        raise ApiError(409, "OCR is not installed: pip install 'texturevlm[ocr]'")
    body.check()
    state = state_of(request)
    state.uploads.get(body.id)

    def work(stop: Stop) -> dict[str, Any]:
        picture = opened(request, body.id, body.page)
        left, top, right, bottom = box = pixel_box(body.box, picture.texture.size)
        if min(right - left, bottom - top) < SMALLEST_BOX:
            raise ApiError(422, f"box: both sides must have at least {SMALLEST_BOX} pixels")
        allocation, _ = chosen(picture, body)
        stop.check()
        seen = rebuild(picture.texture, allocation, box=box, grey=picture.grey)
        texts = [_text(part[:, :3]) for part in (seen, picture.texture.levels[0][:, :, top:bottom, left:right])]
        return {"seen": texts[0], "original": texts[1], "alike": similarity(*texts), "box": list(box)}

    found: dict[str, Any] = await state.looking.run(request, work)
    return found


def _text(part: Tensor) -> str:
    return " ".join(word.text for word in read_page(part.cpu()).words)


@router.post("/api/shares")
async def shares(request: Request, body: PlanRequest) -> dict[str, Any]:
    """Per page of a document the chance that the question is about it."""
    body.check()
    state = state_of(request)
    upload = state.uploads.of_kind(body.id, Document)
    model, device = state.settings.model, state.settings.device

    def work(stop: Stop) -> list[float]:
        pages = state.pictures.document(upload)
        how = TokenConfig(patch=body.patch) if model is None else model.config.tokens
        sights = read_pages(pages, how, device, stop)
        return page_shares([spots for spots, _ in sights], body.question, device)

    return {"id": body.id, "shares": await state.looking.run(request, work)}


def page_shares(spots: Sequence[Spots], question: str, device: torch.device) -> list[float]:
    """As `choose_pages` does. spots: what the scout read of each page"""
    scout, words = load_scout(device=device), encode([question])
    found: list[float] = page_worth(torch.stack([evidence_on(scout, one, words) for one in spots]), words).tolist()
    return found
