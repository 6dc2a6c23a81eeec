"""What a conversation holds, in order: the text before the video, then moments, each with its time in words.

A moment shows what changed in a short time. Its tokens stand in reading order. Positions are those of a prompt with
these moments and no others, so they move when a moment is taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

HALF_LIFE = 10.0  # seconds after which a moment is worth half as much
LEAST_RELEVANCE = 0.02  # of a moment that no question has looked at


@dataclass(eq=False)
class LiveMoment:
    """One moment in the memory.

    time:      in seconds
    opening, closing: slots of the text before and behind its tokens
    tokens:    slot in the stream → slot in the memory
    places:    slot in the memory → (row, column), in tokens of the model's grid
    rank:      slot in the memory → key of the reading order
    boxes:     slot in the memory → the area that it shows, xyxy in pixels
    number, start: the number of its first token, and the position of that
    relevance: share of the attention that questions have paid to it
    """

    time: float
    opening: list[int]
    closing: list[int]
    tokens: dict[int, int] = field(default_factory=dict)
    places: dict[int, tuple[float, float]] = field(default_factory=dict)
    rank: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    boxes: dict[int, tuple[float, ...]] = field(default_factory=dict)
    number: int = 0
    start: float = 0.0
    relevance: float = 0.0

    def visual(self) -> list[int]:
        """Slots of its visual tokens, in reading order."""
        return sorted(self.places, key=self.rank.__getitem__)

    def slots(self) -> list[int]:
        """All of its slots, in order."""
        return [*self.opening, *self.visual(), *self.closing]

    def __len__(self) -> int:
        return len(self.opening) + len(self.places) + len(self.closing)

    def worth(self, now: float) -> float:
        """Recency times relevance."""
        recency: float = 0.5 ** ((now - self.time) / HALF_LIFE)
        return recency * (LEAST_RELEVANCE + self.relevance)


@dataclass(frozen=True, eq=False)
class LaidOut:
    """Where tokens stand: slots in order, their numbers, positions (3, n), and the number and position that follow."""

    slots: list[int]
    order: list[int]
    position: Tensor
    number: int
    next: float


def lay_out(
    head: Sequence[int], moments: Sequence[LiveMoment], extent: float, *, number: int = 0, start: float = 0.0
) -> LaidOut:
    """Text and moments one after another, as M-RoPE counts: text by one, a picture by the extent of its full grid.

    number, start: of the first token. The moments get their own
    """
    slots, columns, follow = list(head), [_text(len(head), start)], start + len(head)
    for moment in moments:
        moment.number, moment.start = number + len(slots), follow
        visual = moment.visual()
        columns.append(_text(len(moment.opening), follow))
        follow += len(moment.opening)
        columns.append(torch.tensor([(0.0, *moment.places[slot]) for slot in visual]).reshape(-1, 3).T + follow)
        follow += extent
        columns.append(_text(len(moment.closing), follow))
        follow += len(moment.closing)
        slots += [*moment.opening, *visual, *moment.closing]
    end = number + len(slots)
    return LaidOut(slots, list(range(number, end)), torch.cat(columns, -1), end, follow)


def _text(count: int, start: float) -> Tensor:
    """(3, count): positions of text."""
    return (torch.arange(count) + start).float().expand(3, -1)
