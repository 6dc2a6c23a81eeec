"""Frames with their times: from files, cameras and networks (by PyAV), folders of images, arrays and lists.

A source gives frames of one size, whatever happens in the file: a frame of another size is resized to that of the
first, every pixel format becomes red, green and blue, what a file says of its rotation is applied. A packet that cannot
be decoded is skipped; a file that ends early ends there; a camera that disappears ends the video. `notes` say it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.image import to_tensor
from texturevlm.paths import IMAGE_SUFFIXES, is_url

ARRAYS = (".npy", ".pt")
LIVE = ("rtsp", "rtsps", "rtmp", "rtp", "udp", "tcp", "srt")  # schemes of network streams
CAMERA = re.compile(r"camera:(\d+)|/dev/video(\d+)")
LIVE_SECONDS = 10.0  # of a live source, unless the caller says otherwise
LIVE_PATIENCE = 5.0  # seconds without a frame after which a live source has ended
USUAL_RATE = 25.0  # frames per second, where nothing says it
MOST_NOTES = 20
WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}  # the value of white, for integers
EARLY = 0.01  # of the distance of two frames: rounded times must not skip one


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
    live:  whether frames come at their own pace, from a camera or a network: it has no end and cannot begin again
    """

    name: str
    fps: float
    count: int | None
    read: Callable[[list[str]], Iterator[Frame]]
    notes: list[str] = field(default_factory=list)
    live: bool = False

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


class Sampler:
    """Which frames to take so that there are at most `fps` per second, also where the frame rate varies."""

    def __init__(self, fps: float | None) -> None:
        self.step, self.due = None if fps is None else 1 / fps, 0.0

    def takes(self, time: float) -> bool:
        """Whether to take the frame of this time, in seconds; each frame is asked for once, in order."""
        if self.step is None:
            return True
        if time < self.due - EARLY * self.step:
            return False
        self.due = max(self.due + self.step, time + self.step / 2)  # a gap in the video does not bring a burst
        return True


class LatestFrames:
    """Frames of a source, read in a thread; iterating gives the newest one that was not given yet.

    dropped: frames that came and were never given. At most one frame waits, so the latency is that of one frame
    """

    def __init__(self, source: Iterable[Frame]) -> None:
        self.source, self.dropped = source, 0
        self._newest: Frame | None = None
        self._failed: BaseException | None = None
        self._over = self._stopped = False
        self._changed = Condition()

    def __iter__(self) -> Iterator[Frame]:
        thread = Thread(target=self._read, name="texturevlm-frames", daemon=True)
        thread.start()
        try:
            while (frame := self._next()) is not None:
                yield frame
        finally:
            with self._changed:
                self._stopped = True
        if self._failed is not None:
            raise self._failed

    def _next(self) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._over)
            frame, self._newest = self._newest, None
            return frame

    def _read(self) -> None:
        try:
            for frame in self.source:
                with self._changed:
                    if self._stopped:
                        return
                    self.dropped += self._newest is not None
                    self._newest = frame
                    self._changed.notify()
        except BaseException as error:  # raised where frames are taken
            self._failed = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()


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
    found = source if isinstance(source, FrameSource) else _opened(source, fps, source_fps or fps or USUAL_RATE)
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
    camera = CAMERA.fullmatch(str(source))
    if camera is not None:
        options = {"timeout": LIVE_PATIENCE, "format": "v4l2", "file": f"/dev/video{camera[1] or camera[2]}"}
        return _decoded_source(str(source), fps, options, live=True)
    if is_url(str(source)):
        return _decoded_source(str(source), fps, {"timeout": LIVE_PATIENCE}, live=is_live(source))
    path = Path(source)
    if path.is_dir():
        files = sorted((file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES), key=_natural)
        if not files:
            raise ValueError(f"open_video: {path} must hold images ({' '.join(sorted(IMAGE_SUFFIXES))}), got none")
        return _image_source(str(path), files, own_fps, fps)
    if not path.exists():
        raise FileNotFoundError(f"open_video: no such file: {path}")
    if path.suffix.lower() in ARRAYS:
        return _image_source(str(path), _load_array(path), own_fps, fps)
    return _decoded_source(str(path), fps, {})


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
        for index, given in enumerate(images):
            if not sampler.takes(index / own_fps):
                continue
            try:
                image = to_tensor(given)[0]
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


def import_av(what: str) -> Any:
    """PyAV; the error names the extra to install."""
    try:
        import av
    except ImportError:
        raise ImportError(f"{what} needs PyAV: pip install 'texturevlm[video]'") from None
    return av


def is_live(source: str | Path) -> bool:
    """Whether this names a camera or a network stream, which has no end."""
    return CAMERA.fullmatch(str(source)) is not None or str(source).partition("://")[0].lower() in LIVE


def bytes_source(
    content: bytes, format: str, fps: float | None, most_pixels: int, before_packet: Callable[[], None]
) -> FrameSource:
    """A video file in memory, from a stranger.

    format:        FFmpeg's name of it, so that no other is tried: some name files and addresses to be read
    most_pixels:   of a frame; larger ones are refused before they are decoded
    before_packet: called before each one is decoded; it may raise, if nobody waits any more
    """
    given: Any = {"most_pixels": most_pixels, "before_packet": before_packet}
    return _decoded_source("the video", fps, {"file": content, "format": format}, **given)


def _decoded_source(
    name: str,
    fps: float | None,
    options: dict[str, Any],
    *,
    live: bool = False,
    most_pixels: int | None = None,
    before_packet: Callable[[], None] = lambda: None,
) -> FrameSource:
    """What PyAV opens: the file of this name, or what its options say; other arguments as for `bytes_source`."""
    av = import_av("open_video: a video file")
    options = {"file": name, **options}

    def opening() -> Any:
        file = options["file"]
        return av.open(**{**options, "file": io.BytesIO(file) if isinstance(file, bytes) else file})

    try:
        with opening() as container:
            if not container.streams.video:
                kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
                raise ValueError(f"open_video: {name} must hold a video, got {kinds} only")
            stream = container.streams.video[0]
            if stream.codec_context is None:  # decoding would end the process (PyAV issue 2344)
                raise ValueError(f"open_video: {name} cannot be read as a video: it ends inside its first frame")
            if most_pixels is not None and stream.codec_context.width * stream.codec_context.height > most_pixels:
                got = f"{stream.codec_context.width}×{stream.codec_context.height}"
                raise ValueError(f"open_video: frames of {name} must have at most {most_pixels} pixels, got {got}")
            rate, count = float(stream.average_rate or USUAL_RATE), stream.frames or None
    except (av.FFmpegError, OSError) as error:
        raise ValueError(f"open_video: {name} cannot be read as a video: {error}") from None

    def read(notes: list[str]) -> Iterator[Frame]:
        with opening() as opened:
            yield from _decoded(av, opened, rate, Sampler(fps), notes, before_packet)

    if fps is not None and fps < rate:
        rate, count = fps, None if count is None else max(1, round(count * fps / rate))
    return FrameSource(name, rate, count, read, live=live)


def _decoded(
    av: Any, opened: Any, rate: float, sampler: Sampler, notes: list[str], before_packet: Callable[[], None]
) -> Iterator[Frame]:
    packets = opened.demux(opened.streams.video[0])
    index, first, packet = 0, None, None
    while True:
        before_packet()
        try:
            packet = None
            packet = next(packets)
            frames = packet.decode()
        except StopIteration:
            return
        except (av.FFmpegError, OSError) as error:
            notes.append(f"after frame {index}: {error}")
            if packet is None:  # the file is broken or the camera is gone, not a packet
                return
            continue
        for frame in frames:
            when = index / rate if frame.time is None else float(frame.time)
            first = when if first is None else first
            index += 1
            if sampler.takes(when - first):
                yield Frame(_upright(frame), when - first)


def _upright(frame: Any) -> Tensor:
    """(3, H, W) bytes, turned as the file says."""
    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
    quarters = round(getattr(frame, "rotation", 0) / 90) % 4  # counterclockwise
    return pixels if quarters == 0 else torch.rot90(pixels, quarters, (1, 2)).contiguous()


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
