"""Texture + Allocation → views: the chosen patches of one image, or of one moment of a video, in reading order.

Here unused slots are dropped and patches are sampled. Rotated footprints arrive upright, at their places in the upright
frame of the page (upright.py). This reads values on the host: the number of tokens decides the length of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from texturevlm.frame import QUARTER, turn_vectors, upright_size, within
from texturevlm.sampling import sample
from texturevlm.types import COLOURS, Allocation, Patches, Texture
from texturevlm.vlm.prompts import PromptImage

LEVELS = ("joint", "apart", "causal")
COLUMNS = ("pixels", "centre", "step", "slot", "moment", "weight")


@dataclass(frozen=True, eq=False)
class View:
    """n tokens that stand together in a prompt.

    pixels:  (n, T, 3, P, P), 0 to 1; T moments in time, 1 for a still image
    centre:  (n, 2), x then y in level-0 pixels, in the upright frame of the image
    step:    (n, 2), level-0 pixels per sample along x and along y
    slot:    (n,), where each token stood in the allocation
    moment:  (n,), the frame a token belongs to; 0 for a still image
    weight:  (n,), weight of each token
    begins:  (n,), whether a token begins a new segment: tokens attend to one another within a segment
    size:    (height, width) of the image, or of its upright frame
    video:   whether it is part of a video
    grid:    rows and columns, if the view is an ordinary image by itself, at the model's own positions
    causal:  whether a segment attends to those before it, too
    fps:     frames per second of its video
    seconds: (n,), when the frames of each token begin; None: as its moment and fps say
    """

    pixels: Tensor
    centre: Tensor
    step: Tensor
    slot: Tensor
    moment: Tensor
    weight: Tensor
    begins: Tensor
    size: tuple[int, int]
    video: bool = False
    grid: tuple[int, int] | None = None
    causal: bool = False
    fps: float = 2.0
    seconds: Tensor | None = None

    def __len__(self) -> int:
        return self.centre.shape[0]

    def part(self, chosen: Tensor | slice) -> View:
        """A part of the tokens; the first one begins a segment."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        begins = self.begins[chosen].clone()
        begins[:1] = True
        seconds = None if self.seconds is None else self.seconds[chosen]
        return replace(self, **columns, begins=begins, seconds=seconds)

    def times(self, fps: float) -> Tensor:
        """(n,): when the frames of each token begin, in seconds, if frames are at this rate."""
        return self.moment / fps if self.seconds is None else self.seconds


def joined_views(views: Sequence[View]) -> View:
    """Views as one, in their order; each begins a segment."""
    names = (*COLUMNS, "begins", *(["seconds"] if views[0].seconds is not None else []))
    columns: Any = {name: torch.cat([getattr(view, name) for view in views]) for name in names}
    return replace(views[0], **columns)


def moment_view(
    pixels: Tensor, allocation: Allocation, *, levels: str, number: int, seconds: float, fps: float
) -> View:
    """One moment of a video whose patches are sampled already.

    pixels:     (K, T, 3, P, P), in the slots of the allocation, which is of one image
    number:     of the moment in its video
    seconds:    when it begins
    """
    empty = f"prepare: allocation must give every moment a token, got none for the one at {seconds} s"
    view = _view(allocation, pixels, levels, empty)
    moment, time = torch.full_like(view.slot, number), torch.full_like(view.weight, seconds)
    return replace(view, moment=moment, video=True, fps=fps, seconds=time)


def still_views(function: str, picture: PromptImage, side: int, *, levels: str = "joint") -> list[View]:
    """One view per image of the batch."""
    texture, allocation = picture.texture, picture.allocation
    check_readable(function, texture, allocation, side)
    if texture.batch != allocation.batch:
        raise ValueError(
            f"{function}: allocation must be for {texture.batch} images like the texture, got {allocation.batch}"
        )
    pixels = sampled(texture, allocation) if picture.pixels is None else picture.pixels
    views = []
    for image in range(allocation.batch):
        read = as_read(function, allocation.each(itemgetter(slice(image, image + 1))))
        empty = f"{function}: allocation must give every image a token, got none for image {image}"
        weight = None if picture.weight is None else picture.weight[image]
        views.append(_view(read, pixels[image].unsqueeze(1), levels, empty, weight))
    return views


def sampled(texture: Texture, allocation: Allocation) -> Tensor:
    """(B, K, 3, P, P): what a model is shown of footprints; finite in unused slots."""
    texture = _only_colours(texture)
    return _colours(sample(texture, _readable(allocation)).pixels, texture)


def sampled_view(function: str, patches: Patches, side: int, *, levels: str = "joint") -> View:
    """The view of one image whose patches are sampled already."""
    allocation, colours = patches.allocation, patches.pixels.shape[2]
    if allocation.batch != 1 or colours != 3:
        got = f"{allocation.batch} images of {colours} channels"
        raise ValueError(f"{function}: patches must be of one image in red, green and blue, got {got}")
    check_footprints(function, allocation, side)
    return _view(allocation, patches.pixels[0].unsqueeze(1), levels, f"{function}: patches must have a token, got none")


def video_view(function: str, picture: PromptImage, side: int, *, levels: str, moments: int) -> View:
    """All frames in one view: a token of frame f shows f and the frames after it, `moments` of them in all.

    picture: a texture with one image per frame, and an allocation for one sample, whose `source` says which frame
    """
    texture, allocation = picture.texture, picture.allocation
    check_readable(function, texture, allocation, side)
    if allocation.batch != 1:
        raise ValueError(f"{function}: allocation of a video must be for one sample, got {allocation.batch}")
    if picture.pixels is not None:
        raise ValueError(f"{function}: pixels are for images, got a video")
    upright, used = as_read(function, allocation), allocation.source[0, allocation.valid[0]].unique().tolist()
    if used and not 0 <= used[0] <= used[-1] < texture.batch:
        raise ValueError(f"{function}: source must be a frame from 0 to {texture.batch - 1}, got {used}")
    allocation = _readable(allocation)
    source = allocation.source[0]
    texture = _only_colours(texture)
    read = [_at_frames(texture, allocation, (source + ahead).clamp(0, texture.batch - 1)) for ahead in range(moments)]
    pixels = torch.stack([_colours(part, texture) for part in read], 1)
    empty = f"{function}: allocation must give the video a token, got none"
    view = _view(upright, pixels, levels, empty, None if picture.weight is None else picture.weight[0])
    return replace(view, moment=source[view.slot], video=True)


def _view(allocation: Allocation, pixels: Tensor, levels: str, empty: str, weight: Tensor | None = None) -> View:
    """The view of an allocation of one image. pixels, weight: by its slots; empty: the error if it uses none"""
    order, begins = _reading_order(allocation, levels)
    if len(order) == 0:
        raise ValueError(empty)
    step = torch.stack([allocation.ddx[0, order, 0], allocation.ddy[0, order, 1]], -1)
    return View(
        pixels=pixels[order],
        centre=allocation.centre[0, order],
        step=step,
        slot=order,
        moment=torch.zeros_like(order),
        weight=torch.ones_like(step[:, 0]) if weight is None else weight[order.to(weight.device)],
        begins=begins,
        size=allocation.size,
        causal=levels == "causal",
    )


def check_readable(function: str, texture: Texture, allocation: Allocation, side: int) -> None:
    """A pretrained model reads tokens of its own side, of this image; `as_read` checks the axes of footprints."""
    if texture.size != allocation.size:
        raise ValueError(
            f"{function}: allocation must be for an image of {texture.size} like the texture, got {allocation.size}"
        )
    check_footprints(function, allocation, side)


def check_footprints(function: str, allocation: Allocation, side: int) -> None:
    """Tokens of this side, upright."""
    if allocation.patch != side:
        raise ValueError(f"{function}: allocation must have patches of {side} for this model, got {allocation.patch}")


def _readable(allocation: Allocation) -> Allocation:
    """Put ordinary footprints into the unused slots, so that their contents cause no NaN in a gradient."""
    used = allocation.valid[..., None]
    along, down = (torch.tensor(axis, device=used.device) for axis in ([1.0, 0.0], [0.0, 1.0]))
    return replace(
        allocation,
        centre=allocation.centre.where(used, 0.0),
        ddx=allocation.ddx.where(used, along.to(allocation.ddx)),
        ddy=allocation.ddy.where(used, down.to(allocation.ddy)),
        source=allocation.source.where(allocation.valid, 0),
    )


def _reading_order(allocation: Allocation, levels: str) -> tuple[Tensor, Tensor]:
    """Used slots by frame, coarse before fine unless levels are joint, then by row; and which begin a segment."""
    order = allocation.valid[0].nonzero()[:, 0]
    scale = -allocation.level[0].round() if levels != "joint" else torch.zeros_like(allocation.score[0])
    centre = allocation.centre[0].detach()
    for key in (centre[:, 0], centre[:, 1], scale, allocation.source[0]):
        order = order[key[order].argsort(stable=True)]
    group = torch.stack([allocation.source[0, order].float(), scale[order].float()], -1)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[1:] = (group[1:] != group[:-1]).any(-1)
    return order, begins


def _at_frames(texture: Texture, allocation: Allocation, frame: Tensor) -> Tensor:
    """Each footprint sampled from a frame of its own: (K, C, P, P)."""
    frames, slots = frame.unique(return_inverse=True)
    count = int(slots.bincount().max())
    ordered = slots.argsort(stable=True)
    first = torch.cat([slots.new_zeros(1), slots.bincount().cumsum(0)[:-1]])
    place = torch.empty_like(slots)
    place[ordered] = torch.arange(len(slots), device=slots.device) - first[slots[ordered]]

    def by_frame(column: Tensor) -> Tensor:
        table = column.new_zeros(len(frames), count, *column.shape[2:])
        table[slots, place] = column[0]
        return table

    some = replace(texture, levels=tuple(level[frames] for level in texture.levels), resident=None)
    return sample(some, allocation.each(by_frame)).pixels[slots, place]


def _only_colours(texture: Texture) -> Texture:
    """Drop the channels that a model does not read, unless the texture units hold all of them anyway."""
    if texture.resident is not None or len(texture.names) <= 3 or not set(COLOURS) <= set(texture.names):
        return texture
    chosen = [texture.names.index(name) for name in COLOURS]
    reduce = tuple(texture.reduce[index] for index in chosen)
    return replace(texture, levels=tuple(level[:, chosen] for level in texture.levels), names=COLOURS, reduce=reduce)


def _colours(pixels: Tensor, texture: Texture) -> Tensor:
    """(..., K, C, P, P) → (..., K, 3, P, P)."""
    if set(COLOURS) <= set(texture.names):
        return pixels[..., [texture.names.index(name) for name in COLOURS], :, :]
    if len(texture.names) == 1:
        return pixels.expand(*pixels.shape[:-3], 3, -1, -1)
    raise ValueError(f"prepare: texture must have {', '.join(COLOURS)}, or one channel, got {', '.join(texture.names)}")


def rectangles(function: str, view: View, side: int) -> list[View]:
    """A view cut into grids of one scale each: crops that are ordinary images.

    Tokens of one scale whose boxes touch make a grid; every grid must be a full rectangle.
    """
    found = []
    for step in view.step.unique(dim=0).flip(0):
        same = (view.step == step).all(-1).nonzero()[:, 0]
        cell = (view.centre[same].detach() / (step * side) - 0.5).double().cpu()
        for members in _connected(cell):
            place = (cell[members] - cell[members].amin(0)).round().long()
            columns, rows = (place.amax(0) + 1).tolist()
            if len(members) != rows * columns:
                raise ValueError(
                    f"{function}: coordinates='crops' needs tokens that fill rectangles, got {len(members)} tokens of "
                    f"scale {step.tolist()} in a rectangle of {rows}×{columns}"
                )
            raster = members[(place[:, 1] * columns + place[:, 0]).argsort()]
            found.append(replace(view.part(same[raster.to(same.device)]), grid=(rows, columns)))
    return found


def _connected(cell: Tensor) -> list[Tensor]:
    """Groups of cells (n, 2) that touch side by side, each as indices; the order of the first member."""
    touching = ((cell[:, None] - cell[None]).abs().sum(-1) - 1).abs() < 1e-3
    label = torch.arange(len(cell))
    while True:
        lowest = torch.where(touching, label[None], label[:, None]).amin(1).minimum(label)
        if torch.equal(lowest, label):
            break
        label = lowest
    return [(label == number).nonzero()[:, 0] for number in label.unique()]


ROUNDED = 10  # parts of a degree that angles of footprints are compared by
_SQUARE = 1e-3  # how far the axes of a readable footprint may be from perpendicular, as a cosine
_NEAR = 0.75  # of the sum of two sides: tokens that are no further apart are neighbours, also at a corner


def as_read(function: str, allocation: Allocation) -> Allocation:
    """Where a model places the tokens: upright, in the upright frame of the angle that most of their area has.

    Neighbours of another angle, such as those of a stamp, are turned upright together, about their middle: its lines
    arrive as lines, and its middle at its place in that frame. Upright allocations are returned as they are. Reads
    values, so it waits for a GPU.
    """
    angles = {
        reading_angle(function, allocation.each(itemgetter(slice(image, image + 1))))
        for image in range(allocation.batch)
    }
    if len(angles) > 1:
        raise ValueError(f"{function}: allocation must have one angle for all images of a batch, got {len(angles)}")
    if (angle := angles.pop()) is None:
        return allocation
    middle = allocation.centre.new_tensor([allocation.size[1], allocation.size[0]]) / 2
    along, down = (axis.norm(dim=-1) for axis in (allocation.ddx, allocation.ddy))
    upright = replace(
        allocation,
        centre=turn_vectors(allocation.centre - middle, -angle),
        ddx=torch.stack([along, torch.zeros_like(along)], -1),
        ddy=torch.stack([torch.zeros_like(down), down], -1),
    )
    height, width = upright_size(allocation.size, angle)
    upright = _groups_upright(allocation, upright, angle, (width, height))
    low, high = -middle.new_tensor([width, height]) / 2, middle.new_tensor([width, height]) / 2
    if angle % QUARTER:  # blank corners have no tokens
        boxes = upright.boxes[upright.valid].detach()
        low, high = low.maximum(boxes[:, :2].amin(0)).floor(), high.minimum(boxes[:, 2:].amax(0)).ceil()
    columns, rows = (max(1, round(side)) for side in (high - low).tolist())
    return replace(upright, centre=upright.centre - low, size=(rows, columns))


def _groups_upright(allocation: Allocation, upright: Allocation, angle: float, extent: tuple[int, int]) -> Allocation:
    """Turn each group of neighbours with an angle of their own about its middle; it stays inside the frame.

    upright: the tokens at their places from the middle of the frame of `angle`, which has this extent (x, y)
    """
    ddx = allocation.ddx.detach().double().cpu()
    own = torch.rad2deg(torch.atan2(ddx[..., 1], ddx[..., 0])) - angle
    steps = ((own + 180).remainder(360) - 180).mul(ROUNDED).round()
    others = allocation.valid.cpu() & (steps != 0)
    centre, border = upright.centre.clone(), upright.centre.new_tensor(extent) / 2
    half = torch.stack([upright.ddx[..., 0], upright.ddy[..., 1]], -1) * (upright.patch / 2)
    for image in others.any(1).nonzero()[:, 0].tolist():
        for members in _neighbours(centre[image], half[image], steps[image], others[image]):
            places, around = centre[image, members], half[image, members]
            middle = places.mean(0)
            places = middle + turn_vectors(places - middle, -float(steps[image, members[0]]) / ROUNDED)
            below = (-border - (places - around).amin(0)).clamp(min=0)
            above = ((places + around).amax(0) - border).clamp(min=0)
            centre[image, members] = places + (below - above)
    return replace(upright, centre=centre)


def _neighbours(centre: Tensor, half: Tensor, steps: Tensor, marked: Tensor) -> list[list[int]]:
    """The marked tokens of one image, by angle and nearness. centre, half: (K, 2); steps, marked: (K,)"""
    centre, side = centre.detach().cpu(), half.detach().cpu().amax(-1) * 2
    near = torch.cdist(centre, centre) <= _NEAR * (side[:, None] + side)
    near &= (steps[:, None] == steps) & marked
    left, found = set(marked.nonzero()[:, 0].tolist()), []
    while left:
        group = reached = {left.pop()}
        while reached:
            reached = set(near[sorted(reached)].any(0).nonzero()[:, 0].tolist()) & left
            left -= reached
            group = group | reached
        found.append(sorted(group))
    return found


def reading_angle(function: str, allocation: Allocation) -> float | None:
    """The angle that most of the area of the used footprints has; None if all of them are upright."""
    used = allocation.valid
    if bool((allocation.upright | ~used).all()):
        return None
    ddx, ddy = (axis[used].detach().double().cpu() for axis in (allocation.ddx, allocation.ddy))
    lengths = ddx.norm(dim=-1) * ddy.norm(dim=-1)
    mirrored = ddx[:, 0] * ddy[:, 1] - ddx[:, 1] * ddy[:, 0] <= 0
    slanted = (ddx * ddy).sum(-1).abs() > _SQUARE * lengths
    if bool((mirrored | slanted).any()):
        raise ValueError(
            f"{function}: allocation must have footprints with perpendicular axes, upright or rotated, since a "
            f"pretrained model cannot read mirrored or slanted ones, got {int((mirrored | slanted).sum())} of those"
        )
    angles = torch.rad2deg(torch.atan2(ddx[:, 1], ddx[:, 0]))
    steps, group = (angles * ROUNDED).round().remainder(360 * ROUNDED).unique(return_inverse=True)
    cover = ddx.abs().sum(-1) / ddx.norm(dim=-1)  # footprints that follow a region's text are so much longer
    most = torch.zeros(len(steps), dtype=torch.float64).index_add_(0, group, lengths / cover.square()).argmax()
    return within(float(steps[most]) / ROUNDED)
