"""What a stream knows of its cells, carried from frame to frame along the optical flow.

Relevance (channel 15), saliency (16), where the tokens have looked (17, fading), the embedding layers and where a
person pointed all move with what they belong to. A tile that did not change did not move. A cell whose movement is
large or cannot be trusted keeps what was carried there and waits to be looked at again: what the image alone says of it
is taken then, until the next keyframe asks the question anew.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from texturevlm.ops.legibility import legibility
from texturevlm.relevance import Relevance
from texturevlm.video.flow import Flow, find_flow
from texturevlm.video.follow import box_map, followed
from texturevlm.video.tiles import tile_grid

POINTED = 0.9  # of the relevance is where someone pointed
FADE = 0.9  # of the fixation history is left after a frame
MANY, LONG = 0.02, 8  # cells are looked at again when so large a share waits, or one has waited so many frames


class Carry:
    """The maps of one stream, all on the grid of the relevance.

    relevance: of the frame that is held
    maps:      others that move along, each (1, C, h, w): history; saliency and embedding where there are any
    pointed:   (4,), a box that someone pointed at, xyxy in cells
    waits:     (1, h, w), for how many frames a cell has not been trusted; 0: it is
    """

    def __init__(self, size: tuple[int, int], tile: int, method: str) -> None:
        self.size, self.tile, self.method = size, tile, method
        self.relevance: Relevance | None = None
        self.grey: Tensor | None = None
        self.maps: dict[str, Tensor] = {}
        self.pointed: Tensor | None = None
        self.waits: Tensor | None = None

    def start(self, relevance: Relevance, grey: Tensor) -> None:
        """From a keyframe: nothing waits. Where tokens have looked is forgotten only with the scene (`forget`).

        grey: (1, 1, h, w), brightness of the cells
        """
        self.relevance, self.grey = relevance, grey.clone()
        self.waits = torch.zeros_like(relevance.mass)
        if "history" not in self.maps:
            self.maps["history"] = torch.zeros_like(relevance.mass)[:, None]

    def forget(self) -> None:
        """Another scene: what was carried belongs to the last one."""
        self.maps, self.pointed = {}, None

    def point(self, box: tuple[float, float, float, float]) -> None:
        """Remember where someone pointed, xyxy in pixels."""
        if self.relevance is None:
            raise ValueError("point: the stream must hold a frame, got none yet")
        rows, columns = self.relevance.grid
        scale = (columns / self.size[1], rows / self.size[0]) * 2
        cells = torch.tensor([edge * by for edge, by in zip(box, scale)], device=self.relevance.mass.device)
        if not box_map(cells, self.relevance.grid).any():
            raise ValueError(f"point: box must be xyxy and overlap the frame of {self.size}, got {box}")
        self.pointed = cells

    def pointed_map(self) -> Tensor | None:
        """(1, h, w): where someone pointed, as far as it could be followed; None if no one did."""
        if self.pointed is None or self.relevance is None:
            return None
        return box_map(self.pointed, self.relevance.grid)

    def move(self, grey: Tensor, mask: Tensor) -> Flow:
        """Carry everything along to the next frame.

        grey: (1, 1, h, w), brightness of its cells
        mask: (rows, columns) bool, its changed tiles
        """
        assert self.relevance is not None and self.grey is not None and self.waits is not None
        found = find_flow(self.grey, grey, method=self.method)
        changed = self.cells_of(mask, (grey.shape[2], grey.shape[3]))
        flow = Flow(found.vector.where(changed, 0.0), found.trusted | ~changed)
        old = self.relevance
        smooth = flow.carry(torch.stack([old.mass, old.legible_scale], 1))
        mass = _normalised(smooth[:, 0])
        if self.pointed is not None:
            self.pointed = followed(self.pointed, flow)
            inside = box_map(self.pointed, old.grid)
            elsewhere = _normalised(mass * (1 - inside))  # what was there before belongs to the box, wherever it is now
            mass = _normalised(POINTED * _normalised(inside) + (1 - POINTED) * elsewhere)
        ink = flow.carry(old.ink[:, None].to(old.mass), mode="nearest")[:, 0] > 0.5
        self.relevance = replace(old, mass=mass, legible_scale=smooth[:, 1], ink=ink)
        self.maps = {name: flow.carry(one) for name, one in self.maps.items()}
        waits = flow.carry(self.waits[:, None], mode="nearest")[:, 0]
        self.waits = torch.where((waits > 0) | ~flow.trusted, waits + 1, 0.0)
        self.grey = grey.clone()
        return flow

    def fade(self) -> None:
        """Another frame has passed since the tokens looked."""
        self.maps["history"] = self.maps["history"] * FADE

    def looked(self, scale: Tensor) -> None:
        """Tokens looked, at so many pixels a sample (1, h, w): the finest counts 1."""
        detail = scale.amin((1, 2), keepdim=True) / scale
        self.maps["history"] = torch.maximum(self.maps["history"], detail[:, None])

    def overdue(self) -> bool:
        """Whether enough waits to be looked at again (reads two numbers)."""
        assert self.waits is not None
        share, longest = torch.stack([(self.waits > 0).float().mean(), self.waits.amax()]).tolist()
        return share > MANY or longest >= LONG

    def look_again(self, fresh: Relevance) -> None:
        """Take what the image alone says where a cell waits; without a question, everywhere."""
        assert self.relevance is not None and self.waits is not None
        old, waiting = self.relevance, self.waits > 0
        if not old.asked:
            self.relevance = fresh
        else:
            mass = torch.where(waiting, fresh.mass, old.mass)
            self.relevance = replace(
                old,
                mass=_normalised(mass),
                legible_scale=torch.where(waiting, fresh.legible_scale, old.legible_scale),
                ink=torch.where(waiting, fresh.ink, old.ink),
            )
        self.waits = torch.zeros_like(self.waits)

    def worth(self, scale: Tensor) -> tuple[float, float]:
        """What an allocation that delivers `scale` (1, h, w) is worth on the relevance of now (reads two numbers)."""
        assert self.relevance is not None
        value, level = worth(self.relevance, scale).tolist()
        return value, level

    def cells_of(self, mask: Tensor, grid: tuple[int, int]) -> Tensor:
        """(rows, columns) of tiles → (1, h, w): whether a cell's centre lies in a marked tile."""
        at = []
        for extent, cells, most in zip(self.size, grid, tile_grid(self.size, self.tile)):
            centre = (torch.arange(cells, device=mask.device) + 0.5) * (extent / cells)
            at.append((centre / self.tile).long().clamp(max=most - 1))
        return mask[at[0][:, None], at[1]][None]


def worth(relevance: Relevance, scale: Tensor) -> Tensor:
    """What an allocation that delivers `scale` (1, h, w) is worth.

    returns (2,): its expected value, 0 to 1, and the level, log2 of pixels a sample, at which what matters is seen on
            average: where everything is coarse enough to be made out anyway, only the latter tells
    """
    level = scale.clamp(max=float(max(relevance.size))).log2()
    value = relevance.mass * legibility(relevance.legible_scale, scale)
    return torch.stack([value.sum(), (relevance.mass * level).sum()])


def _normalised(mass: Tensor) -> Tensor:
    """Summing to 1; nothing where there is nothing."""
    return mass / mass.sum((1, 2), keepdim=True).clamp(min=1e-30)
