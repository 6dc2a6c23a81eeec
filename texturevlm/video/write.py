"""Frames → a video file, by PyAV (extra `video`) or by OpenCV where that is what is installed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

MOST_FPS = 60.0


class Writer:
    """An .mp4 that grows frame by frame; sides are made even, as the codecs want them."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float) -> None:
        self.path, self.size = path, (size[0] + size[0] % 2, size[1] + size[1] % 2)
        self._add: Any
        self._end: Any
        try:
            import av
        except ImportError:
            self._opencv(min(fps, MOST_FPS))
        else:
            self._pyav(av, min(fps, MOST_FPS))

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def add(self, pixels: np.ndarray) -> None:
        """(H, W, 3) bytes, at most the size."""
        canvas = np.zeros((*self.size, 3), dtype=np.uint8)
        canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
        self._add(canvas)

    def _pyav(self, av: Any, fps: float) -> None:
        container = av.open(str(self.path), "w")
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = self.size
        stream.pix_fmt = "yuv420p"

        def add(pixels: np.ndarray) -> None:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))

        def end() -> None:
            container.mux(stream.encode())
            container.close()

        self._add, self._end = add, end

    def _opencv(self, fps: float) -> None:
        try:
            import cv2
        except ImportError:
            raise ImportError("Writer: writing a video needs PyAV: pip install 'texturevlm[video]'") from None
        fourcc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(self.path), fourcc, fps, (self.size[1], self.size[0]))
        if not writer.isOpened():
            raise OSError(f"Writer: {self.path} cannot be written")
        self._add, self._end = lambda pixels: writer.write(pixels[..., ::-1]), writer.release
