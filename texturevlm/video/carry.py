"""What moves with the picture: the optical flow between two frames, and relevance that it carries between keyframes.

Flow is Lucas–Kanade, coarse to fine, a few rounds per level: the old frame is warped by the flow so far, and a further
small motion explains the remaining difference, by least squares over a window. A vector is not trusted where the warped
frame does not look like the new one, where it points outside the image, or where it is long. Plain PyTorch of static
shapes.

Relevance is scored from the question at a keyframe, then carried. With it move saliency, the fixation history (fading),
the embedding layers and a box that the user pointed at. Cells whose flow is not trusted keep the carried value until
there are enough of them; they then take the relevance that the image has without a question, until the next keyframe
asks it again. A box is carried as a whole, because a map carried cell by cell frays at its rim: it moves by the median
of the trusted vectors inside it and grows as the medians of its two sides diverge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.channels import EMBEDDING_LAYERS, box_mean
from texturevlm.ops import mipmap
from texturevlm.relevance import Relevance
from texturevlm.video.change import tiles_on_cells
from texturevlm.video.update import StreamChannels

COARSEST_SIDE = 10  # texels: the search begins at the first level whose shorter side is at most this
ROUNDS = 3  # per level
FLOW_WINDOW = 7  # texels over which the motion is assumed constant
DAMPING = 1e-4  # squared contrast below which no motion is found: flat areas keep the vector of the coarser level
MAX_STEP = 1.0  # texels that one round may add
MAX_TRUSTED = 16.0  # cells: longer vectors are not trusted
TOLERANCE = (0.02, 0.3)  # difference explained by noise, and by moving edges as a share of the local contrast
BOX_SHARE = 0.9  # of the relevance lies in the box that the user pointed at
FADE = 0.9  # of the fixation history remains after a frame
MANY, LONG = 0.02, 8  # untrusted cells are refreshed at this share of cells, or once one is this many frames old
BOX_ROUNDS = 2  # the motion is read where the box will be, which is known only after a first round
MAX_GROWTH = 0.2  # of a side, per frame
MIN_SIDE = 2.0  # cells
CARRIED_MAPS = {  # channel: the map that it shows
    "fixation_history": "history",
    "previous_saliency": "saliency",
    "previous_attention": "attention",
}
FindVectors = Callable[[Tensor, Tensor], Tensor]  # two frames as for `find_flow` → (1, 2, h, w), backward


class Flow(NamedTuple):
    """Backward flow: the new frame at x looks like the old one at x + vector."""

    vector: Tensor  # (1, 2, h, w), x then y, in cells
    trusted: Tensor  # (1, h, w) bool


def find_flow(old: Tensor, new: Tensor, *, method: str | FindVectors = "lucas_kanade") -> Flow:
    """The flow between two frames, (1, 1, h, w) each: brightness on the grid of cells. method: see FLOWS"""
    vector = (FLOWS[method] if isinstance(method, str) else method)(old, new)
    return Flow(vector, _trusted(old, new, vector))


def lucas_kanade(before: Tensor, after: Tensor) -> Tensor:
    """Coarse to fine, a few rounds per level; each level takes the best of no, the coarser and the found motion."""
    old, new = mipmap(before), mipmap(after)
    first = next((i for i, level in enumerate(new) if min(level.shape[2:]) <= COARSEST_SIDE), len(new) - 1)
    vector = new[first].new_zeros(1, 2, *new[first].shape[2:])
    for index in range(first, -1, -1):
        here = new[index].shape[2:]
        ratio = [extent / coarse for extent, coarse in zip(here, vector.shape[2:])]
        vector = functional.interpolate(vector, here, mode="bilinear")
        vector = given = torch.cat([vector[:, :1] * ratio[1], vector[:, 1:] * ratio[0]], 1)
        for _ in range(ROUNDS):
            vector = vector + _step(old[index], new[index], vector)
        vector = _best(old[index], new[index], [torch.zeros_like(given), given, box_mean(vector, 3, 3)])
    return vector


def _best(old: Tensor, new: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """For each texel the vector whose warped window differs least: undoes a search that diverged."""
    left = [box_mean((new - warp(old, vector)).abs(), FLOW_WINDOW, FLOW_WINDOW) for vector in vectors]
    which = torch.cat(left, 1).argmin(1)[:, None, None]
    return torch.stack(list(vectors), 1).gather(1, which.expand(-1, 1, 2, -1, -1))[:, 0]


def _step(old: Tensor, new: Tensor, vector: Tensor) -> Tensor:
    """The small motion that best explains the difference between the new frame and the warped old one."""
    warped = warp(old, vector)
    left = new - warped
    around = functional.pad((new + warped) / 2, (1, 1, 1, 1), mode="replicate")
    gx = (around[..., 1:-1, 2:] - around[..., 1:-1, :-2]) / 2
    gy = (around[..., 2:, 1:-1] - around[..., :-2, 1:-1]) / 2
    sums = box_mean(torch.cat([gx * gx, gy * gy, gx * gy, gx * left, gy * left], 1), FLOW_WINDOW, FLOW_WINDOW)
    xx, yy, xy, xt, yt = torch.split(sums, 1, 1)
    xx, yy = xx + DAMPING, yy + DAMPING
    both = (xx * yy - xy * xy).clamp(min=DAMPING**2)
    found = torch.cat([yy * xt - xy * yt, xx * yt - xy * xt], 1) / both
    return found.clamp(-MAX_STEP, MAX_STEP)


def warp(maps: Tensor, vector: Tensor, *, mode: str = "bilinear") -> Tensor:
    """Maps (1, C, h, w) read at x + vector (1, 2, h, w); positions outside read the edge."""
    height, width = maps.shape[2:]
    x, y = _targets(vector)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return functional.grid_sample(maps, grid, mode=mode, padding_mode="border", align_corners=False)


def _targets(vector: Tensor) -> tuple[Tensor, Tensor]:
    """x and y, (1, h, w) each, that the vectors point at."""
    y, x = (torch.arange(extent, device=vector.device, dtype=vector.dtype) for extent in vector.shape[2:])
    return x + vector[:, 0], y[:, None] + vector[:, 1]


def _trusted(old: Tensor, new: Tensor, vector: Tensor) -> Tensor:
    """(1, h, w): where the warped old frame looks like the new one, and the vector is short and points inside."""
    height, width = new.shape[2:]
    left = box_mean((new - warp(old, vector)).abs(), 3, 3)
    spread = box_mean(new.square(), 5, 5) - box_mean(new, 5, 5).square()
    alike = left <= TOLERANCE[0] + TOLERANCE[1] * spread.clamp(min=0).sqrt()
    x, y = _targets(vector)
    inside = (x > -1) & (x < width) & (y > -1) & (y < height)
    near = vector.square().sum(1) <= MAX_TRUSTED**2
    return alike[:, 0] & inside & near


FLOWS: dict[str, FindVectors] = {
    "lucas_kanade": lucas_kanade,
    "none": lambda old, new: old.new_zeros(1, 2, *old.shape[2:]),  # cells that differ are then not trusted
}


class CarriedRelevance:
    """The relevance of the held frame, and the maps that move with it, all on one grid of cells.

    relevance: of the held frame
    maps:      others, each (1, C, h, w): history; attention, once a model has answered; saliency and embedding if the
               stream keeps those channels
    feedback:  share of the relevance that lies where the attention of the model went
    box:       (4,), the box that the user pointed at, xyxy in cells
    untrusted: (1, h, w), for how many frames a cell has not been trusted; 0: it is trusted
    """

    def __init__(self, size: tuple[int, int], tile: int, method: str | FindVectors) -> None:
        self.size, self.tile, self.method = size, tile, method
        self.relevance: Relevance | None = None
        self.grey: Tensor | None = None
        self.maps: dict[str, Tensor] = {}
        self.box: Tensor | None = None
        self.untrusted: Tensor | None = None
        self.feedback = 0.0

    def restart(self, relevance: Relevance, grey: Tensor) -> None:
        """Begin at a keyframe, all cells trusted; grey: (1, 1, h, w), their brightness. The fixation history stays."""
        if self.feedback and "attention" in self.maps:
            attended = _normalised(self.maps["attention"][:, 0])
            mass = _normalised((1 - self.feedback) * relevance.mass + self.feedback * attended)
            relevance = replace(relevance, mass=mass, scorer="attention")
        self.relevance, self.grey, self.untrusted = relevance, grey.clone(), torch.zeros_like(relevance.mass)
        self.maps.setdefault("history", torch.zeros_like(relevance.mass)[:, None])

    def forget(self) -> None:
        """A cut: the maps and the box belong to the last scene."""
        self.maps, self.box = {}, None

    def point(self, box: Box) -> None:
        """Keep the box that the user pointed at, xyxy in pixels."""
        if self.relevance is None:
            raise ValueError("point: the stream must hold a frame, got none yet")
        rows, columns = self.relevance.grid
        scale = (columns / self.size[1], rows / self.size[0]) * 2
        cells = torch.tensor([edge * by for edge, by in zip(box, scale)], device=self.relevance.mass.device)
        if not box_coverage(cells, self.relevance.grid).any():
            raise ValueError(f"point: box must be xyxy and overlap the frame of {self.size}, got {box}")
        self.box = cells

    def attend(self, attention: Tensor, feedback: float) -> None:
        """Keep where the attention of a model went, (1, h', w'); it also counts as looked at."""
        if self.relevance is None:
            raise ValueError("attend: the stream must hold a frame, got none yet")
        wide = functional.interpolate(attention[:, None].to(self.relevance.mass), self.relevance.grid, mode="area")
        most = wide.amax().clamp(min=1e-30)
        self.maps["attention"], self.feedback = wide / most, feedback
        self.maps["history"] = torch.maximum(self.maps["history"], wide / most)

    def box_map(self) -> Tensor | None:
        """(1, h, w): the box that the user pointed at, where it is now; None without one."""
        if self.box is None or self.relevance is None:
            return None
        return box_coverage(self.box, self.relevance.grid)

    def move(self, grey: Tensor, mask: Tensor) -> None:
        """Carry everything to the next frame: `grey` is the brightness of its cells, `mask` its changed tiles."""
        assert self.relevance is not None and self.grey is not None and self.untrusted is not None
        found = find_flow(self.grey, grey, method=self.method)
        changed = tiles_on_cells(mask, self.tile, self.size, (grey.shape[2], grey.shape[3]))
        flow = Flow(found.vector.where(changed, 0.0), found.trusted | ~changed)
        old = self.relevance
        smooth = warp(torch.stack([old.mass, old.legible_scale], 1), flow.vector)
        mass = _normalised(smooth[:, 0])
        if self.box is not None:
            self.box = follow_box(self.box, flow)
            inside = box_coverage(self.box, old.grid)
            outside = _normalised(mass * (1 - inside))
            mass = _normalised(BOX_SHARE * _normalised(inside) + (1 - BOX_SHARE) * outside)
        ink = warp(old.ink[:, None].to(old.mass), flow.vector, mode="nearest")[:, 0] > 0.5
        self.relevance = replace(old, mass=mass, legible_scale=smooth[:, 1], ink=ink)
        self.maps["history"] = self.maps["history"] * FADE
        self.maps = {name: warp(known, flow.vector) for name, known in self.maps.items()}
        untrusted = warp(self.untrusted[:, None], flow.vector, mode="nearest")[:, 0]
        self.untrusted = torch.where((untrusted > 0) | ~flow.trusted, untrusted + 1, 0.0)
        self.grey = grey.clone()

    def add_fixations(self, scale: Tensor) -> None:
        """Tokens were placed: scale (1, h, w) in pixels per sample. The finest cell counts 1 in the history."""
        detail = scale.amin((1, 2), keepdim=True) / scale
        self.maps["history"] = torch.maximum(self.maps["history"], detail[:, None])

    def needs_refresh(self) -> bool:
        """Whether enough cells are untrusted (reads two values on the host)."""
        assert self.untrusted is not None
        share, longest = torch.stack([(self.untrusted > 0).float().mean(), self.untrusted.amax()]).tolist()
        return bool(share > MANY or longest >= LONG)

    def refresh_untrusted(self, fresh: Relevance) -> None:
        """Replace untrusted cells by relevance from the image; without a question, all cells."""
        assert self.relevance is not None and self.untrusted is not None
        old, where = self.relevance, self.untrusted > 0
        if not old.asked:
            self.relevance = fresh
        else:
            names = ("mass", "legible_scale", "ink")
            maps: Any = {name: torch.where(where, getattr(fresh, name), getattr(old, name)) for name in names}
            self.relevance = replace(old, **maps | {"mass": _normalised(maps["mass"])})
        self.untrusted = torch.zeros_like(self.untrusted)

    def channels(self, *, embeddings: bool) -> dict[str, Tensor]:
        """Channels 15 to 17, and the embeddings if wanted, as carried to this frame: (1, h, w) each, by name."""
        if self.relevance is None:
            return {}
        mass = self.relevance.mass
        found = {"previous_relevance": mass / mass.amax().clamp(min=1e-30)}
        found |= {name: self.maps[key][:, 0] for name, key in CARRIED_MAPS.items() if key in self.maps}
        if embeddings and "embedding" in self.maps:
            found |= dict(zip(EMBEDDING_LAYERS, self.maps["embedding"].unbind(1)))
        return found

    def read_channels(self, channels: StreamChannels) -> None:
        """Take the channels of this frame that are carried to the next ones."""
        assert self.relevance is not None
        for key, names in (("saliency", ("saliency",)), ("embedding", EMBEDDING_LAYERS)):
            if set(names) <= set(channels.names):
                self.maps[key] = channels.on_grid(names, self.relevance.grid)


def follow_box(box: Tensor, flow: Flow) -> Tensor:
    """A box (4,), xyxy in cells, moved to the next frame. Reads no value on the host."""
    vector, trusted = flow.vector[0], flow.trusted[0]
    height, width = trusted.shape
    x = torch.arange(width, device=box.device) + 0.5
    y = (torch.arange(height, device=box.device) + 0.5)[:, None]
    centre, extent = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    moved, grown = centre, extent
    for _ in range(BOX_ROUNDS):
        inside = trusted & ((x - moved[0]).abs() < grown[0]) & ((y - moved[1]).abs() < grown[1])
        shift = torch.stack([_median(vector[0], inside), _median(vector[1], inside)])
        across = _median(vector[0], inside & (x > moved[0])) - _median(vector[0], inside & (x < moved[0]))
        down = _median(vector[1], inside & (y > moved[1])) - _median(vector[1], inside & (y < moved[1]))
        spread = -(across / grown[0] + down / grown[1]) / 2  # in backward flow a growing object converges
        moved, grown = centre - shift, extent * (1 + spread.clamp(-MAX_GROWTH, MAX_GROWTH))
        grown = grown.clamp(min=MIN_SIDE / 2)
    return torch.cat([moved - grown, moved + grown])


def box_coverage(box: Tensor, grid: tuple[int, int]) -> Tensor:
    """(1, h, w): the share of each cell that lies in a box (4,), xyxy in cells."""
    rows, columns = (torch.arange(extent, device=box.device) for extent in grid)
    across = (torch.minimum(box[2], columns + 1.0) - torch.maximum(box[0], columns.float())).clamp(0, 1)
    down = (torch.minimum(box[3], rows + 1.0) - torch.maximum(box[1], rows.float())).clamp(0, 1)
    return (down[:, None] * across)[None]


def _median(values: Tensor, where: Tensor) -> Tensor:
    """The median of the selected values; 0 if none is selected."""
    return values.where(where, torch.nan).flatten().nanmedian().nan_to_num(0.0)


def _normalised(mass: Tensor) -> Tensor:
    """Scaled to sum to 1; zero stays zero."""
    return mass / mass.sum((1, 2), keepdim=True).clamp(min=1e-30)
