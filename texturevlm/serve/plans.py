"""A plan: where the tokens of a picture lie for a question, as numbers and pixels that a browser draws."""

from __future__ import annotations

from importlib.util import find_spec
from time import perf_counter
from typing import Any

from pydantic import BaseModel, Field, FiniteFloat
from torch import Tensor

from texturevlm.allocate import ALLOCATORS, foveate
from texturevlm.allocate.value import expected_value
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH
from texturevlm.relevance import Relevance, client_scorers
from texturevlm.serve.atlas import ATLAS_COLUMNS, GUTTER, atlas_of, data_url, token_pixels
from texturevlm.serve.gaze import Point, check_trail, gaze_map, looked_at
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import LARGEST_BUDGET, LONGEST_QUESTION, SIDES, ApiError
from texturevlm.serve.pictures import Picture
from texturevlm.types import Allocation

QUICK = "scout"  # the scorer that answers at once
DIGITS = 3  # of a position in pixels


class Choice(BaseModel):
    """How tokens are chosen.

    gaze:  a point (x, y) in pixels: the tokens are densest there, whatever the question
    trail: where a person has looked before, points (x, y, seconds): the channel `gaze`, which raises the relevance
    """

    question: str = Field(default="", max_length=LONGEST_QUESTION)
    budget: int = Field(default=BUDGET, ge=1, le=LARGEST_BUDGET)
    patch: int = Field(default=PATCH, ge=SIDES[0], le=SIDES[1])
    allocator: str = ALLOCATOR
    relevance: str = QUICK
    gaze: tuple[FiniteFloat, FiniteFloat] | None = None
    trail: list[Point] = Field(default_factory=list)

    def check(self) -> Choice:
        """Raise for a name that is not known; names of files and models are never taken from a client."""
        for what, given, known in (
            ("allocator", self.allocator, ALLOCATORS.clients),
            ("relevance", self.relevance, scorer_names()),
        ):
            if given not in known:
                raise ApiError(400, f"{what} must be one of {', '.join(known)}, got {given!r:.40}")
        check_trail(self.trail)
        return self

    @property
    def scorer(self) -> str:
        """Without a question the scout has nothing to search: `prior` says what is usually asked."""
        return "prior" if self.relevance == QUICK and not self.question.strip() else self.relevance


class PlanRequest(Choice):
    """A plan of one page of an upload. pixels: whether the tokens' pixels come along"""

    id: str = Field(max_length=64)
    page: int = Field(default=0, ge=0)
    pixels: bool = True


def scorer_names() -> tuple[str, ...]:
    """The scorers that a client may name."""
    return tuple(name for name in client_scorers() if name != "words" or find_spec("rapidocr"))


def weighed(picture: Picture, how: Choice) -> Relevance:
    """What matters for the question, and where a person has looked."""
    relevance = picture.relevance(how.question, how.scorer, how.patch)
    return looked_at(relevance, gaze_map(how.trail, picture.texture.size)) if how.trail else relevance


def chosen(picture: Picture, how: Choice) -> tuple[Allocation, Relevance]:
    """The tokens, and the relevance that they were chosen by."""
    relevance = weighed(picture, how)
    if how.gaze is not None:
        height, width = picture.texture.size
        x, y = (min(max(value, 0.0), extent - 1.0) for value, extent in zip(how.gaze, (width, height)))
        budget = min(how.budget, height * width)
        sight = foveate(picture.texture.size, fixation=(x, y), budget=budget, patch=how.patch, e0=0.1)
        return sight.to(picture.texture.device), relevance
    return ALLOCATORS[how.allocator](picture.texture, relevance, budget=how.budget, patch=how.patch), relevance


def plan(picture: Picture, how: PlanRequest, stop: Stop) -> dict[str, Any]:
    """What `POST /api/plan` answers."""
    began = perf_counter()
    picture.relevance(how.question, how.scorer, how.patch)
    stop.check()
    scored = perf_counter()
    allocation, relevance = chosen(picture, how)
    stop.check()
    placed = perf_counter()
    height, width = allocation.size
    found: dict[str, Any] = {
        "id": how.id,
        "page": how.page,
        "size": [height, width],
        "patch": allocation.patch,
        "budget": allocation.budget,
        "used": int(allocation.valid.sum()),
        "full": -(-height // allocation.patch) * -(-width // allocation.patch),
        "allocator": "foveate" if how.gaze is not None else how.allocator,
        "scorer": relevance.scorer,
        "value": float(expected_value(relevance, allocation)),
        "grey": round(float(picture.grey) * 255),
        "tokens": columns_of(allocation),
    }
    if how.pixels:
        pixels = token_pixels(picture.texture, allocation)
        found["atlas"] = {"url": data_url(atlas_of(pixels)), "columns": ATLAS_COLUMNS, "gutter": GUTTER}
    taken = {"relevance": scored - began, "allocation": placed - scored, "pixels": perf_counter() - placed}
    return {**found, "milliseconds": {name: round(seconds * 1e3, 1) for name, seconds in taken.items()}}


def columns_of(allocation: Allocation) -> dict[str, list[Any]]:
    """The used tokens, one list per column."""
    used = allocation.valid[0]
    pairs = {name: getattr(allocation, name)[0][used] for name in ("centre", "ddx", "ddy")}
    numbers = {"level": allocation.level[0][used], "score": allocation.score[0][used]}
    return {name: _rounded(column) for name, column in {**pairs, **numbers}.items()}


def _rounded(column: Tensor) -> list[Any]:
    decimals = DIGITS if column.dim() == 2 else 2 * DIGITS  # scores are small
    rounded: list[Any] = column.double().round(decimals=decimals).tolist()
    return rounded
