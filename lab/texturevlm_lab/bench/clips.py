"""The clips of `bench video`: made here, and those of the folder $TEXTUREVLM_VIDEOS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.video import ARRAYS, open_video
from texturevlm_lab.bench.pictures import smooth_noise

FOLDER = "TEXTUREVLM_VIDEOS"
FILES = (".mp4", ".avi", ".webm", ".mkv", *ARRAYS)
TILE, CHANGED_SHARE = 32, 0.1
SENSOR_NOISE = 2 / 255  # of the made cameras


class Clip(NamedTuple):
    """name, frames (1, 3, H, W) on the device, and what they are for: tenth, nothing, everything, or a file."""

    name: str
    frames: list[Tensor]
    kind: str


def clips(size: tuple[int, int], device: str, count: int) -> Iterator[Clip]:
    """One after another, so that only one is in memory; `count` frames of each at most."""
    extent = f"{size[1]}×{size[0]}"
    yield Clip(f"still camera, a tenth changes, {extent}", list(_tenth(size, device, count)), "tenth")
    ground = _ground(size, device)
    yield Clip(
        f"still camera, nothing changes, {extent}", [_noisy(ground).clamp_(0, 1) for _ in range(count)], "nothing"
    )
    past = [ground.roll((13 * index, 29 * index), (2, 3)) for index in range(count)]
    yield Clip(f"everything changes, {extent}", past, "everything")
    if FOLDER not in os.environ:
        return
    for path in sorted(Path(os.environ[FOLDER]).iterdir()):  # videos, folders of images and arrays, enlarged
        if path.is_dir() or path.suffix.lower() in FILES:
            found = [frame.image[None].to(device).float() / 255 for frame in islice(open_video(path), count)]
            native = f"{found[0].shape[3]}×{found[0].shape[2]}" if found else ""
            frames = [functional.interpolate(image, size, mode="bicubic").clamp_(0, 1) for image in found]
            yield Clip(f"{path.name} ({native} enlarged to {extent})", frames, "file")


def _tenth(size: tuple[int, int], device: str, count: int) -> Iterator[Tensor]:
    """A still camera: in one block, a tenth of the tiles, the picture runs past; the rest is noise."""
    ground = _ground(size, device)
    height, width = (round(extent * CHANGED_SHARE**0.5 / TILE) * TILE for extent in size)
    top, left = (round(extent / 3 / TILE) * TILE for extent in size)
    for index in range(count):
        frame = _noisy(ground)
        inside = frame[..., top : top + height, left : left + width]
        inside.copy_(inside.roll((7 * index, 11 * index), (2, 3)).flip(3))
        yield frame.clamp_(0, 1)


def _ground(size: tuple[int, int], device: str) -> Tensor:
    return smooth_noise(size, device) * 0.8 + 0.1


def _noisy(ground: Tensor) -> Tensor:
    return ground + SENSOR_NOISE * torch.randn_like(ground)
