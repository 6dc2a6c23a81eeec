"""Where frames come from: a video file (PyAV), a folder of images, an array, a list; and the form that a stream takes.

A source gives frames of one size with their times, whatever happens in the file: a packet that cannot be decoded is
skipped, a file that ends early ends there, a frame of another size is resized to that of the first, every pixel format
becomes red, green and blue. `notes` say what happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.image import to_tensor
from texturevlm.paths import IMAGE_SUFFIXES

MOST_NOTES = 20
ARRAYS = (".npy", ".pt")
WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}  # the value of white, for integers


def as_frame(frame: Any, size: tuple[int, int], device: torch.device, *, keep_bytes: bool = False) -> Tensor:
    """A frame as (1, 3, H, W) float32 on a device. Its values are checked when they are compared, without waiting here.

    frame: a tensor (H, W), (1, H, W), (3, H, W) or with a batch of one, bytes or floats from 0 to 1; an array (H, W) or
           (H, W, 3); a PIL image; a path
    keep_bytes: leave bytes as they are, for kernels that take them
    """
    image = frame if isinstance(frame, Tensor) else to_tensor(frame)
    usual = image.shape == (1, 3, *size) and image.dtype is torch.float32 and image.device == device
    if usual and image.is_contiguous():
        return image
    while image.dim() < 4:
        image = image[None]
    batch, channels, height, width = image.shape if image.dim() == 4 else (0, 0, 0, 0)
    if batch != 1 or channels not in (1, 3):
        raise ValueError(f"step: frame must be one image (3, H, W) or grey (1, H, W), got {tuple(image.shape)}")
    if (height, width) != size:
        raise ValueError(
            f"step: frame must be {size[0]} × {size[1]} like the stream, got {height} × {width} "
            "(resize it, or begin another stream)"
        )
    image = image.to(device, non_blocking=True)
    if not image.is_floating_point() and image.dtype not in WHITE:
        raise TypeError(f"step: frame must be bytes, or floats from 0 to 1, got {image.dtype}")
    if not (keep_bytes and image.dtype == torch.uint8):
        image = as_floats(image)
    image = image.expand(-1, 3, -1, -1)
    return image if not keep_bytes or image[0, 0].is_contiguous() else image.contiguous()


def as_floats(image: Tensor) -> Tensor:
    """Values from 0 to 1, float32."""
    return image.float() / WHITE[image.dtype] if image.dtype in WHITE else image.float()


class Frame(NamedTuple):
    """image: (3, H, W) bytes; time: seconds from the beginning, never falling"""

    image: Tensor
    time: float


@dataclass(eq=False)
class FrameSource:
    """Frames in order; iterating again starts from the beginning.

    fps, count: frames per second, on average; the number of frames, where it is known beforehand
    read:  yields frames; appends what went wrong to the list that it gets
    notes: what went wrong in the last iteration
    """

    name: str
    fps: float
    count: int | None
    read: Callable[[list[str]], Iterator[Frame]]
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Frame]:
        self.notes.clear()
        found: list[str] = []
        size: torch.Size | None = None
        last = 0.0
        for image, time in self.read(found):
            size = size or image.shape[1:]
            if image.shape[1:] != size:
                found.append("a frame of {} × {} was resized to {} × {}".format(*image.shape[1:], *size))
                wide = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)
                image = wide[0].round().clamp(0, 255).byte()
            last = max(last, time)
            yield Frame(image, last)
            self.notes[:] = found[:MOST_NOTES]
        more = len(found) - MOST_NOTES
        self.notes[:] = found[:MOST_NOTES] + ([f"and {more} more"] if more > 0 else [])
        if size is None:
            why = f" ({found[0]})" if found else ""
            raise ValueError(f"open_video: {self.name} must hold at least one frame, got none{why}")


def open_video(source: Any, *, fps: float = 25.0) -> FrameSource:
    """A file, a folder of images in the order of their names, or a list of anything that `Texture.open` takes.

    source: a file is a video, or frames as an array: .npy (N, H, W, 3), .pt (N, 3, H, W)
    fps:    of a folder, an array or a list; a video has its own
    """
    if not isinstance(source, (str, Path)):
        return _image_source("the list", list(source), fps)
    path = Path(source)
    if path.is_dir():
        files = sorted((one for one in path.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES), key=_natural)
        if not files:
            raise ValueError(f"open_video: {path} must hold images ({' '.join(sorted(IMAGE_SUFFIXES))}), got none")
        return _image_source(str(path), files, fps)
    if not path.exists():
        raise FileNotFoundError(f"open_video: no such file: {path}")
    if path.suffix.lower() in ARRAYS:
        return _image_source(str(path), _load_array(path), fps)
    return _video_source(path)


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


def _image_source(name: str, images: Any, fps: float) -> FrameSource:
    def read(notes: list[str]) -> Iterator[Frame]:
        for index, one in enumerate(images):
            try:
                image = to_tensor(one)[0]
            except (ValueError, TypeError, OSError) as error:
                notes.append(f"frame {index} left out: {error}")
                continue
            colour = image[:3] if image.shape[0] >= 3 else image[:1].expand(3, -1, -1)
            yield Frame((colour.float().clamp(0, 1) * 255).round().byte(), index / fps)

    return FrameSource(name, fps, len(images), read)


def _natural(path: Path) -> list[Any]:
    """A sort key: frame2 before frame10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.name)]


def import_av(what: str) -> Any:
    """PyAV; the error names the extra to install."""
    try:
        import av
    except ImportError:
        raise ImportError(f"{what} needs PyAV: pip install 'texturevlm[video]'") from None
    return av


def _video_source(path: Path) -> FrameSource:
    av = import_av("open_video: a video file")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
                raise ValueError(f"open_video: {path} must hold a video, got {kinds} only")
            stream = container.streams.video[0]
            if stream.codec_context is None:  # decoding would end the process (PyAV issue 2344)
                raise ValueError(f"open_video: {path} cannot be read as a video: it ends inside its first frame")
            rate, count = float(stream.average_rate or 25), stream.frames or None
    except av.FFmpegError as error:
        raise ValueError(f"open_video: {path} cannot be read as a video: {error}") from None

    def read(notes: list[str]) -> Iterator[Frame]:
        with av.open(str(path)) as opened:
            packets = opened.demux(opened.streams.video[0])
            index, first, packet = 0, None, None
            while True:
                try:
                    packet = None
                    packet = next(packets)
                    frames = packet.decode()
                except StopIteration:
                    return
                except av.FFmpegError as error:
                    notes.append(f"after frame {index}: {error}")
                    if packet is None:  # the file is broken, not a packet
                        return
                    continue
                for frame in frames:
                    when = index / rate if frame.time is None else float(frame.time)
                    first = when if first is None else first
                    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
                    index += 1
                    yield Frame(pixels.permute(2, 0, 1), when - first)

    return FrameSource(str(path), rate, count, read)
