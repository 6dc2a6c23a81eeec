"""The clips that `texturevlm bench video` runs on: three made here, and those of the folder $TEXTUREVLM_VIDEOS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.video.sources import ARRAYS, open_video

FOLDER = "TEXTUREVLM_VIDEOS"
FILES = (".mp4", ".avi", ".webm", ".mkv", *ARRAYS)
TILE, SHARE = 32, 0.1
NOISE = 2 / 255  # of the made cameras' sensor


@dataclass(frozen=True)
class Clip:
    """name, frames (1, 3, H, W) on the device, and what they are for: tenth, nothing, everything, or a file."""

    name: str
    frames: list[Tensor]
    kind: str

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.frames[0].shape[2:]
        return height, width

    @property
    def device(self) -> torch.device:
        return self.frames[0].device


def clips(size: tuple[int, int], device: str, count: int) -> Iterator[Clip]:
    """One after another, so that only one is in memory; `count` frames of each at most."""
    extent = f"{size[1]}×{size[0]}"
    yield Clip(f"still camera, a tenth changes, {extent}", list(_tenth(size, device, count)), "tenth")
    ground = _ground(size, device)
    still = [(ground + NOISE * torch.randn_like(ground)).clamp_(0, 1) for _ in range(count)]
    yield Clip(f"still camera, nothing changes, {extent}", still, "nothing")
    past = [ground.roll((13 * index, 29 * index), (2, 3)) for index in range(count)]
    yield Clip(f"everything changes, {extent}", past, "everything")
    if FOLDER in os.environ:
        yield from _files(Path(os.environ[FOLDER]), size, device, count)


def _tenth(size: tuple[int, int], device: str, count: int) -> Iterator[Tensor]:
    """A still camera: in one block, a tenth of the tiles, the picture runs past; the rest is noise."""
    ground = _ground(size, device)
    height, width = (round(extent * SHARE**0.5 / TILE) * TILE for extent in size)
    top, left = (round(extent / 3 / TILE) * TILE for extent in size)
    for index in range(count):
        frame = ground + NOISE * torch.randn_like(ground)
        inside = frame[..., top : top + height, left : left + width]
        inside.copy_(inside.roll((7 * index, 11 * index), (2, 3)).flip(3))
        yield frame.clamp_(0, 1)


def _ground(size: tuple[int, int], device: str) -> Tensor:
    """Smooth noise of many scales, as natural images have: (1, 3, H, W), 0.1 to 0.9."""
    image = torch.zeros(1, 3, *size, device=device)
    for cells in (4, 16, 64, 256):
        image += functional.interpolate(torch.rand(1, 3, cells, cells, device=device), size, mode="bilinear") / 4
    return image * 0.8 + 0.1


def _files(folder: Path, size: tuple[int, int], device: str, count: int) -> Iterator[Clip]:
    """Videos, folders of images and arrays, enlarged."""
    for path in sorted(folder.iterdir()):
        if not path.is_dir() and path.suffix.lower() not in FILES:
            continue
        frames: list[Tensor] = []
        native = ""
        for frame in open_video(path):
            image = frame.image[None].to(device).float() / 255
            native = f"{image.shape[3]}×{image.shape[2]}"
            frames.append(functional.interpolate(image, size, mode="bicubic").clamp_(0, 1))
            if len(frames) == count:
                break
        yield Clip(f"{path.name} ({native} enlarged to {size[1]}×{size[0]})", frames, "file")
