"""The types that flow through texturevlm: a Texture is sampled by an Allocation into Patches.

They are frozen. Constructors check shapes, dtypes and devices. Values are checked only where data enters (image.py,
from_json), so that nothing on the GPU path waits.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm import image as images
from texturevlm.check import check_count, check_floating, check_shapes, check_size
from texturevlm.ops import DeviceTexture, channel_reductions, check_pyramid, level_extents, mipmap, update_region

if TYPE_CHECKING:
    from texturevlm.virtual.pages import VirtualPages

COLOURS = ("red", "green", "blue")
COLUMNS = ("centre", "ddx", "ddy", "score", "valid", "source")  # the tensors of an Allocation
WRITTEN_COLUMNS = ("centre", "ddx", "ddy", "score", "source")  # those that JSON has for every used slot
MAX_TOKENS = 1 << 24  # the largest budget that from_json accepts
EDGE = 1e-3  # tolerance in pixels: rounding may move the edge of a footprint by this much


@dataclass(frozen=True, eq=False)
class Texture:
    """An image, or a batch of one size, with its channels and its mip levels.

    levels:   finest first, each (B, C, H_l, W_l); or an image: anything that `Texture.open` takes
    names:    names of the channels
    size:     (height, width) of the image, whose pixels are the unit of every position. The levels may start coarser
              than the image (an expensive channel need not be made at full resolution)
    reduce:   how each channel shrinks: mean, max, min or nearest
    resident: the same levels in the texture units of a GPU, once `on_device` has copied them there
    pages:    what is finer than `levels`, read by pages when it is sampled, of an image too large for memory
    """

    levels: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    reduce: tuple[str, ...] = ()
    resident: DeviceTexture | None = None
    pages: VirtualPages | None = None

    def __post_init__(self) -> None:
        levels: Any = self.levels
        if not isinstance(levels, (list, tuple)):
            whole = isinstance(levels, Tensor) and levels.dim() == 4 and levels.is_floating_point()
            levels = (levels if whole else images.to_tensor(levels),)  # a level is not checked for NaN: nothing waits
        object.__setattr__(self, "levels", tuple(levels))
        check_pyramid("Texture", self.levels)
        channels, height, width = self.levels[0].shape[1:]
        names = tuple(self.names) or default_names(channels)
        if len(names) != channels or len(set(names)) != channels:
            raise ValueError(f"Texture: names must be {channels} different names, one per channel, got {names}")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "reduce", channel_reductions("Texture", self.reduce or "mean", channels))
        size = check_size("Texture", (height, width) if self.size == (0, 0) else self.size)
        if (height, width) not in level_extents(*size):
            raise ValueError(f"Texture: levels[0] must be a level of an image of {size}, got {(height, width)}")
        object.__setattr__(self, "size", size)
        finest = tuple(self.levels[0].shape)
        if self.resident is not None and self.resident.shape != finest:
            raise ValueError(f"Texture: resident must hold {finest} like levels[0], got {self.resident.shape}")

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:4]) + (" …" if len(self.names) > 4 else "")
        return (
            f"Texture({self.batch} × {self.size[0]}×{self.size[1]}, {len(self.names)} channels ({shown}), "
            f"{len(self.levels)} levels, {self.device})"
        )

    @classmethod
    def open(cls, source: images.ImageLike, *, device: torch.device | str | None = None) -> Texture:
        """Read an image: a path, a URL, bytes, a PIL image, an array (H, W[, C]) or a tensor ([B,] C, H, W).

        returns a texture of level 0 alone, values 0 to 1; of a large file with levels and pages (a slide, a map, what
                `texturevlm pyramid` writes) the coarse levels, and `pages` for the others
        """
        if isinstance(source, (str, os.PathLike)):
            from texturevlm.virtual.opening import open_if_paged

            if (paged := open_if_paged(source, device=device)) is not None:
                return paged
        return cls((images.to_tensor(source, device),))

    def mipmapped(self, levels: int | None = None) -> Texture:
        """Return the texture with its mip levels, down to 1×1 or `levels` of them; itself if it has as many."""
        if levels is not None:
            check_count("Texture.mipmapped", "levels", levels, 1)
        height, width = self.levels[0].shape[2:]
        wanted = len(level_extents(height, width, levels))
        if wanted <= len(self.levels):
            return self
        return replace(self, levels=tuple(mipmap(self.levels[0], levels=levels, reduce=self.reduce)), resident=None)

    def generate_mipmaps(self, levels: int | None = None) -> Texture:
        """The same as `mipmapped`."""
        return self.mipmapped(levels)

    def sample_foveated(self, *, fixation: tuple[float, float] | Tensor, **options: Any) -> Patches:
        """Show the whole image in `budget` patches, finest at the fixation; see `texturevlm.sample_foveated`."""
        from texturevlm.sampling import sample_foveated

        return sample_foveated(self, fixation=fixation, **options)

    def on_device(self, *, half: bool | None = None) -> Texture:
        """Copy the levels into a hardware texture (CUDA only), which every later sample without gradients reads.

        half: whether texels are fp16; by default they are, unless a channel holds labels
        Level 0 may be changed in place afterwards: `update_region` then refreshes what the change touches.
        """
        return replace(self, resident=DeviceTexture(self.levels, half=half, nearest=self.nearest))

    def update_region(self, boxes: Tensor) -> None:
        """After rectangles of level 0 were changed in place, refresh what they touch, also in the texture units.

        boxes: (B, N, 4) whole numbers, xyxy in texels of level 0; see `ops.update_region`
        """
        update_region(self.levels, boxes, reduce=self.reduce)
        if self.resident is not None:
            self.resident.fill(self.levels, boxes)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Texture:
        """Return the texture on another device or in another dtype."""
        moved = tuple(level.to(device=device, dtype=dtype) for level in self.levels)
        if moved[0] is self.levels[0]:
            return self
        pages = None if self.pages is None else self.pages.to(moved[0].device)
        return replace(self, levels=moved, resident=None, pages=pages)

    def split(self) -> list[Texture]:
        """The images of a batch, one texture each."""
        singles = [slice(index, index + 1) for index in range(self.batch)]
        return [replace(self, levels=tuple(level[one] for level in self.levels), resident=None) for one in singles]

    def channel(self, name: str) -> Tensor:
        """Level 0 of one channel, (B, H, W)."""
        if name not in self.names:
            raise ValueError(f"Texture.channel: name must be one of {', '.join(self.names)}, got {name!r}")
        return self.levels[0][:, self.names.index(name)]

    @property
    def nearest(self) -> tuple[int, ...]:
        """Indices of the channels that hold labels rather than amounts."""
        return tuple(index for index, mode in enumerate(self.reduce) if mode == "nearest")

    @property
    def batch(self) -> int:
        return self.levels[0].shape[0]

    @property
    def device(self) -> torch.device:
        return self.levels[0].device


def default_names(channels: int) -> tuple[str, ...]:
    """Names by the number of channels: red, green, blue; grey; or channel_0 and so on."""
    if channels == 3:
        return COLOURS
    return ("grey",) if channels == 1 else tuple(f"channel_{index}" for index in range(channels))


@dataclass(frozen=True, eq=False)
class Allocation:
    """Where the tokens lie: K footprints per image. K is the budget.

    centre:   (B, K, 2), x then y in level-0 pixels
    ddx, ddy: (B, K, 2), the move in the image, in level-0 pixels, of one step along the patch's own x and y axis
    score:    (B, K), the value that the allocator gave each footprint
    valid:    (B, K), whether a slot is used; used slots come first, and the others mean nothing
    source:   (B, K), the image or frame of the sample that a footprint belongs to; 0 for one image
    size:     (height, width) of the image
    patch:    side of a token in samples
    """

    centre: Tensor
    ddx: Tensor
    ddy: Tensor
    score: Tensor
    valid: Tensor
    source: Tensor
    size: tuple[int, int]
    patch: int

    def __post_init__(self) -> None:
        vectors, numbers = COLUMNS[:3], COLUMNS[3:]
        shapes = {name: (getattr(self, name), "B K 2") for name in vectors}
        check_shapes("Allocation", **shapes, **{name: (getattr(self, name), "B K") for name in numbers})
        check_floating("Allocation", centre=self.centre, ddx=self.ddx, ddy=self.ddy, score=self.score)
        if self.valid.dtype != torch.bool:
            raise TypeError(f"Allocation: valid must be torch.bool, got {self.valid.dtype}")
        if self.source.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"Allocation: source must hold whole numbers, got {self.source.dtype}")
        check_count("Allocation", "patch", self.patch, 1)
        object.__setattr__(self, "size", check_size("Allocation", self.size))

    @classmethod
    def of_boxes(cls, boxes: Tensor, size: tuple[int, int], patch: int, score: Tensor | None = None) -> Allocation:
        """Make upright footprints from boxes (B, K, 4), xyxy in level-0 pixels; every slot is used."""
        check_shapes("Allocation.of_boxes", boxes=(boxes, "B K 4"))
        low, high = boxes[..., :2], boxes[..., 2:]
        step = ((high - low) / patch).float()
        zero = torch.zeros_like(step[..., 0])
        return cls(
            centre=((low + high) / 2).float(),
            ddx=torch.stack([step[..., 0], zero], -1),
            ddy=torch.stack([zero, step[..., 1]], -1),
            score=torch.ones_like(zero) if score is None else score,
            valid=torch.ones_like(zero, dtype=torch.bool),
            source=torch.zeros_like(zero, dtype=torch.int64),
            size=size,
            patch=patch,
        )

    @property
    def batch(self) -> int:
        return self.centre.shape[0]

    @property
    def budget(self) -> int:
        return self.centre.shape[1]

    @property
    def level(self) -> Tensor:
        """(B, K): log2 of the shorter axis; 0 is the image's own resolution."""
        lengths = torch.stack([self.ddx.norm(dim=-1), self.ddy.norm(dim=-1)])
        return lengths.amin(0).log2()

    @property
    def boxes(self) -> Tensor:
        """(B, K, 4): the upright boxes around the footprints, xyxy in level-0 pixels."""
        half = (self.ddx.abs() + self.ddy.abs()) * (self.patch / 2)
        return torch.cat([self.centre - half, self.centre + half], -1)

    @property
    def area(self) -> Tensor:
        """(B, K): area of each footprint, in square level-0 pixels."""
        cross = self.ddx[..., 0] * self.ddy[..., 1] - self.ddx[..., 1] * self.ddy[..., 0]
        return cross.abs() * self.patch**2

    @property
    def upright(self) -> Tensor:
        """(B, K): whether the axes of a footprint are those of the image."""
        return (self.ddx[..., 1] == 0) & (self.ddy[..., 0] == 0) & (self.ddx[..., 0] > 0) & (self.ddy[..., 1] > 0)

    @property
    def coverage(self) -> Tensor:
        """(B,): the share of the pixel centres that lie in some used footprint. Reads values, so it waits for a GPU."""
        height, width = self.size
        covered = torch.zeros(self.batch, height, width, dtype=torch.bool)
        first, last = self.pixel_span()
        upright = self.upright.cpu()
        for image, slot in self.valid.nonzero().tolist():
            (x0, y0), (x1, y1) = first[image, slot].tolist(), last[image, slot].tolist()
            part = covered[image, y0:y1, x0:x1]
            part |= True if upright[image, slot] else self.local(image, slot, x0, y0, part.shape)[2]
        return (covered.flatten(1).sum(1).double() / (height * width)).float().to(self.centre.device)

    def pixel_span(self) -> tuple[Tensor, Tensor]:
        """(B, K, 2) twice: the first pixel (x, y) whose centre lies in the box of a footprint, and one past the last.

        Boxes that touch share an edge only up to float32 rounding, so a centre on the edge counts for both.
        """
        boxes = self.boxes.detach().double().cpu()
        low, high = boxes[..., :2] - 0.5 - EDGE, boxes[..., 2:] - 0.5 + EDGE
        return low.ceil().long().clamp(min=0), high.ceil().long().clamp(min=0)

    def local(self, image: int, slot: int, x0: int, y0: int, shape: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Pixel centres in the axes of one footprint: u and v, -1 to 1 inside it, and whether they are inside.

        x0, y0, shape: the first pixel, and the rows and columns of pixels
        """
        axes = torch.stack([self.ddx[image, slot], self.ddy[image, slot]], -1).double().cpu()
        if torch.linalg.det(axes) == 0:  # no area: nothing lies in it
            nowhere = torch.full(tuple(shape), math.inf, dtype=torch.float64)
            return nowhere, nowhere, torch.zeros(tuple(shape), dtype=torch.bool)
        rows, columns = torch.arange(y0, y0 + shape[0]) + 0.5, torch.arange(x0, x0 + shape[1]) + 0.5
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        offset = torch.stack([x, y], -1).double() - self.centre[image, slot].double().cpu()
        u, v = torch.linalg.solve(axes, offset.reshape(-1, 2).T).reshape(2, *shape) / (self.patch / 2)
        return u, v, (u.abs() <= 1) & (v.abs() <= 1)

    def to(self, device: torch.device | str) -> Allocation:
        """Return the allocation on another device."""
        return self.each(lambda column: column.to(device))

    def scaled_to(self, size: tuple[int, int]) -> Allocation:
        """The same footprints in the same image at another (height, width)."""
        if size == self.size:
            return self
        ratio = self.centre.new_tensor([size[1] / self.size[1], size[0] / self.size[0]])
        return replace(self, centre=self.centre * ratio, ddx=self.ddx * ratio, ddy=self.ddy * ratio, size=size)

    def each(self, change: Callable[[Tensor], Tensor]) -> Allocation:
        """Apply a function to each of the six tensors."""
        changed: Any = {name: change(getattr(self, name)) for name in COLUMNS}
        return replace(self, **changed)

    def to_json(self) -> str:
        """Encode the used slots: one image as an object, a batch as a list. float32 values survive exactly."""
        encoded = [self._image_to_json(image) for image in range(self.batch)]
        return json.dumps(encoded[0] if self.batch == 1 else encoded, allow_nan=False)

    def _image_to_json(self, image: int) -> dict[str, Any]:
        used = self.valid[image]
        columns = [getattr(self, name)[image][used].tolist() for name in WRITTEN_COLUMNS]
        tokens = [dict(zip(WRITTEN_COLUMNS, values)) for values in zip(*columns)]
        return {"size": list(self.size), "patch": self.patch, "budget": self.budget, "tokens": tokens}

    @classmethod
    def from_json(cls, text: str | dict[str, Any] | list[Any]) -> Allocation:
        """Read what `to_json` wrote, as text or already parsed."""
        try:
            parsed = json.loads(text) if isinstance(text, (str, bytes)) else text
        except json.JSONDecodeError as error:
            raise ValueError(f"Allocation.from_json: text must be JSON: {error}") from None
        encoded = parsed if isinstance(parsed, list) else [parsed]
        if not encoded:
            raise ValueError("Allocation.from_json: text must hold at least one image, got an empty list")
        shared = [_shared_fields(one) for one in encoded]
        if any(one != shared[0] for one in shared):
            raise ValueError(f"Allocation.from_json: a batch must share size, patch and budget, got {shared}")
        size, patch, budget = shared[0]
        empty = Allocation.of_boxes(torch.zeros(len(encoded), budget, 4), size, patch)
        found = empty.each(torch.zeros_like)
        for image, one in enumerate(encoded):
            if len(one["tokens"]) > budget:
                raise ValueError(f"Allocation.from_json: budget is {budget}, got {len(one['tokens'])} tokens")
            for slot, token in enumerate(one["tokens"]):
                for name in WRITTEN_COLUMNS:
                    column = getattr(found, name)
                    column[image, slot] = _number_or_pair(token, name, slot, column[image, slot])
                found.valid[image, slot] = True
        return found


def _shared_fields(one: Any) -> tuple[tuple[int, int], int, int]:
    """Size, patch and budget of one image."""
    wanted = "Allocation.from_json: each image must have size [h, w], patch, budget and a list of tokens"
    known = isinstance(one, dict) and all(name in one for name in ("size", "patch", "budget", "tokens"))
    if not known or not isinstance(one["size"], list) or not isinstance(one["tokens"], list):
        raise ValueError(f"{wanted}, got {one!r:.80}")
    try:
        height, width = check_size(wanted, one["size"])
        patch = check_count(wanted, "patch", one["patch"], 1)
        return (height, width), patch, check_count(wanted, "budget", one["budget"], 1, MAX_TOKENS)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _number_or_pair(token: Any, name: str, slot: int, like: Tensor) -> Tensor:
    try:
        if not like.is_floating_point() and not isinstance(token[name], int):
            raise TypeError
        value = torch.tensor(token[name], dtype=like.dtype)
    except (TypeError, KeyError, ValueError, RuntimeError):
        value = torch.empty(0)
    if value.shape != like.shape or not torch.isfinite(value).all():
        wanted = "a pair of finite numbers" if like.dim() else "a finite number"
        got = token.get(name) if isinstance(token, dict) else token
        raise ValueError(f"Allocation.from_json: tokens[{slot}] must have {name} as {wanted}, got {got!r}")
    return value


@dataclass(frozen=True, eq=False)
class Patches:
    """The pixels (B, K, C, P, P) of each token, and the allocation that they were sampled by."""

    pixels: Tensor
    allocation: Allocation

    def __post_init__(self) -> None:
        check_floating("Patches", pixels=self.pixels)
        sizes = check_shapes("Patches", pixels=(self.pixels, "B K C P P"), centre=(self.allocation.centre, "B K 2"))
        wanted, got = self.allocation.patch, sizes["P"]
        if got != wanted:
            raise ValueError(f"Patches: pixels must be patches of {wanted} like the allocation, got {got}")


def check_texture(function: str, texture: Texture) -> None:
    """Refuse an image that is not a Texture yet."""
    if not isinstance(texture, Texture):
        got = type(texture).__name__
        raise TypeError(f"{function}: texture must be a Texture (Texture.open makes one), got {got}")


def check_allocation(function: str, allocation: Allocation) -> None:
    """Refuse what is not an Allocation."""
    if not isinstance(allocation, Allocation):
        raise TypeError(f"{function}: allocation must be an Allocation, got {type(allocation).__name__}")
