"""Moments of a video whose text lies on its side, turned upright: all of them by one angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from texturevlm.frame import Frame
from texturevlm.relevance.orientation import find_turn
from texturevlm.types import Texture
from texturevlm.video.moments import Moment, moment_means

LOOKED_AT = 3  # moments, evenly spread: the angle of a video is the middle one of theirs


def upright_moments(moments: Sequence[Moment], turn: float | str) -> tuple[list[Moment], Frame]:
    """The moments as they would be if the camera had been upright, and the frame of these pictures.

    turn: the angle of the text in degrees, or auto: it is found
    """
    angle = _angle(moments) if isinstance(turn, str) else turn
    height, width = moments[0].frames.shape[2:]
    frame = Frame.turned((height, width), angle)
    if angle == 0:
        return list(moments), frame
    found = []
    for moment in moments:
        upright = frame.show(Texture((moment.frames.float() / 255,))).levels[0]
        frames = (upright.clamp(0, 1) * 255).round().byte().contiguous()
        found.append(replace(moment, frames=frames, means=moment_means(frames)))
    return found, frame


def _angle(moments: Sequence[Moment]) -> float:
    shown = [moments[number * len(moments) // LOOKED_AT] for number in range(LOOKED_AT)]
    some = {one.time: one for one in shown}.values()
    angles = sorted((find_turn(Texture((one.frames[:1].float() / 255,))) for one in some), key=abs)
    return angles[(len(angles) - 1) // 2]
