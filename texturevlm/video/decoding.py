"""Video files, cameras and network streams, by PyAV.

A packet that cannot be decoded is skipped; a file that ends early ends there; a camera that disappears ends the video.
What a file says of its rotation is applied.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from texturevlm.paths import is_url
from texturevlm.video.frames import Frame, FrameSource, Sampler

LIVE = ("rtsp", "rtsps", "rtmp", "rtp", "udp", "tcp", "srt")  # schemes of network streams
CAMERA = re.compile(r"camera:(\d+)|/dev/video(\d+)")
LIVE_PATIENCE = 5.0  # seconds without a frame after which a live source has ended
USUAL_RATE = 25.0  # where a file does not say


def import_av(what: str) -> Any:
    """PyAV; the error names the extra to install."""
    try:
        import av
    except ImportError:
        raise ImportError(f"{what} needs PyAV: pip install 'texturevlm[video]'") from None
    return av


def is_stream(source: str | Path) -> bool:
    """Whether this names a camera or something in a network."""
    return CAMERA.fullmatch(str(source)) is not None or is_url(str(source))


def is_live(source: str | Path) -> bool:
    """Whether this names a camera or a network stream, which has no end."""
    return CAMERA.fullmatch(str(source)) is not None or str(source).partition("://")[0].lower() in LIVE


def file_source(path: Path, fps: float | None) -> FrameSource:
    """A video file. fps: at most so many frames per second"""
    return _source(str(path), {}, fps, live=False)


def bytes_source(
    content: bytes, format: str, fps: float | None, most_pixels: int, before_packet: Callable[[], None]
) -> FrameSource:
    """A video file in memory, from a stranger.

    format:        FFmpeg's name of it, so that no other is tried: some name files and addresses to be read
    most_pixels:   of a frame; larger ones are refused before they are decoded
    before_packet: called before each one is decoded; it may raise, if nobody waits any more
    """
    given: Any = {"most_pixels": most_pixels, "before_packet": before_packet}
    return _source("the video", {"file": content, "format": format}, fps, live=False, **given)


def stream_source(name: str, fps: float | None) -> FrameSource:
    """A camera device or a network stream."""
    options: dict[str, Any] = {"timeout": LIVE_PATIENCE}
    camera = CAMERA.fullmatch(name)
    if camera is not None:
        options["format"] = "v4l2"
        options["file"] = f"/dev/video{camera[1] or camera[2]}"
    return _source(name, options, fps, live=is_live(name))


def _source(
    name: str,
    options: dict[str, Any],
    fps: float | None,
    *,
    live: bool,
    most_pixels: int | None = None,
    before_packet: Callable[[], None] = lambda: None,
) -> FrameSource:
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
