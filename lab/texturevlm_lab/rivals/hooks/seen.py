"""What a vision tower saw of the visual tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from texturevlm.vlm import Geometry
from texturevlm.vlm.places import PICTURE
from texturevlm_lab.rivals import Reduction
from texturevlm_lab.rivals.reduction import DROPPED


@dataclass(frozen=True, eq=False)
class Seen:
    """n visual tokens, in the order of their placeholders; fields as in `Context`.

    group: (n,), a number per token that is left behind the tower, ascending: its members have the same one, dropped
           ones have DROPPED
    stays: (n,), the member that keeps its place
    Both are None if no token leaves before the projector.
    """

    position: Tensor
    image: Tensor
    weight: Tensor
    keys: Tensor | None = None
    received: Tensor | None = None
    shallow: Tensor | None = None
    group: Tensor | None = None
    stays: Tensor | None = None

    @staticmethod
    def at(geometry: Geometry, weight: Tensor) -> Seen:
        """Of tokens with this geometry and weights (n, 1)."""
        image = (geometry.begins[:, 0] >= PICTURE).long().cumsum(0) - 1
        return Seen(torch.cat([geometry.moment, geometry.token], 1), image, weight[:, 0].float())

    def part(self, index: Tensor) -> Seen:
        """Some of the tokens."""
        rows = {name: value for name, value in vars(self).items() if name != "keys"}
        found = {name: value[index] for name, value in rows.items() if value is not None}
        return Seen(**found, keys=None if self.keys is None else self.keys[:, index])

    def reduction(self) -> Reduction | None:
        """What happened to the tokens before the projector."""
        if self.group is None or self.stays is None:
            return None
        kept = self.stays.nonzero()[:, 0]
        slot = torch.searchsorted(self.group[kept], self.group).clamp(max=len(kept) - 1)
        return Reduction(kept, torch.where(self.group == DROPPED, DROPPED, slot))

    def as_video(self) -> Seen:
        """With moments. Qwen3-VL has one picture per moment, each from moment 0 on."""
        if bool((self.position[:, 0] != 0).any()):
            return self
        moment = self.image.to(self.position)[:, None]
        return replace(self, position=torch.cat([moment, self.position[:, 1:]], 1), image=torch.zeros_like(self.image))

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """The tokens of several, one after the other; images are counted on."""
        firsts = [0]
        for one in parts:
            firsts.append(firsts[-1] + int(one.image.max()) + 1)
        found = {"image": torch.cat([one.image + first for one, first in zip(parts, firsts)])}
        for name in ("position", "weight", "keys", "received", "shallow", "group", "stays"):
            if getattr(parts[0], name) is not None:
                found[name] = torch.cat([getattr(one, name) for one in parts], 1 if name == "keys" else 0)
        return Seen(**found)


def seen_by_prompt(runs: Sequence[Seen], ids: Tensor, marks: Sequence[int]) -> list[Seen]:
    """What the tower saw of each prompt's visual tokens, in the order of the prompt.

    runs:  of the tower: images, then videos
    ids:   (B, L). `generate` repeats prompts for beams behind the tower, so B may be a multiple of what the tower saw
    marks: the ids that stand for images and for videos
    """
    present = [mark for mark in marks if bool((ids == mark).any())]
    if not present:
        return []
    if not runs:
        raise ValueError("reduce: the vision tower must run while tokens are reduced, got its output from elsewhere")
    counts = [int((ids == mark).sum()) for mark in present]
    beams = sum(counts) // sum(len(one.image) for one in runs)
    taken, prompts = [0] * len(runs), []
    for row in ids[::beams]:
        parts, slots = [], []
        for kind, (mark, run) in enumerate(zip(present, runs, strict=True)):
            where = (row == mark).nonzero()[:, 0]
            if len(where) == 0:
                continue
            part = run.part(taken[kind] + torch.arange(len(where), device=where.device))
            part = replace(part, image=part.image - part.image[0])
            parts.append(part if mark == marks[0] else part.as_video())
            slots.append(where)
            taken[kind] += len(where)
        if not parts:
            raise ValueError("reduce: every prompt of a batch must have visual tokens, got one without")
        prompts += [Seen.joined(parts).part(torch.cat(slots).argsort())] * beams
    return prompts
