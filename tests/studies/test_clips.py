"""The study of clips: its videos, and that what is shown finely at the right time counts."""

import random

import pytest
import torch

from tests.vlm.small import full_grid
from texturevlm.types import Texture
from texturevlm.video import MomentTokens
from texturevlm_lab.studies import clips


@pytest.mark.parametrize("kind", clips.VIDEOS)
def test_lines_are_there_when_they_are_said_to_be(kind):
    frames, lines = clips.VIDEOS[kind](random.Random(0))
    for line in lines[:: max(1, len(lines) // 9)]:
        x0, y0, x1, y1 = (int(edge) for edge in line.box)
        frame = frames[int(line.begin * clips.FPS)]
        assert frame[y0 : y1 + 8, x0:x1].min() < 100  # ink


def test_only_the_right_time_and_scale_count():
    texture = Texture.open(torch.zeros(1, 3, *clips.SIZE))
    fine, coarse = (full_grid(texture, 32, scale=scale) for scale in (1.0, 4.0))
    line = [clips.Line((40.0, 40.0, 240.0, 62.0), 2.0, 4.0)]
    shown = [
        MomentTokens(time, allocation, None, None) for time, allocation in ((2.5, fine), (2.5, coarse), (0.0, fine))
    ]
    scores = [clips.legible([one], line) for one in shown]
    assert scores[0] > 0.95 > 0.2 > scores[1] and scores[2] == 0
