"""A whole video under one budget: which moments of it are shown, and where in each the tokens go.

A moment is one or two frames that a model reads together. A few are kept while the frames pass by, whatever the length;
only their frames are in memory, as bytes. A moment's worth is what it shows that the moments before it did not (change
against the last one, novelty against all of them), times the stretch of the video that it stands for. When too many are
kept, the one of least worth leaves. So a still scene is one moment, the last change is always seen, and where
everything moves the moments are spread over time.

The first moment is shown as a whole; each later one only where it differs from what was shown. All share one budget by
the expected value of tokens in each: where little changes tokens go to detail, where much changes to moments. A second
look at the same video (`seen`) goes where the model's attention and the relevance point and the first look is not
legible, and to moments that the first look left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.share import Item, spend
from texturevlm.allocate.value import delivered_scale
from texturevlm.check import check_count
from texturevlm.frame import Frame
from texturevlm.placement import TokenConfig
from texturevlm.relevance import Relevance, find_relevance, find_turn, legibility, normalised
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import CHANGED, MEAN_BLOCK, block_means, largest_per_tile, pixel_mask, tiles_on_cells

MOMENT_TILE = 32  # pixels: side of the squares that change or stay
MOST_MOMENTS = 64
MOST_BYTES = 1 << 28  # of kept frames
FEWEST_MOMENTS = 4  # moments that are kept however large they are
LOOKED_AT = 3  # moments, evenly spread: the angle of a video is the middle one of theirs
LEAST_TOKENS = 8  # of a moment, as far as its changed area needs them
LEAST_WORTH = 0.004  # share of the relevance in what changed: a moment of less is not shown
NOTHING_LEFT = 1e-6  # share of the relevance that an earlier look left illegible: less is nothing


@dataclass(frozen=True, eq=False)
class Moment:
    """frames: (T, 3, H, W) bytes; time: of the first, in seconds; means: (T, 3, h, w), of blocks of 8 × 8 pixels"""

    frames: Tensor
    time: float
    means: Tensor

    @staticmethod
    def of(frames: Sequence[Tensor], time: float, together: int) -> Moment:
        """A moment of `together` frames, (3, H, W) each; the last is repeated if there are too few."""
        whole = torch.stack([*frames, *[frames[-1]] * (together - len(frames))])
        return Moment(whole, time, block_means(whole.float()))

    def texture(self, device: torch.device | str, frames: int = 1) -> Texture:
        """The first so many frames, with mips; made when it is needed, so memory does not grow with the moments."""
        return Texture((self.frames[:frames].to(device).float() / 255,)).mipmapped()


def changed_tiles(means: Tensor, shown: Tensor) -> Tensor:
    """(rows, columns): the tiles in which a moment (T, 3, h, w) differs from what was shown (3, h, w)."""
    return largest_per_tile(means - shown, MOMENT_TILE // MEAN_BLOCK).amax(0) > 255 * CHANGED


class KeptMoments(NamedTuple):
    """The moments of a video that are worth showing, in order, and the time of its last frame in seconds."""

    moments: list[Moment]
    seconds: float


def keep_moments(frames: Iterable[tuple[Tensor, float]], *, together: int = 2) -> KeptMoments:
    """Read a video to its end: (3, H, W) bytes and seconds each. together: frames per moment"""
    check_count("clip", "together", together, 1)
    kept, given, seconds = list[Moment](), iter(frames), 0.0
    while some := list(islice(given, together)):
        seconds = some[-1][1]
        new = Moment.of([image for image, _ in some], some[0][1], together)
        if not kept or changed_tiles(new.means, kept[-1].means[-1]).any():
            limit = max(FEWEST_MOMENTS, MOST_BYTES // new.frames.numel())
            kept = thinned([*kept, new], min(MOST_MOMENTS, limit))
    return KeptMoments(kept, seconds)


def thinned(moments: list[Moment], most: int) -> list[Moment]:
    """At most so many: the moment of least worth leaves, again and again. The first and the last stay."""
    kept = list(moments)
    while len(kept) > max(1, most):
        if len(kept) == 2:
            return kept[-1:]
        worth = [_worth(kept, index) for index in range(1, len(kept) - 1)]
        kept.pop(1 + min(range(len(worth)), key=worth.__getitem__))
    return kept


def _worth(kept: list[Moment], index: int) -> float:
    here = kept[index].means
    shares = [float(changed_tiles(here, before.means[-1]).float().mean()) for before in kept[:index]]
    return (shares[-1] + min(shares)) * (kept[index + 1].time - kept[index - 1].time)


def upright_moments(moments: Sequence[Moment], turn: float | str) -> tuple[list[Moment], Frame]:
    """The moments as they would be if the camera had been upright, all turned by one angle; and their frame.

    turn: the angle of the text in degrees, or auto: it is found
    """
    angle = _angle(moments) if isinstance(turn, str) else turn
    height, width = moments[0].frames.shape[2:]
    frame = Frame.turned((height, width), angle)
    if angle == 0:
        return list(moments), frame
    found = []
    for moment in moments:
        upright = frame.show(Texture((moment.frames.float() / 255,))).levels[0]
        frames = (upright.clamp(0, 1) * 255).round().byte().contiguous()
        found.append(Moment(frames, moment.time, block_means(frames.float())))
    return found, frame


def _angle(moments: Sequence[Moment]) -> float:
    spread = [moments[number * len(moments) // LOOKED_AT] for number in range(LOOKED_AT)]
    some = {moment.time: moment for moment in spread}.values()
    angles = sorted((find_turn(Texture((moment.frames[:1].float() / 255,))) for moment in some), key=abs)
    return angles[(len(angles) - 1) // 2]


@dataclass(frozen=True, eq=False)
class MomentTokens:
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
class MomentEvidence:
    """What a look at a moment left behind.

    allocation: the tokens that showed it
    attention:  (1, h, w), where the model looked; over all moments it sums to 1
    """

    allocation: Allocation
    attention: Tensor


@dataclass(frozen=True, eq=False)
class _Part:
    """A moment that gets tokens: what is relevant of it, its part of the relevance, the tokens that show all of it."""

    moment: Moment
    relevance: Relevance
    worth: float
    most: int

    def opened(self, device: torch.device | str) -> tuple[Texture, Relevance]:
        return self.moment.texture(device), self.relevance


def choose_clip(
    moments: Sequence[Moment],
    question: str = "",
    how: TokenConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    seen: Mapping[float, MomentEvidence] | None = None,
) -> list[MomentTokens]:
    """The tokens of a video, in the order of time.

    moments:   as `keep_moments` found them; fewer are shown if the budget is small
    how:       its budget is of all moments together; relevance auto is the scout, and none without a question
    seen:      by time, what an earlier look showed; the result is empty if that left nothing to see
    """
    how = (TokenConfig() if how is None else how).check("clip")
    if not moments:
        raise ValueError("clip: moments must be at least one, got none")
    scorer = ("scout" if question.strip() else "none") if how.relevance == "auto" else how.relevance
    kept = thinned(list(moments), max(1, how.budget // LEAST_TOKENS))
    how = replace(how, relevance=scorer, balance=how.weighing(how.budget / len(kept)))
    parts = list(_parts(kept, question, how, torch.device(device)))
    if seen:
        total = sum(part.worth for part in parts)
        parts = [_unseen(part, seen, total) for part in parts]
        least = max(NOTHING_LEFT * total, LEAST_WORTH * sum(part.worth for part in parts))
        parts = [part for part in parts if part.worth >= least]
    return [_sampled(part, found, device) for part, found in zip(parts, _spent(parts, how, device))]


def _parts(moments: Sequence[Moment], question: str, how: TokenConfig, device: torch.device) -> Iterator[_Part]:
    """The first moment as a whole, the others as far as they differ from what was shown."""
    patch, by = how.patch, how.relevance
    shown: Tensor | None = None
    for moment in moments:
        height, width = moment.frames.shape[2:]
        known = find_relevance(moment.texture(device), question, patch=patch, relevance=by, balance=how.balance)
        if shown is None:
            shown = moment.means[-1]
            yield _Part(moment, known, 1.0, -(-height // patch) * -(-width // patch))
            continue
        changed = changed_tiles(moment.means, shown)
        cells = tiles_on_cells(changed, MOMENT_TILE, (height, width), known.grid).to(device)
        mass = known.mass * cells
        worth = float(mass.sum())
        if worth < LEAST_WORTH:
            continue
        blocks = pixel_mask(changed, MOMENT_TILE // MEAN_BLOCK, (shown.shape[1], shown.shape[2]))
        shown = torch.where(blocks, moment.means[-1], shown)
        ink = known.ink & cells
        name = known.scorer if known.asked else "change"  # something is asked for: allocators need not show the rest
        only = replace(known, mass=normalised(mass), ink=ink if bool(ink.any()) else cells, scorer=name)
        yield _Part(moment, only, worth, max(1, int(changed.sum()) * MOMENT_TILE**2 // patch**2))


def _unseen(part: _Part, seen: Mapping[float, MomentEvidence], total: float) -> _Part:
    """What attention and relevance point at and an earlier look left illegible. total: the worth of all moments"""
    known = seen.get(part.moment.time)
    if known is None:
        return part
    grid = part.relevance.grid
    looked = functional.interpolate(known.attention[:, None], grid, mode="bilinear", antialias=True)[:, 0].clamp(min=0)
    looked = looked * (known.attention.sum() / looked.sum().clamp(min=1e-30)) * total
    mass = part.relevance.mass * part.worth + looked.to(part.relevance.mass)
    scale = delivered_scale(known.allocation, grid).to(mass)
    left = mass * (1 - legibility(part.relevance.legible_scale, scale))
    only = replace(part.relevance, mass=normalised(left), scorer="attention")
    return replace(part, relevance=only, worth=float(left.sum()))


def _spent(parts: Sequence[_Part], how: TokenConfig, device: torch.device | str) -> Iterator[Allocation]:
    """The allocation of each part: all that it can use where the budget is enough, else its share by expected value.

    What was placed to find the shares is kept, and placed again only for a share that was not tried.
    """
    tried: dict[tuple[int, int], Allocation] = {}

    def choose(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
        found = tried[id(relevance), budget] = how.chooser(
            texture, relevance, budget=budget, patch=patch, **how.options
        )
        return found

    shares = [min(part.most, how.budget) for part in parts]
    if sum(shares) > how.budget:
        items = [
            Item(partial(part.opened, device), part.worth, min(LEAST_TOKENS, most), most)
            for part, most in zip(parts, shares)
        ]
        shares = spend(items, budget=how.budget, patch=how.patch, allocator=choose)
    for part, share in zip(parts, shares):
        found = tried.get((id(part.relevance), share))
        yield found or choose(*part.opened(device), budget=share, patch=how.patch)


def _sampled(part: _Part, allocation: Allocation, device: torch.device | str) -> MomentTokens:
    """The tokens of a part, from each frame of its moment."""
    texture = part.moment.texture(device, len(part.moment.frames))
    read = sample(texture, allocation.each(lambda column: column.expand(texture.batch, *column.shape[1:])))
    return MomentTokens(part.moment.time, allocation, part.relevance, read.pixels.transpose(0, 1).contiguous())
