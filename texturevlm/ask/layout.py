"""Which image or video belongs to which prompt of a processor: they come one by one, in lists, nested, or as arrays.

A video gets its chosen tokens, with their times, in the place of its mark. The videos of a prompt share its budget
evenly. The placeholders are the model's own for videos.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.ask.session import FPS, check_video_relevance, is_video
from texturevlm.placement import TokenConfig
from texturevlm.video import choose_clip, keep_moments, open_video, upright_moments
from texturevlm.vlm import View, moment_view


def by_prompt(images: Any, counts: Sequence[int]) -> list[list[Any]]:
    """Distribute images, flat or in lists, over prompts with `counts` placeholders each."""
    if (
        isinstance(images, (list, tuple))
        and len(images) == len(counts)
        and all(isinstance(own, (list, tuple)) for own in images)
    ):
        nested = [_flat(own) for own in images]
    else:
        flat = iter(_flat(images))
        nested = [[image for _, image in zip(range(count), flat)] for count in counts]
        nested[-1] += list(flat)
    if [len(own) for own in nested] != list(counts):
        raise ValueError(
            f"processor: each text must have one placeholder per image, got {list(counts)} placeholders for "
            f"{[len(own) for own in nested]} images"
        )
    return nested


def _flat(images: Any) -> list[Any]:
    """A list of single images."""
    if images is None:
        return []
    if isinstance(images, (list, tuple)):
        return [image for part in images for image in _flat(part)]
    if isinstance(images, (Tensor, np.ndarray)):
        return [_as_opened(image) for image in (images if images.ndim == 4 else [images])]
    return [images]


def _as_opened(image: Tensor | np.ndarray[Any, Any]) -> Any:
    """An array (H, W, C) or a tensor (C, H, W), whose channels may have come first or last."""
    if image.ndim != 3:
        return image
    last = image.shape[0] not in (1, 3) and image.shape[-1] in (1, 3, 4)  # as transformers tells them apart
    if isinstance(image, Tensor):
        return image.movedim(-1, 0) if last else image
    return image if last else np.moveaxis(image, 0, -1)


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
        around = sorted((mark for mark in adapter.marks if self.mark in mark), key=len, reverse=True)
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
            moment_view(moment.pixels, moment.allocation, levels=levels, number=index, seconds=moment.time, fps=fps)
            for index, moment in enumerate(shown)
        ]
        (group,) = self.adapter.clip_groups(views)
        return list(group)


def _by_text(videos: Any, counts: Sequence[int]) -> list[list[Any]]:
    """Videos, flat or in one list per text, by text."""
    flat = _flat_videos(videos)
    if len(flat) != sum(counts):
        raise ValueError(
            f"processor: each text must have one placeholder per video, got {list(counts)} placeholders for "
            f"{len(flat)} videos"
        )
    left = iter(flat)
    return [[next(left) for _ in range(count)] for count in counts]


def _flat_videos(videos: Any) -> list[Any]:
    """A list of videos; a list of single images is one."""
    if isinstance(videos, (list, tuple)):
        if videos and all(_is_frame(part) for part in videos):
            return [list(videos)]
        return [video for part in videos for video in _flat_videos(part)]
    return [videos]


def _is_frame(given: Any) -> bool:
    if isinstance(given, (np.ndarray, Tensor)):
        return given.ndim == 3
    return not isinstance(given, (list, tuple)) and not is_video(given)


def video_options(options: dict[str, Any]) -> float | None:
    """Take the options of videos out of those of a call; the frames per second that they ask for."""
    nested = options.pop("videos_kwargs", None) or {}
    given = {**nested, **{name: options.pop(name) for name in OWN_OPTIONS if name in options}}
    fps = given.get("fps")
    return None if fps is None else float(torch.as_tensor(fps).flatten()[0])
