"""Where frames come from: a file (PyAV, or OpenCV where only that is installed), a folder of images, an array, a list.

A source gives frames of one size with their times, whatever the file does half-way: a packet that cannot be decoded is
left out, a file that ends too early ends there, a frame of another size is resized to that of the first, every pixel
format becomes red, green and blue. What happened is told in `notes`. A file without a picture is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.image import to_tensor
from texturevlm.paths import IMAGE_SUFFIXES

MOST_NOTES = 20
ARRAYS = (".npy", ".pt")
Raw = tuple[Tensor, float]  # (3, H, W) bytes, seconds


@dataclass(frozen=True, eq=False)
class Frame:
    """image: (3, H, W) bytes; time: seconds from the beginning, never falling"""

    image: Tensor
    time: float


@dataclass(eq=False)
class Source:
    """Frames, in order; can be read again from the beginning.

    name:  for messages
    fps:   frames a second, on average
    count: frames, as far as is known beforehand
    notes: what went wrong while reading
    """

    name: str
    fps: float
    count: int | None
    read: Callable[[list[str]], Iterator[Raw]]
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Frame]:
        self.notes.clear()
        told: list[str] = []
        size: torch.Size | None = None
        last = 0.0
        for image, time in self.read(told):
            size = size or image.shape[1:]
            if image.shape[1:] != size:
                told.append(f"a frame of {_spelled(image.shape[1:])} was resized to {_spelled(size)}")
                wide = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)
                image = wide[0].round().clamp(0, 255).byte()
            last = max(last, time)
            yield Frame(image, last)
            self.notes[:] = told[:MOST_NOTES]
        self.notes[:] = told[:MOST_NOTES] + ([f"and {len(told) - MOST_NOTES} more"] if len(told) > MOST_NOTES else [])
        if size is None:
            raise ValueError(f"open_video: {self.name} must hold at least one frame, got none" + _why(told))


def open_video(source: Any, *, fps: float = 25.0) -> Source:
    """A file, a folder of images in the order of their names, or a list of anything that `Texture.open` takes.

    source: a file is a video, or frames as an array: .npy (N, H, W, 3), .pt (N, 3, H, W)
    fps:    of a folder, an array or a list; a video says so itself
    """
    if not isinstance(source, (str, Path)):
        images = list(source)
        return Source("the list", fps, len(images), lambda notes: _images(images, fps, notes))
    path = Path(source)
    if path.is_dir():
        files = sorted((one for one in path.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES), key=_natural)
        if not files:
            raise ValueError(f"open_video: {path} must hold images ({' '.join(sorted(IMAGE_SUFFIXES))}), got none")
        return Source(str(path), fps, len(files), lambda notes: _images(files, fps, notes))
    if not path.exists():
        raise FileNotFoundError(f"open_video: no such file: {path}")
    if path.suffix.lower() in ARRAYS:
        frames = _array(path)
        return Source(str(path), fps, len(frames), lambda notes: _images(frames, fps, notes))
    return _by_av(path) or _by_opencv(path)


def _array(path: Path) -> Any:
    """The frames of an array in a file, each by itself an image; nothing in the file is run."""
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


def _images(images: Iterable[Any], fps: float, notes: list[str]) -> Iterator[Raw]:
    for index, one in enumerate(images):
        try:
            image = to_tensor(one)[0]
        except (ValueError, TypeError, OSError) as error:
            notes.append(f"frame {index} left out: {error}")
            continue
        colour = image[:3] if image.shape[0] >= 3 else image[:1].expand(3, -1, -1)
        yield (colour.float().clamp(0, 1) * 255).round().byte(), index / fps


def _natural(path: Path) -> list[Any]:
    """frame2 before frame10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.name)]


def _by_av(path: Path) -> Source | None:
    """By PyAV, if it is installed (extra `video`)."""
    try:
        import av
    except ImportError:
        return None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"open_video: {path} must hold a video, got {_kinds(container)} only")
            stream = container.streams.video[0]
            if stream.codec_context is None:  # to decode it would end the process (PyAV issue 2344)
                raise ValueError(f"open_video: {path} cannot be read as a video: it ends inside its first frame")
            rate, count = float(stream.average_rate or 25), stream.frames or None
    except av.FFmpegError as error:
        raise ValueError(f"open_video: {path} cannot be read as a video: {error}") from None

    def read(notes: list[str]) -> Iterator[Raw]:
        with av.open(str(path)) as opened:
            packets = opened.demux(opened.streams.video[0])
            index, first = 0, None
            while True:
                packet: Any = None
                try:
                    packet = next(packets, None)
                    frames = [] if packet is None else packet.decode()
                except av.FFmpegError as error:
                    notes.append(f"after frame {index}: {error}")
                    if packet is None:  # not a packet is broken, the file is
                        return
                    continue
                if packet is None:
                    return
                for frame in frames:
                    when = index / rate if frame.time is None else float(frame.time)
                    first = when if first is None else first
                    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
                    index += 1
                    yield pixels.permute(2, 0, 1), when - first

    return Source(str(path), rate, count, read)


def _kinds(container: Any) -> str:
    return ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"


def _by_opencv(path: Path) -> Source:
    """By OpenCV's copy of FFmpeg; it leaves out broken packets without a word."""
    try:
        import cv2
    except ImportError:
        raise ImportError("open_video: a video file needs PyAV: pip install 'texturevlm[video]'") from None
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise ValueError(f"open_video: {path} cannot be read as a video (damaged, or without a picture)")
    rate, count = float(capture.get(cv2.CAP_PROP_FPS)) or 25.0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    capture.release()

    def read(notes: list[str]) -> Iterator[Raw]:
        opened = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
        index = 0
        while True:
            good, pixels = opened.read()
            if not good:
                break
            when = float(opened.get(cv2.CAP_PROP_POS_MSEC)) / 1000
            yield torch.from_numpy(np.ascontiguousarray(pixels[..., ::-1])).permute(2, 0, 1), when
            index += 1
        opened.release()
        if 0 < index < count:
            notes.append(f"{count} frames were announced, {index} could be read")

    return Source(str(path), rate, count if count > 0 else None, read)


def _spelled(size: torch.Size) -> str:
    return f"{size[0]} × {size[1]}"


def _why(notes: list[str]) -> str:
    return f" ({notes[0]})" if notes else ""
