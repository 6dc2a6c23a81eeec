"""Where frames come from: a folder of images, an array, a list; `decoding.py` reads files, cameras and networks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.image import to_tensor
from texturevlm.paths import IMAGE_SUFFIXES
from texturevlm.video.decoding import file_source, is_stream, stream_source
from texturevlm.video.frames import Frame, FrameSource, Sampler

ARRAYS = (".npy", ".pt")
LIVE_SECONDS = 10.0  # of a live source, unless the caller says otherwise


def open_video(
    source: Any, *, fps: float | None = None, source_fps: float | None = None, seconds: float | None = None
) -> FrameSource:
    """Frames with their times.

    source:     a video file; a camera (camera:0, /dev/video0) or a network stream (rtsp://, http:// …); a folder of
                images in the order of their names; an array (N, H, W, 3), a tensor (N, 3, H, W), or a file of one: .npy
                or .pt; a list of anything that `Texture.open` takes
    fps:        at most so many frames per second are given; None: all
    source_fps: of a folder, an array or a list, which has no times; by default `fps`, so that all are given, or 25
    seconds:    the first so many; of a live source 10 unless it says otherwise, math.inf for all
    """
    for name, value in (("fps", fps), ("source_fps", source_fps), ("seconds", seconds)):
        if value is not None and not (
            isinstance(value, (int, float)) and value > 0 and (name == "seconds" or value < math.inf)
        ):
            raise ValueError(f"open_video: {name} must be above 0, got {value!r}")
    found = source if isinstance(source, FrameSource) else _opened(source, fps, source_fps or fps or 25.0)
    if seconds is None and not found.live:
        return found
    limit = LIVE_SECONDS if seconds is None else seconds

    def read(notes: list[str]) -> Iterator[Frame]:
        return takewhile(lambda frame: frame.time < limit, found.read(notes))

    return replace(found, read=read, count=None, notes=[])


def _opened(source: Any, fps: float | None, own_fps: float) -> FrameSource:
    if isinstance(source, (np.ndarray, Tensor)):
        if source.ndim != 4 or len(source) == 0:
            raise ValueError(f"open_video: an array must be frames, (N, H, W, 3), got {tuple(source.shape)}")
        return _image_source("the array", source, own_fps, fps)
    if not isinstance(source, (str, Path)):
        return _image_source("the list", list(source), own_fps, fps)
    if is_stream(source):
        return stream_source(str(source), fps)
    path = Path(source)
    if path.is_dir():
        files = sorted((one for one in path.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES), key=_natural)
        if not files:
            raise ValueError(f"open_video: {path} must hold images ({' '.join(sorted(IMAGE_SUFFIXES))}), got none")
        return _image_source(str(path), files, own_fps, fps)
    if not path.exists():
        raise FileNotFoundError(f"open_video: no such file: {path}")
    if path.suffix.lower() in ARRAYS:
        return _image_source(str(path), _load_array(path), own_fps, fps)
    return file_source(path, fps)


def _load_array(path: Path) -> Any:
    """The frames of an array in a file, each an image by itself; nothing in the file is executed."""
    try:
        if path.suffix.lower() == ".npy":
            found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file shows as many kinds of error
        raise ValueError(f"open_video: {path} cannot be read as an array: {error}") from None
    shape = tuple(getattr(found, "shape", ()))
    if len(shape) != 4 or shape[0] == 0:
        wanted = "(N, H, W, 3)" if path.suffix.lower() == ".npy" else "(N, 3, H, W)"
        raise ValueError(f"open_video: {path} must hold frames {wanted}, got {shape or type(found).__name__}")
    return found


def _image_source(name: str, images: Any, own_fps: float, fps: float | None) -> FrameSource:
    def read(notes: list[str]) -> Iterator[Frame]:
        sampler = Sampler(fps)
        for index, one in enumerate(images):
            if not sampler.takes(index / own_fps):
                continue
            try:
                image = to_tensor(one)[0]
            except (ValueError, TypeError, OSError) as error:
                notes.append(f"frame {index} left out: {error}")
                continue
            colour = image[:3] if image.shape[0] >= 3 else image[:1].expand(3, -1, -1)
            yield Frame((colour.float().clamp(0, 1) * 255).round().byte(), index / own_fps)

    share = 1.0 if fps is None else min(1.0, fps / own_fps)
    return FrameSource(name, own_fps * share, math.ceil(len(images) * share), read)


def _natural(path: Path) -> list[Any]:
    """A sort key: frame2 before frame10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.name)]
