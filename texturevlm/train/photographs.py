"""Photographs with object boxes as a task reads them: channels at every candidate spot, and where the objects are.

All photographs are laid on one square, whatever their shape: shares of area, and so overlaps, do not change when an
image is stretched, and a batch needs one lattice only. The channels are read from the photograph as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.registry import PRESETS
from texturevlm.evaluate.data import Sample, load
from texturevlm.ops.lookup import lookup
from texturevlm.relevance import image_maps
from texturevlm.progress import Progress
from texturevlm.train.cache import cached, channel_texture, code_digest, file_digest
from texturevlm.train.raster import box_shares
from texturevlm.train.tiles import Tiles
from texturevlm.types import Texture

SQUARE = 512  # the side of the square that photographs are laid on
CHANNELS = PRESETS["mvp"]
FINEST, LEVELS = 2, 7  # texels of 4 to 256 pixels
MAP = 64  # cells along the square's side that salience is kept on
RASTER = 32  # cells along the square's side on which overlap is learned

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Photographs:
    """M photographs, N candidates each.

    channels: (M, N, LEVELS, 13), read at the candidate's centre, finest level first
    standing: (M, MAP, MAP), the salience that tokens go by without learning
    objects:  (M, RASTER, RASTER), the share of each cell that lies in some object's box
    boxes:    of the objects, in pixels of the square
    """

    channels: Tensor
    standing: Tensor
    objects: Tensor
    boxes: tuple[tuple[Box, ...], ...]

    def __len__(self) -> int:
        return len(self.channels)

    def salience(self, grids: Sequence[int]) -> Tensor:
        """(M, N): the salience of the tiles of `lattice(grids)`, each grid by itself summing to 1."""
        pooled = [functional.adaptive_avg_pool2d(self.standing[:, None], (grid, grid)).flatten(1) for grid in grids]
        return torch.cat([one / one.sum(1, keepdim=True) for one in pooled], 1)


def lattice(grids: Sequence[int], *, patch: int = 32) -> Tiles:
    """The candidates: grid × grid spots of the square for each of the grids, which are given coarse before fine."""
    if list(grids) != sorted(set(grids)):
        raise ValueError(f"lattice: grids must be different and coarse before fine, got {tuple(grids)}")
    return Tiles.lattice((SQUARE, SQUARE), patch=patch, sides=[SQUARE / grid for grid in grids])


def photographs(data: Path, split: str, tiles: Tiles, cache: Path, *, limit: int | None = None) -> Photographs:
    """The photographs of a split that have objects; `limit` of them, evenly spread."""
    found = list({sample.image: sample for sample in load(data, split=split, located=True).samples}.values())
    if limit is not None and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    progress = Progress(len(found), f"{split} photographs")
    rows = []
    for sample in found:
        rows.append(_read(sample, tiles, cache))
        progress.step()
    channels, standing = (torch.stack([row[name] for row in rows]) for name in ("channels", "standing"))
    boxes = tuple(_on_square(sample) for sample in found)
    shares = [box_shares(torch.tensor(one), (SQUARE, SQUARE), (RASTER, RASTER)) for one in boxes]
    return Photographs(channels, standing, torch.stack(shares), boxes)


def _read(sample: Sample, tiles: Tiles, cache: Path) -> dict[str, Tensor]:
    """What is known at each candidate of a photograph; kept, since it is the same for every run."""

    def make() -> dict[str, Tensor]:
        texture = channel_texture(sample.image, CHANNELS, cache, first=FINEST)
        return {"channels": read_channels(texture, tiles)[0], "standing": _standing(sample.image)}

    place = ",".join(f"{number:g}" for number in tiles.centre.flatten().tolist())
    key = [file_digest(sample.image), ",".join(CHANNELS), f"{FINEST}+{LEVELS}", place, code_digest(), "candidates"]
    return cached(cache, key, make)


def read_channels(texture: Texture, tiles: Tiles) -> Tensor:
    """(B, N, LEVELS, C): the texture's channels at each tile's centre, on each of its first levels."""
    height, width = texture.levels[0].shape[2:]
    points = tiles.centre * torch.tensor([width / tiles.size[1], height / tiles.size[0]])
    every = points.repeat_interleave(LEVELS, 0).expand(texture.batch, -1, -1)
    lod = torch.arange(LEVELS).float().repeat(len(points)).expand(texture.batch, -1)
    return lookup(list(texture.levels), every, lod).view(texture.batch, len(points), LEVELS, -1)


def _standing(image: Path) -> Tensor:
    """(MAP, MAP): the salience of an image, on the square."""
    return functional.adaptive_avg_pool2d(image_maps(Texture.open(image)).salience[:, None], (MAP, MAP))[0, 0]


def _on_square(sample: Sample) -> tuple[Box, ...]:
    across, down = SQUARE / sample.size[1], SQUARE / sample.size[0]
    return tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in sample.objects)
