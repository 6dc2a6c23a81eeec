"""One budget over space and time: the moments of a video, and where in each the tokens go.

The first moment is shown as a whole; each later one only where it differs from what was shown. All share one budget by
the expected value of tokens in each: where little changes tokens go to detail, where much changes to moments. Frames
become mip levels one moment at a time, so memory does not grow with the length of the video.

A second look at the same video (`seen`) goes where the model's attention and the relevance point and the first look is
not legible, and to moments that the first look left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.share import Item, spend
from texturevlm.allocate.value import delivered_scale
from texturevlm.ops.legibility import legibility
from texturevlm.placement import Allocator, TokenConfig
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.relevance.maps import normalised
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.moments import MEAN_BLOCK, MOMENT_TILE, Moment, changed_tiles, thinned

LEAST_TOKENS = 8  # of a moment, as far as its changed area needs them
LEAST_WORTH = 0.004  # share of the relevance in what changed: a moment of less is not shown
NOTHING_LEFT = 1e-6  # share of the relevance that an earlier look left illegible: less is nothing


@dataclass(frozen=True, eq=False)
class ShownMoment:
    """The tokens of one moment.

    time:       of its first frame, in seconds
    allocation: of one image
    relevance:  that they were chosen by; zero where nothing changed
    pixels:     (K, T, 3, P, P), sampled from each of its frames
    """

    time: float
    allocation: Allocation
    relevance: Relevance
    pixels: Tensor


@dataclass(frozen=True, eq=False)
class SeenMoment:
    """A moment after a look.

    allocation: the tokens that showed it
    attention:  (1, h, w), where the model looked; over all moments it sums to 1
    """

    allocation: Allocation
    attention: Tensor


@dataclass(frozen=True, eq=False)
class _Asked:
    """A moment that gets tokens: what is relevant of it, its part of the relevance, the tokens that show all of it."""

    moment: Moment
    relevance: Relevance
    worth: float
    most: int


def choose_clip(
    moments: Sequence[Moment],
    question: str = "",
    how: TokenConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    seen: Mapping[float, SeenMoment] | None = None,
) -> list[ShownMoment]:
    """The tokens of a video, in the order of time.

    moments:   as `keep_moments` found them; fewer are shown if the budget is small
    how:       its budget is of all moments together; relevance auto is the scout, and none without a question
    seen:      by time, what an earlier look showed; the result is empty if that left nothing to see
    """
    how = (TokenConfig() if how is None else how).check("clip")
    budget, patch, relevance = how.budget, how.patch, how.relevance
    if not moments:
        raise ValueError("clip: moments must be at least one, got none")
    scorer = ("scout" if question.strip() else "none") if relevance == "auto" else relevance
    kept = thinned(list(moments), max(1, budget // LEAST_TOKENS))
    how = replace(how, relevance=scorer, balance=how.weighing(budget / len(kept)))
    asked = list(_asked(kept, question, how, torch.device(device)))
    if seen:
        total = sum(one.worth for one in asked)
        asked = [_unseen(one, seen, total) for one in asked]
        least = max(NOTHING_LEFT * total, LEAST_WORTH * sum(one.worth for one in asked))
        asked = [one for one in asked if one.worth >= least]
    if not asked:
        return []
    items = [
        Item(partial(_opened, one, device), one.worth, min(LEAST_TOKENS, one.most, budget), one.most) for one in asked
    ]
    shares = spend(items, budget=budget, patch=patch, allocator=how.chooser, **how.options)
    choose = partial(how.chooser, patch=patch, **how.options)
    return [_shown(one, share, choose, device) for one, share in zip(asked, shares)]


def _asked(moments: Sequence[Moment], question: str, how: TokenConfig, device: torch.device) -> Iterator[_Asked]:
    shown: Tensor | None = None
    for moment in moments:
        height, width = moment.frames.shape[2:]
        known = find_relevance(
            _texture(moment.frames[:1], device), question, patch=how.patch, relevance=how.relevance, balance=how.balance
        )
        if shown is None:
            shown = moment.means[-1]
            yield _Asked(moment, known, 1.0, -(-height // how.patch) * -(-width // how.patch))
            continue
        changed = changed_tiles(moment.means, shown)
        cells = _on_cells(changed, (height, width), known.grid).to(device)
        mass = known.mass * cells
        worth = float(mass.sum())
        if worth < LEAST_WORTH:
            continue
        shown = torch.where(_on_blocks(changed, shown), moment.means[-1], shown)
        ink = known.ink & cells
        name = known.scorer if known.asked else "change"  # something is asked for: allocators need not show the rest
        only = replace(known, mass=normalised(mass), ink=ink if bool(ink.any()) else cells, scorer=name)
        yield _Asked(moment, only, worth, max(1, int(changed.sum()) * MOMENT_TILE**2 // how.patch**2))


def _unseen(one: _Asked, seen: Mapping[float, SeenMoment], total: float) -> _Asked:
    """What attention and relevance point at and an earlier look left illegible. total: the worth of all moments"""
    known = seen.get(one.moment.time)
    if known is None:
        return one
    grid = one.relevance.grid
    looked = functional.interpolate(known.attention[:, None], grid, mode="bilinear", antialias=True)[:, 0].clamp(min=0)
    looked = looked * (known.attention.sum() / looked.sum().clamp(min=1e-30)) * total
    mass = one.relevance.mass * one.worth + looked.to(one.relevance.mass)
    scale = delivered_scale(known.allocation, grid).to(mass)
    left = mass * (1 - legibility(one.relevance.legible_scale, scale))
    only = replace(one.relevance, mass=normalised(left), scorer="attention")
    return replace(one, relevance=only, worth=float(left.sum()))


def _opened(asked: _Asked, device: torch.device | str) -> tuple[Texture, Relevance]:
    return _texture(asked.moment.frames[:1], device), asked.relevance


def _shown(one: _Asked, share: int, choose: Allocator, device: torch.device | str) -> ShownMoment:
    texture = _texture(one.moment.frames, device)
    allocation = choose(_texture(one.moment.frames[:1], device), one.relevance, budget=share)
    read = sample(texture, allocation.each(lambda column: column.expand(texture.batch, *column.shape[1:])))
    return ShownMoment(one.moment.time, allocation, one.relevance, read.pixels.transpose(0, 1).contiguous())


def _texture(frames: Tensor, device: torch.device | str) -> Texture:
    return Texture((frames.to(device).float() / 255,)).mipmapped()


def _on_cells(changed: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(1, h, w): which cells lie in a changed tile."""
    rows, columns = (
        ((torch.arange(cells) + 0.5) * (extent / cells) / MOMENT_TILE).long() for cells, extent in zip(grid, size)
    )
    return changed[rows][:, columns][None]


def _on_blocks(changed: Tensor, means: Tensor) -> Tensor:
    """Tiles (rows, columns) → blocks (1, h, w) of `means`."""
    wide = functional.interpolate(changed[None, None].float(), scale_factor=MOMENT_TILE // MEAN_BLOCK)[0]
    return wide[:, : means.shape[1], : means.shape[2]] > 0.5
