"""What a conversation puts into a model's cache, and where it stands there.

`Wording` has the ids of the words of a prompt, `MomentSlots` are the slots of one moment, `lay_out` gives all of them
order and positions, `token_places` says where the tokens of a choice stand (once per choice, not per frame), and
`TokenEncoder` runs the vision tower on those that changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.ask.messages import VIDEO, conversation_about
from texturevlm.types import Allocation
from texturevlm.vlm import CapturedPrefill, moment_view

LATE = 99999.9  # seconds: a time of many digits
HALF_LIFE = 10.0  # seconds after which a moment is worth half as much
LEAST_RELEVANCE = 0.02  # of a moment that no question has looked at
TOWER_SIZES = (16, 32, 48, 64, 96, 128)  # tokens; above the last in multiples of it


class Wording:
    """The ids of words.

    adapter: of a Qwen model
    longest: ids around a moment at most
    """

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.longest = sum(map(len, self.of_moment(LATE)))

    def of_moment(self, time: float) -> tuple[list[int], list[int]]:
        """Before and behind the tokens of a moment. time: in seconds"""
        token = Allocation.of_boxes(torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), (1, 1), 1)
        view = moment_view(torch.zeros(1, 1, 3, 1, 1), token, levels="joint", number=0, seconds=time, fps=1.0)
        text = self.adapter.filling([view], math.inf)
        ids: list[int] = self.adapter.tokenizer(text, add_special_tokens=False)["input_ids"]
        (at,) = [index for index, number in enumerate(ids) if number in self.adapter.visual_ids]
        return ids[:at], ids[at + 1 :]

    def of_question(self, question: str) -> tuple[list[int], list[int]]:
        """Before and behind the video."""
        adapter, mark = self.adapter, self.adapter.visual_ids[1]
        ids = adapter.spell(conversation_about(1, question, adapter.marks, VIDEO), [], [adapter.word(mark)])
        at = ids.index(mark)
        return ids[:at], ids[at + 1 :]


class TokenPlace(NamedTuple):
    """Where a token stands.

    row, column: in tokens of the model's grid
    key:         of the reading order, the same for a footprint in every choice
    box:         the area that it shows, xyxy in pixels
    """

    row: float
    column: float
    key: tuple[float, ...]
    box: tuple[float, ...]


def token_places(adapter: Any, allocation: Allocation) -> dict[int, TokenPlace]:
    """The used slots of a choice, in reading order: slot → its place.

    adapter: of a Qwen model; allocation: of one image, on the CPU
    """
    levels = adapter.trained.levels
    pixels = torch.zeros(allocation.budget, 1, 3, 1, 1)
    view = moment_view(pixels, allocation, levels=levels, number=0, seconds=0.0, fps=1.0)
    coarse = torch.zeros(allocation.budget) if levels == "joint" else -allocation.level[0].round()
    keys = torch.cat([coarse[:, None], allocation.centre[0].flip(-1)], 1).tolist()
    boxes = allocation.boxes[0].tolist()
    return {
        slot: TokenPlace(row, column, tuple(keys[slot]), tuple(boxes[slot]))
        for slot, (row, column) in zip(view.slot.tolist(), adapter.places(view).token.tolist())
    }


@dataclass(eq=False)
class MomentSlots:
    """One moment in the memory.

    time:      in seconds
    opening, closing: slots of the text before and behind its tokens
    tokens:    slot in the stream → slot in the memory
    places:    slot in the memory → its place
    number, start: the number of its first token, and the position of that
    relevance: share of the attention that questions have paid to it
    """

    time: float
    opening: list[int]
    closing: list[int]
    tokens: dict[int, int] = field(default_factory=dict)
    places: dict[int, TokenPlace] = field(default_factory=dict)
    number: int = 0
    start: float = 0.0
    relevance: float = 0.0

    def visual(self) -> list[int]:
        """Slots of its visual tokens, in reading order."""
        return sorted(self.places, key=lambda slot: self.places[slot].key)

    def slots(self) -> list[int]:
        """All of its slots, in order."""
        return [*self.opening, *self.visual(), *self.closing]

    def __len__(self) -> int:
        return len(self.opening) + len(self.places) + len(self.closing)

    def worth(self, now: float) -> float:
        """What keeps it in the cache: recency times relevance."""
        recency: float = 0.5 ** ((now - self.time) / HALF_LIFE)
        return recency * (LEAST_RELEVANCE + self.relevance)


def lay_out(
    head: Sequence[int], moments: Sequence[MomentSlots], extent: float, *, number: int = 0, start: float = 0.0
) -> tuple[list[int], range, Tensor, int, float]:
    """Text and moments one after another, as M-RoPE counts: text by one, a picture by the extent of its full grid.

    number, start: of the first token. The moments get their own
    returns slots in order, their numbers, positions (3, n), and the number and the position that follow
    """
    slots, columns, follow = list(head), [_text(len(head), start)], start + len(head)
    for moment in moments:
        moment.number, moment.start = number + len(slots), follow
        visual = moment.visual()
        columns.append(_text(len(moment.opening), follow))
        follow += len(moment.opening)
        columns.append(torch.tensor([(0.0, *moment.places[slot][:2]) for slot in visual]).reshape(-1, 3).T + follow)
        follow += extent
        columns.append(_text(len(moment.closing), follow))
        follow += len(moment.closing)
        slots += [*moment.opening, *visual, *moment.closing]
    end = number + len(slots)
    return slots, range(number, end), torch.cat(columns, -1), end, follow


def _text(count: int, start: float) -> Tensor:
    """(3, count): positions of text."""
    return (torch.arange(count) + start).float().expand(3, -1)


class TokenEncoder:
    """Encodes tokens of a stream.

    adapter:  of a Qwen model
    captured: whether the tower is captured
    """

    def __init__(self, adapter: Any, *, captured: bool) -> None:
        self.adapter, self.captured = adapter, captured
        self.towers: dict[int, CapturedPrefill] = {}
        self.allocation: Allocation | None = None

    def hold(self, allocation: Allocation, device: torch.device) -> None:
        """The tokens were chosen. allocation: of one image, on the CPU; device: of the pixels"""
        self.allocation = allocation
        self._centre = allocation.centre.to(device)
        self._step = torch.stack([allocation.ddx[..., 0], allocation.ddy[..., 1]], -1).to(device)

    def __call__(self, pixels: Tensor, slots: list[int]) -> list[Tensor]:
        """(n, D) each: the tokens, then those for DeepStack. The next call overwrites them.

        pixels: (K, 3, P, P), 0 to 1
        slots:  in reading order: the tower keeps it
        """
        assert self.allocation is not None
        if self.captured:
            return self._replayed(pixels, slots, self.allocation.size)
        some = self.allocation.each(lambda column: column[:, slots])
        levels = self.adapter.trained.levels
        view = moment_view(pixels[slots][:, None], some, levels=levels, number=0, seconds=0.0, fps=1.0)
        return [layer[0] for layer in self.adapter.embed([view])]

    def _replayed(self, pixels: Tensor, slots: list[int], size: tuple[int, int]) -> list[Tensor]:
        count = len(slots)
        wide = next((wide for wide in TOWER_SIZES if wide >= count), -(-count // TOWER_SIZES[-1]) * TOWER_SIZES[-1])
        if wide not in self.towers:
            self.towers[wide] = CapturedPrefill(self.adapter, wide, masked=True, compiled=False)
        filled = torch.tensor([*slots, *slots[:1] * (wide - count)], device=pixels.device)
        used = torch.arange(wide, device=pixels.device)[None] < count
        centre, step = self._centre[:, filled], self._step[:, filled]
        found = self.towers[wide].encode_tokens(pixels[filled][None], centre, step, used, [size])
        return [layer[0, :count] for layer in found.embeds]
