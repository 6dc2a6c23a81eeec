"""Videos in the prompts of a processor: each gets its chosen tokens, with their times, in the place of its mark.

They share the budget of their prompt evenly. The placeholders are the model's own for videos.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.ask.videos import FPS, check_video_relevance, is_video
from texturevlm.placement import TokenConfig
from texturevlm.video import choose_clip, keep_moments, open_video, upright_moments
from texturevlm.vlm.views import View, moment_view

OWN_OPTIONS = ("fps", "num_frames", "do_sample_frames", "return_metadata")  # of video processors; the first is used


class VideoPrompts:
    """Texts whose videos are filled in.

    adapter: of the model
    how:     how their tokens are placed, but for the budget
    """

    def __init__(self, adapter: Any, fps: float | None, how: TokenConfig) -> None:
        check_video_relevance("processor", how.relevance)
        self.adapter, self.fps, self.how = adapter, fps or FPS, how
        self.mark = adapter.word(adapter.config.video_token_id)
        around = sorted((one for one in adapter.marks if self.mark in one), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, around)))

    def fill(
        self, texts: Sequence[str], videos: Any, questions: Sequence[str | None], budget: Callable[[int], int]
    ) -> tuple[list[str], list[View]]:
        """The texts with placeholders, and the views that these stand for.

        budget: the number of videos of a prompt → its tokens
        """
        counts = [len(self.pattern.findall(text)) for text in texts]
        found, views = [], []
        for text, own, question in zip(texts, _by_text(videos, counts), questions):
            share = budget(len(own)) // max(1, len(own))
            if own and share < 1:
                raise ValueError(f"processor: budget must be at least one token per video ({len(own)})")
            groups = [self._group(video, question or "", share) for video in own]
            parts = self.pattern.split(text)
            fillings = [self.adapter.filling(group, group[0].fps) for group in groups]
            found.append("".join(part + filling for part, filling in zip(parts, [*fillings, ""])))
            views += [view for group in groups for view in group]
        return found, views

    def _group(self, video: Any, question: str, budget: int) -> list[View]:
        source = open_video(video, fps=self.fps)
        fps = min(self.fps, source.fps)
        moments = keep_moments(source, together=self.adapter.moments).moments
        moments, _ = upright_moments(moments, self.how.turn)
        shown = choose_clip(moments, question, replace(self.how, budget=budget))
        levels = self.adapter.trained.levels
        views = [
            moment_view(one.pixels, one.allocation, levels=levels, number=index, seconds=one.time, fps=fps)
            for index, one in enumerate(shown)
        ]
        (group,) = self.adapter.clip_groups(views)
        return list(group)


def _by_text(videos: Any, counts: Sequence[int]) -> list[list[Any]]:
    """Videos, flat or in one list per text, by text."""
    flat = _flat(videos)
    if len(flat) != sum(counts):
        raise ValueError(
            f"processor: each text must have one placeholder per video, got {list(counts)} placeholders for "
            f"{len(flat)} videos"
        )
    left = iter(flat)
    return [[next(left) for _ in range(count)] for count in counts]


def _flat(videos: Any) -> list[Any]:
    """A list of videos; a list of single images is one."""
    if isinstance(videos, (list, tuple)):
        if videos and all(_is_frame(one) for one in videos):
            return [list(videos)]
        return [video for one in videos for video in _flat(one)]
    return [videos]


def _is_frame(one: Any) -> bool:
    if isinstance(one, (np.ndarray, Tensor)):
        return one.ndim == 3
    return not isinstance(one, (list, tuple)) and not is_video(one)


def video_options(options: dict[str, Any]) -> float | None:
    """Take the options of videos out of those of a call; the frames per second that they ask for."""
    nested = options.pop("videos_kwargs", None) or {}
    given = {**nested, **{name: options.pop(name) for name in OWN_OPTIONS if name in options}}
    fps = given.get("fps")
    return None if fps is None else float(torch.as_tensor(fps).flatten()[0])
