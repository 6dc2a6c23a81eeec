"""What a client may say of how tokens are placed; and a plan: where they lie, as numbers and pixels to be drawn.

Whatever the page or a chat asks for is one `place` with one config: that of the server's model, with what the client
gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, FiniteFloat

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.value import expected_value
from texturevlm.ask.config import OPTIONS, TOKENS
from texturevlm.check import check_choice
from texturevlm.frame import Frame
from texturevlm.placement import Placement, TokenConfig, place
from texturevlm.relevance import client_scorers, find_scorer
from texturevlm.sampling import sample
from texturevlm.serve.drawing import atlas
from texturevlm.serve.gaze import LONGEST_TRAIL, around, gaze_evidence
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import LARGEST_BUDGET, LONGEST_QUESTION, SIDES
from texturevlm.serve.pictures import KeptImage
from texturevlm.types import Allocation

DIGITS = 3  # of a position in pixels
Seconds = Annotated[FiniteFloat, Field(ge=0)]


class TokenOptions(BaseModel):
    """The fields of TokenConfig and AskConfig that a client may set; None: as the model of the server has it."""

    budget: int | None = Field(default=None, ge=1, le=LARGEST_BUDGET)
    allocator: str | None = None
    relevance: str | None = None
    balance: str | None = None
    turn: FiniteFloat | Literal["auto"] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by the names of both configs. No client names a plug-in, a file or a model."""
        found = self.model_dump(include={*TOKENS, *OPTIONS}, exclude_none=True)
        if "allocator" in found:
            ALLOCATORS.find_for_client("serve", found["allocator"])
        if "relevance" in found:
            check_choice("serve", "relevance", found["relevance"], client_scorers())
        return found


class PageOptions(TokenOptions):
    """The same for a question about one page of an upload."""

    id: str = Field(max_length=64)
    page: int = Field(default=0, ge=0)
    question: str = Field(default="", max_length=LONGEST_QUESTION)


class PlanRequest(PageOptions):
    """A plan of one page of an upload.

    gaze:   a point (x, y) in pixels: the tokens are densest there, whatever the question
    trail:  where a person has looked before, points (x, y, seconds)
    pixels: whether the tokens' pixels come along
    """

    patch: int | None = Field(default=None, ge=SIDES[0], le=SIDES[1])
    gaze: tuple[FiniteFloat, FiniteFloat] | None = None
    trail: list[tuple[FiniteFloat, FiniteFloat, Seconds]] = Field(default_factory=list, max_length=LONGEST_TRAIL)
    pixels: bool = True


def placement_of(image: KeptImage, asked: PlanRequest, how: TokenConfig) -> Placement:
    """The tokens of an image for what a client asks."""
    picture = image.picture(how)
    if asked.gaze is not None:
        how = replace(how, allocator=around(asked.gaze, picture), options={})
    with image.lock:
        return place(picture, asked.question, how, evidence=gaze_evidence(asked.trail, picture))


def plan(image: KeptImage, asked: PlanRequest, how: TokenConfig, stop: Stop) -> dict[str, Any]:
    """What `POST /api/plan` answers: positions in the image as it was given, and pixels as the model gets them."""
    began = perf_counter()
    placement = placement_of(image, asked, how)
    stop.check()
    placed = perf_counter()
    picture, allocation = placement.picture, placement.given
    (height, width), scorer = allocation.size, placement.relevance.scorer
    if asked.trail:  # evidence is beside what the scorer found
        scorer = f"{find_scorer('plan', how.relevance, asked.question).name} and gaze"
    found: dict[str, Any] = {
        "id": asked.id,
        "page": asked.page,
        "size": [height, width],
        "patch": allocation.patch,
        "budget": how.budget,
        "used": placement.tokens,
        "full": -(-height // how.patch) * -(-width // how.patch),
        "angle": round(picture.frame.angle, DIGITS),
        "allocator": "foveate" if asked.gaze is not None else name_of(how.allocator),
        "scorer": scorer,
        "how": repr(how),
        "value": float(expected_value(placement.relevance, placement.upright)),
        "grey": round(float(image.grey) * 255),
        "tokens": columns_of(allocation),
    }
    if asked.pixels:
        found["atlas"] = atlas(sample(picture.texture, placement.allocation).pixels[0, : placement.tokens, :3])
    taken = {"place": placed - began, "pixels": perf_counter() - placed}
    return {**found, "milliseconds": {name: round(seconds * 1e3, 1) for name, seconds in taken.items()}}


def box_in(frame: Frame, box: Sequence[float]) -> list[float]:
    """A box (xyxy) in a picture → the upright box around it in the image that the picture was made from."""
    left, top, right, bottom = box
    corners = torch.tensor([[left, top], [right, top], [left, bottom], [right, bottom]], dtype=torch.float64)
    around_it = frame.apply(corners)
    return [*around_it.amin(0).tolist(), *around_it.amax(0).tolist()]


def name_of(chosen: Any) -> str:
    """What a client is told of an allocator or a scorer, which may be an object."""
    return chosen if isinstance(chosen, str) else getattr(chosen, "name", getattr(chosen, "__name__", "own"))


def columns_of(allocation: Allocation) -> dict[str, list[Any]]:
    """The used tokens, one list per column."""
    digits = {"centre": DIGITS, "ddx": DIGITS, "ddy": DIGITS, "level": 2 * DIGITS, "score": 2 * DIGITS}
    columns = {name: getattr(allocation, name)[0][allocation.valid[0]].double() for name in digits}
    return {name: columns[name].round(decimals=decimals).tolist() for name, decimals in digits.items()}
