"""A stream as a picture per frame: reconstruction, footprints and cost; and a file of such pictures.

Left, the image that the tokens deliver. Right, the frame with the footprints: those sampled for this frame in the
colour of their level, kept ones in grey. Below, a running strip with one bar per frame: its height is the share of
tokens that were sampled, a line shows the share of tiles that changed, and keyframes are red.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.draw import FAINT, INK, MARGIN, PAPER, footprints, panel_level, to_pil
from texturevlm.rebuilding import rebuild
from texturevlm.video.sources import import_av
from texturevlm.video.stream import Step

PANEL_WIDTH = 560  # pixels: width of one panel
STRIP_HEIGHT, BAR = 64, 4
SAMPLED_COLOUR, KEYFRAME_COLOUR = (120, 180, 195), (214, 120, 105)
HEADER_HEIGHT = 34
MOST_FPS = 60.0
LINE, MOST_LINES = 24, 3  # of a caption: pixels per line, lines


class StreamPicture:
    """Draws one frame after the other; remembers the cost of the last ones. size: (height, width) of the pictures."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.tall = max(1, round(size[0] * PANEL_WIDTH / size[1]))
        self.size = (HEADER_HEIGHT + self.tall + 34 + STRIP_HEIGHT + MARGIN, 2 * PANEL_WIDTH + 3 * MARGIN)
        self.costs: deque[tuple[float, float, bool]] = deque(maxlen=(self.size[1] - 2 * MARGIN) // BAR)

    def draw(self, step: Step, frame: Tensor, caption: str = "") -> np.ndarray:
        """(H, W, 3) bytes. frame: (3, H, W) bytes, as it came; caption: at the bottom of it"""
        reuse = step.reuse
        self.costs.append((reuse.fresh / max(1, reuse.tokens), reuse.share, bool(reuse.keyframe)))
        picture, panel = Image.new("RGB", self.size[::-1], PAPER), (PANEL_WIDTH, self.tall)
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(17)
        whole = panel_level(step.texture, panel)
        delivered = to_pil(rebuild(whole, step.allocation.scaled_to(whole.size)))
        picture.paste(delivered.resize(panel, Image.Resampling.BICUBIC), (MARGIN, HEADER_HEIGHT))
        original = Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).resize(panel, Image.Resampling.BILINEAR)
        picture.paste(footprints(original, step.allocation, ~reuse.sampled), (2 * MARGIN + PANEL_WIDTH, HEADER_HEIGHT))
        draw.text((MARGIN, 8), f"what the model sees: {reuse.tokens} tokens", fill=INK, font=font)
        draw.text((2 * MARGIN + PANEL_WIDTH, 8), f"sampled now {reuse.fresh}, kept {reuse.kept}", fill=INK, font=font)
        self._strip(draw, step)
        if caption:
            self._caption(draw, caption)
        return np.asarray(picture)

    def _caption(self, draw: ImageDraw.ImageDraw, caption: str) -> None:
        """Words on a dark band at the bottom of the frame, as subtitles are."""
        font, left = ImageFont.load_default(18), 2 * MARGIN + PANEL_WIDTH
        lines = textwrap.wrap(caption, PANEL_WIDTH // 10)[:MOST_LINES]
        height = LINE * len(lines) + 12
        bottom = HEADER_HEIGHT + self.tall
        draw.rectangle([left, bottom - height, left + PANEL_WIDTH, bottom], fill=INK)
        for number, line in enumerate(lines):
            draw.text((left + 10, bottom - height + 6 + LINE * number), line, fill=PAPER, font=font)

    def _strip(self, draw: ImageDraw.ImageDraw, step: Step) -> None:
        top, font = HEADER_HEIGHT + self.tall + 34, ImageFont.load_default(14)
        for index, (paid, changed, keyframe) in enumerate(self.costs):
            x = MARGIN + index * BAR
            colour = KEYFRAME_COLOUR if keyframe else SAMPLED_COLOUR
            draw.rectangle([x, top + STRIP_HEIGHT * (1 - paid), x + BAR - 2, top + STRIP_HEIGHT], fill=colour)
            height = top + STRIP_HEIGHT * (1 - changed)
            draw.rectangle([x, height - 1, x + BAR - 1, height + 1], fill=INK)
        text = f"{step.time:6.2f} s   tokens sampled (bars; red: a keyframe), tiles changed (line): "
        text += f"{step.reuse.share:.0%}" + (f"   keyframe: {step.reuse.keyframe}" if step.reuse.keyframe else "")
        draw.text((MARGIN, HEADER_HEIGHT + self.tall + 10), text, fill=FAINT, font=font)


@contextmanager
def write_video(path: Path, size: tuple[int, int], fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """An .mp4 by PyAV; gives a function that appends a frame, (H, W, 3) bytes. Sides are made even for the codecs."""
    av = import_av("write_video: writing a video")
    with av.open(str(path), "w") as container:
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream: Any = container.add_stream(codec, rate=Fraction(min(fps, MOST_FPS)).limit_denominator(1001))
        stream.height, stream.width, stream.pix_fmt = size[0] + size[0] % 2, size[1] + size[1] % 2, "yuv420p"

        def add(pixels: np.ndarray) -> None:
            padded = np.zeros((stream.height, stream.width, 3), dtype=np.uint8)
            padded[: pixels.shape[0], : pixels.shape[1]] = pixels
            container.mux(stream.encode(av.VideoFrame.from_ndarray(padded, format="rgb24")))

        try:
            yield add
        finally:
            container.mux(stream.encode())


MOST_WAITING = 2  # things that wait; more make the giver wait


@contextmanager
def background(work: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """Gives a function that has `work` done in another thread, call by call; the end waits until all is done.

    What goes wrong is raised where later work is given, or at the end.
    """
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, "texturevlm-background") as thread:

        def give(*arguments: Any) -> None:
            while len(waiting) > MOST_WAITING or (waiting and waiting[0].done()):
                waiting.popleft().result()
            waiting.append(thread.submit(work, *arguments))

        yield give
        for given in waiting:
            given.result()
