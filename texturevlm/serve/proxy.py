"""The mode `proxy`: an image becomes one overview and a few crops, and another server answers.

Any OpenAI-compatible server will do. It gets ordinary images, so it needs to know nothing of tokens of mixed
resolution; what it makes of the pixels is its own affair. The operator names its address; a client cannot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from starlette.requests import Request

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.crops import crop_grids
from texturevlm.allocate.plain import TokenGrid
from texturevlm.draw import to_pil
from texturevlm.placement import Placement, TokenConfig, place
from texturevlm.serve.drawing import data_url
from texturevlm.serve.lanes import Stop, until_left
from texturevlm.serve.limits import ApiError
from texturevlm.serve.pictures import KeptImage
from texturevlm.serve.plans import box_in

CHAT = "/chat/completions"
LARGEST_ANSWER = 1 << 24  # bytes of what the other server answers
UNREADABLE = "the upstream server gave no answer that can be read"


def rewritten(
    messages: Sequence[dict[str, Any]], images: Sequence[KeptImage], question: str, how: TokenConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages with an overview and crops in place of each image; and what these parts are.

    images: those in the messages, in order; they share the budget evenly
    """
    own = replace(how, budget=max(1, how.budget // max(1, len(images))), allocator="crops", options={})
    left = iter(images)
    parts: list[dict[str, Any]] = []

    def blocks(content: Any) -> Any:
        if isinstance(content, str):
            return content
        found: list[dict[str, Any]] = []
        for block in content:
            if block["type"] != "image_url":
                found.append(block)
                continue
            placement = place(next(left).picture(own), question, own)
            for label, image, about in _parts(placement, own):
                found += [{"type": "text", "text": label}, {"type": "image_url", "image_url": {"url": data_url(image)}}]
                parts.append(about)
        return found

    return [{**message, "content": blocks(message["content"])} for message in messages], parts


def _parts(placement: Placement, how: TokenConfig) -> list[tuple[str, Image.Image, dict[str, Any]]]:
    """A sentence, an image and its description, for the overview and each crop; upright."""
    cells = Cells.of(placement.relevance, 0, how.patch)
    whole = to_pil(placement.picture.texture.levels[0])
    found = []
    for index, grid in enumerate(crop_grids(cells, how.budget)):
        box = _box(grid, whole.size)
        rows, columns = grid.shape
        image = whole.resize((columns * how.patch, rows * how.patch), Image.Resampling.BOX, box=box)
        corner = ", ".join(f"{value:.0%}" for value in (box[0] / whole.width, box[1] / whole.height))
        label = "The whole image:" if index == 0 else f"A detail of it, enlarged, from {corner} (left, top):"
        about = {
            "box": [round(value) for value in box_in(placement.picture.frame, box)],
            "size": list(image.size),
            "tokens": rows * columns,
        }
        found.append((label, image, about))
    return found


def _box(grid: TokenGrid, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, right, bottom, inside an image of `size` (width, height)."""
    (y, x), (rows, columns), (tall, wide) = grid
    left, top = max(0.0, x), max(0.0, y)
    return left, top, min(float(size[0]), x + columns * wide), min(float(size[1]), y + rows * tall)


@dataclass(frozen=True)
class Upstream:
    """An OpenAI-compatible server. url: up to /v1; key: its token; model: a name that replaces the client's"""

    url: str
    key: str = ""
    model: str = ""
    seconds: float = 120.0

    def _client(self) -> Any:
        import httpx

        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        # No proxies of the environment and no redirects: the operator named one address.
        return httpx.AsyncClient(headers=headers, timeout=self.seconds, trust_env=False, follow_redirects=False)

    async def ask(self, request: Request, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The whole answer; given up when the client leaves."""
        task = asyncio.ensure_future(self._whole(asked))
        return await until_left(request, task, Stop(), seconds)

    async def _whole(self, asked: dict[str, Any]) -> dict[str, Any]:
        async with self._client() as client:
            answer = await self._sent(client, asked, stream=False)
            try:
                found = answer.json() if len(answer.content) <= LARGEST_ANSWER else None
            except json.JSONDecodeError:
                found = None
        if not isinstance(found, dict):
            raise ApiError(502, UNREADABLE)
        return found

    async def stream(self, asked: dict[str, Any], label: dict[str, Any]) -> AsyncIterator[str]:
        """The pieces of the answer, each labelled; raises before the first if the other server refuses."""
        client = self._client()
        try:
            answer = await self._sent(client, asked, stream=True)
        except ApiError:
            await client.aclose()
            raise
        return _relayed(client, answer, {"mode": "proxy", **label})

    async def _sent(self, client: Any, asked: dict[str, Any], *, stream: bool) -> Any:
        """What the other server answers, if it does not refuse."""
        import httpx

        try:
            wanted = client.build_request("POST", self.url.rstrip("/") + CHAT, json=asked)
            answer = await client.send(wanted, stream=stream)
        except httpx.HTTPError:
            raise ApiError(502, UNREADABLE) from None
        if answer.status_code == 429:
            raise ApiError(429, "the upstream server is busy; try again in a moment")
        if answer.status_code != 200:
            raise ApiError(502, f"the upstream server answered {answer.status_code}")
        return answer


async def _relayed(client: Any, answer: Any, label: dict[str, Any]) -> AsyncIterator[str]:
    import httpx

    try:
        async for line in answer.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data != "[DONE]":
                data = json.dumps({**json.loads(data), "texturevlm": label})
            yield f"data: {data}\n\n"
    except (httpx.HTTPError, json.JSONDecodeError):
        yield f"data: {json.dumps(ApiError(502, 'the upstream server broke off').body())}\n\n"
    finally:
        await client.aclose()
