"""What the parts of `bench vlm` share: how a row is timed, and our path from an image on the device to a token."""

from __future__ import annotations

from torch import Tensor

from texturevlm.placement import choose_tokens
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.captured import FixedBudget
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work, waited
from texturevlm_lab.bench.vlm_theirs import prompt_ids


def add_row(report: Report, work: str, by: str, call: Work, *, bar: float | None = None, slow: bool = False) -> float:
    """One call at a time: a first token takes milliseconds; slow: it takes more than a hundred."""
    if report.device == "cpu":
        return report.add(work, by, call, "cpu", bar=bar, repeats=2)
    if slow:
        waited(call)()
        return report.add(work, by, call, "one call", bar=bar, repeats=5)
    return report.add(work, by, call, "host", bar=bar, calls=1, repeats=5 if report.quick else 30)


def first_token_of(size: tuple[int, int], batch: int = 1) -> str:
    """The work of a row, for images (height, width)."""
    return f"{size[1]}×{size[0]}, batch {batch} → first token"


def chosen(fixed: FixedBudget, texture: Texture, allocator: str, relevance: str | Relevance = "none") -> Allocation:
    """Where to look, decided on the device."""
    side = fixed.adapter.side
    return choose_tokens(texture, budget=fixed.budget, patch=side, allocator=allocator, relevance=relevance)


def our_first_token(
    fixed: FixedBudget, image: Tensor, allocator: str, relevance: str | Relevance = "none"
) -> list[int]:
    """From images (B, 3, H, W) on the device."""
    texture = Texture((image,)).mipmapped()
    ids = [prompt_ids(fixed.adapter, fixed.budget)] * texture.batch
    seen = fixed.encode(texture, chosen(fixed, texture, allocator, relevance))
    return [int(token) for token in fixed.prefill(ids, seen).logits.argmax(-1).tolist()]
