"""Train the weights of the channel scorer: which channels say that an answer or an object is in a cell?

A linear form per kind of image, fitted by the cross-entropy between its softmax over the cells and the true place:
the boxes of an answer on pages and charts, all objects of a photograph. Of each image all true cells and a random
sample of the others are kept, which count as many times as there are others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.check import check_choice, check_count
from texturevlm.progress import Progress
from texturevlm.relevance.channel_logits import (
    IMAGE_KINDS,
    ChannelForm,
    cell_features,
    channel_layers,
)
from texturevlm.relevance.prepared import image_maps
from texturevlm.relevance.words import overlaps
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.train.fit import draw_examples
from texturevlm_lab.train.pages import CHARTS, load_page, located

KIND_OF_SET = {"docvqa_half": "page", "sroie": "page", "funsd": "page", "coco": "photograph", CHARTS: "chart"}
IMAGES_PER_SET = {"coco": 126, "docvqa_half": 60, "sroie": 36, "funsd": 36, CHARTS: 60}
ONE_HELD_OUT_OF = 6  # one image in six is held out
_TOP, _COVERED = 0.1, 0.9  # shares: of the image, and of a place that must lie in it
_LEAST_SPREAD = 1e-3


class Example(NamedTuple):
    """The kept cells of one image.

    features: (n, F); many: (n,), the logarithm of how many cells each stands for
    places:   (Q, n), where each question's answer is, as shares of cells that sum to 1
    """

    features: Tensor
    many: Tensor
    places: Tensor


class ChannelTask:
    """A task of `fit`: a linear form learns which channels tell places."""

    @dataclass(frozen=True)
    class Settings:
        data: Path  # folder of the data sets of KIND_OF_SET
        words: Path | None = None  # cache of the words of charts, among which their answers are located
        limits: dict[str, int] = field(default_factory=lambda: dict(IMAGES_PER_SET))  # images per data set
        cells: int = 1500  # kept per image, beside the true ones
        batch: int = 12  # images of each kind per step
        seed: int = 1

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        for name in ("cells", "batch"):
            check_count("ChannelTask", name, getattr(settings, name), 1)
        for name, limit in settings.limits.items():
            check_choice("ChannelTask", "limits", name, KIND_OF_SET)
            check_count("ChannelTask", f"limits.{name}", limit, 1)
        self.settings, self.device = settings, device
        self.learned: dict[str, list[Example]] = {}
        self.held: dict[str, list[Example]] = {}
        for name, limit in settings.limits.items():
            self._read(name, KIND_OF_SET[name], limit)
        self._begin()

    def _read(self, name: str, kind: str, limit: int) -> None:
        """Add the examples of a data set, evenly spread."""
        asked = questions_by_image(self.settings.data / name, self.settings.words)
        images = chosen_images(asked, limit)
        progress = Progress(len(images), f"images of {name}")
        for path in images:
            made = example(path, asked[path], self.settings.cells)
            if made is not None:
                part = self.held if is_held_out(path) else self.learned
                part.setdefault(kind, []).append(made)
            progress.step()

    def _begin(self) -> None:
        """New weights, which are salience, with mean and spread of the features of each kind."""
        if "page" not in self.learned:
            raise ValueError(f"ChannelTask: data must hold train pages with located answers, got {self.settings.data}")
        form = self.module = ChannelForm()
        for kind in IMAGE_KINDS:
            features = torch.cat([one.features for one in self.learned.get(kind, self.learned["page"])])
            row = IMAGE_KINDS.index(kind)
            form.mean[row], form.spread[row] = features.mean(0), features.std(0).clamp(min=_LEAST_SPREAD)
        with torch.no_grad():
            form.weight.copy_(form.weight * form.spread)
        form.to(self.device)

    def batch(self, step: int) -> dict[str, list[int]]:
        """The numbers of the images of a step, by kind."""
        batch, seed = self.settings.batch, self.settings.seed
        return {
            kind: draw_examples(len(some), batch, seed=seed + IMAGE_KINDS.index(kind), step=step)
            for kind, some in self.learned.items()
        }

    def losses(self, batch: dict[str, list[int]], step: int) -> dict[str, Tensor]:
        """One loss per kind of image."""
        return {
            kind: torch.stack([self._loss(self.learned[kind][index], kind) for index in some]).mean()
            for kind, some in batch.items()
        }

    def logits(self, one: Example, kind: str) -> Tensor:
        logits: Tensor = self.module(one.features.to(self.device), IMAGE_KINDS.index(kind))
        return logits

    def _loss(self, one: Example, kind: str) -> Tensor:
        logits = self.logits(one, kind)
        total = torch.logsumexp(logits + one.many.to(self.device), 0)
        return total - (one.places.to(self.device) @ logits).mean()

    def evaluate(self) -> dict[str, float]:
        """On held-out images: the loss per kind, and how often a place lies in the top tenth of the area."""
        found = {}
        for kind, examples in self.held.items():
            found[f"loss_{kind}"] = float(np.mean([float(self._loss(one, kind)) for one in examples]))
            tops = [in_top_tenth(self.logits(one, kind).cpu(), one) for one in examples]
            found[f"top_tenth_{kind}"] = float(torch.cat(tops).mean())
        return found


def in_top_tenth(logits: Tensor, one: Example) -> Tensor:
    """(Q,): the share of each place in the tenth of the area with the highest logits."""
    order = logits.argsort(descending=True)
    area = one.many[order].exp().cumsum(0)
    chosen = torch.zeros_like(logits)
    chosen[order] = (area <= _TOP * area[-1]).float()
    return one.places @ chosen


def questions_by_image(folder: Path, words: Path | None) -> dict[Path, list[tuple[Box, ...]]]:
    """image → the places of its answers, one group of boxes per question; for photographs, of all objects."""
    found: dict[Path, list[tuple[Box, ...]]] = {}
    for sample in load_data(folder, split="train").samples:
        boxes = places_of(sample, folder.name, words)
        if boxes and not (sample.objects and sample.image in found):
            found.setdefault(sample.image, []).append(boxes)
    return found


def chosen_images(asked: Collection[Path], limit: int) -> list[Path]:
    """At most `limit` images, evenly spread."""
    return sorted(asked)[:: max(1, len(asked) // limit)][:limit]


def places_of(sample: Sample, name: str, words: Path | None) -> tuple[Box, ...]:
    """Where the answer of a sample is, or all objects of a photograph. name: of the data set"""
    if name == CHARTS:
        if words is None:
            raise ValueError("ChannelTask: words must be the cache of the words of charts, got none; or leave them out")
        return tuple(located(load_page(sample.image, words / name), sample.answers))
    return sample.objects or sample.boxes


def is_held_out(path: Path) -> bool:
    """Whether an image is not learned from. Pages of one document (NAME_PAGE) are held out together."""
    document = path.stem.partition("_")[0] if path.suffix == ".webp" else path.stem
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=4).digest(), "little") % ONE_HELD_OUT_OF == 0


@torch.no_grad()
def example(path: Path, questions: Sequence[tuple[Box, ...]], cells: int) -> Example | None:
    """The features of an image's true cells and of a sample of the others; None if no place touches a cell."""
    texture = Texture.open(path).mipmapped()
    maps = image_maps(texture)
    features = cell_features(channel_layers(texture), maps)[0]
    places = torch.stack([place_shares(boxes, texture.size, maps.grid) for boxes in questions])
    places = places[places.sum(1) > 0]
    if not len(places):
        return None
    true = places.sum(0) > 0
    others = (~true).nonzero()[:, 0]
    drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:cells]
    kept = torch.cat([true.nonzero()[:, 0], others[drawn]])
    count = torch.ones(len(kept))
    count[int(true.sum()) :] = len(others) / max(1, len(drawn))
    return Example(features[kept], count.log(), places[:, kept])


def place_shares(boxes: Sequence[Box], size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(h · w,): the boxes' area in each cell, summing to 1."""
    corners = np.array(boxes, dtype=float)
    across = overlaps(corners[:, 0], corners[:, 2], grid[1], size[1])
    down = overlaps(corners[:, 1], corners[:, 3], grid[0], size[0])
    shares = torch.from_numpy(np.einsum("bh,bw->hw", down, across)).float().flatten()
    return shares / shares.sum().clamp(min=1e-9)
