"""One frame after another: the form that a stream takes, frames with their times, and how many per second.

A source gives frames of one size with their times, whatever happens in the file: a frame of another size is resized to
that of the first, every pixel format becomes red, green and blue. `notes` say what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.image import to_tensor

MOST_NOTES = 20
WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}  # the value of white, for integers
EARLY = 0.01  # of the distance of two frames: rounded times must not skip one


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
