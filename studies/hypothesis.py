"""The smallest test of the idea: can about a hundred learned numbers put tokens on objects?

    python -m studies.hypothesis DATA --out DIR [--cache DIR] [--steps N] [--limit N]

Thirteen cheap channels, read at seven mip levels at each candidate spot, are summed with learned weights: that is what
the image points at. `Balance` mixes it with the salience that is there without learning, and its `particularise` says
how large the footprints are; where candidates have several sizes, a number each says which are preferred. Those are 91
weights and up to 6 numbers. 64 spots are chosen; the loss is the overlap of their footprints with the boxes of all
objects. Before learning, the weights are zero and salience alone decides.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from texturevlm.check import check_choice, check_count
from texturevlm.evaluate.objects import painted
from studies.study import MISTAKES, command_parser, complain
from texturevlm.relevance.balance import Balance
from texturevlm.train.curriculum import Curriculum
from studies.losses import iou, overlap
from studies.photographs import CHANNELS, LEVELS, SQUARE, Photographs, lattice, photographs
from studies.raster import box_shares, covered
from studies.relax import WAYS
from texturevlm.train.schedule import generator_at, temperature_at
from studies.soft import SoftTokens, soften

PATCH = 32
MOST_ZOOM = 1.0  # octaves by which footprints may become larger or smaller
LEAST = 1e-12  # of a chance: the power of zero has no gradient
AREA = (SQUARE, SQUARE)
FINE = 64  # cells along the square on which the soft overlap is measured


class WeighedChannels(nn.Module):
    """Channels at candidates → how much each is wanted, and how large footprints are."""

    mean: Tensor
    deviation: Tensor
    which: Tensor

    def __init__(self, channels: Tensor, grids: Sequence[int], *, learn_scale: bool = True) -> None:
        """channels: (M, N, LEVELS, C) of the training set, from which their usual values are taken."""
        super().__init__()
        self.register_buffer("mean", channels.mean((0, 1)))
        self.register_buffer("deviation", channels.std((0, 1)).clamp(min=1e-3))
        self.register_buffer("which", torch.cat([torch.full((grid**2,), i) for i, grid in enumerate(grids)]))
        default = Balance()
        self.weight = nn.Parameter(torch.zeros(LEVELS, len(CHANNELS)))
        self.explore = nn.Parameter(torch.as_tensor(default.explore).logit())
        self.focus = nn.Parameter(torch.as_tensor(default.focus).log())
        self.particularise = nn.Parameter(torch.as_tensor(default.particularise).log2(), requires_grad=learn_scale)
        self.size = nn.Parameter(torch.zeros(len(grids)), requires_grad=len(grids) > 1)

    def forward(self, channels: Tensor, salience: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, LEVELS, C) and (B, N) → scores (B, N), and by how many octaves footprints are larger, a number."""
        wanted = torch.einsum("bnlc,lc->bn", (channels - self.mean) / self.deviation, self.weight)
        finer = torch.exp2(self.particularise.clamp(-MOST_ZOOM, MOST_ZOOM))
        balance = Balance(self.explore.sigmoid(), self.focus.exp(), finer)
        row = salience[:, None]  # one row of cells: where they lie is no matter here
        pointed = wanted.softmax(1).clamp(min=LEAST)[:, None]
        found = balance.weigh(pointed, row, torch.ones_like(row), torch.ones_like(row, dtype=torch.bool), AREA)
        return found.mass[:, 0].clamp(min=LEAST).log() + self.size[self.which], found.legible_scale[0, 0, 0].log2()


class Hypothesis:
    """The task."""

    @dataclass(frozen=True)
    class Settings:
        """data: a folder of photographs with boxes; cache: for channels; grids: candidates along a side, for each of
        their sizes; way, temperatures: of the relaxation, first to last over `anneal` steps; learn_scale: whether
        footprints may grow or shrink."""

        data: Path
        cache: Path = Path("runs/cache")
        tokens: int = 64
        grids: tuple[int, ...] = (16,)
        way: str = "sigmoid"
        first_temperature: float = 1.0
        last_temperature: float = 0.03
        anneal: int = 1000
        batch: int = 16
        learn_scale: bool = False
        seed: int = 0
        limit: int | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        device: str = "cpu",
        train: Photographs | None = None,
        judged: Photographs | None = None,
    ) -> None:
        """train, judged: photographs read before, so that several tasks share them."""
        check_choice("Hypothesis", "way", settings.way, WAYS)
        check_count("Hypothesis", "tokens", settings.tokens, 1, sum(grid**2 for grid in settings.grids))
        self.settings, self.device = settings, device
        tiles = lattice(settings.grids, patch=PATCH)
        self.tiles = tiles.to(device)
        self.train, self.judged = (
            given or photographs(settings.data, split, tiles, settings.cache, limit=settings.limit)
            for given, split in ((train, "train"), (judged, "eval"))
        )
        self.salience, self.judged_salience = (part.salience(settings.grids) for part in (self.train, self.judged))
        self.module = WeighedChannels(self.train.channels, settings.grids, learn_scale=settings.learn_scale)
        self.course = Curriculum({"photographs": len(self.train)}, seed=settings.seed)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen = [index for _, index in self.course.draw(step, self.settings.batch)]
        parts = (self.train.channels, self.salience, self.train.objects)
        channels, salience, objects = (part[chosen].to(self.device) for part in parts)
        return channels, salience, objects

    def losses(self, batch: tuple[Tensor, Tensor, Tensor], step: int) -> dict[str, Tensor]:
        channels, salience, objects = batch
        return {"overlap": overlap(self.soft(channels, salience, step), objects).mean()}

    def soft(self, channels: Tensor, salience: Tensor, step: int) -> SoftTokens:
        """The soft tokens of a step, with its temperature."""
        own = self.settings
        temperature = temperature_at(
            step, steps=own.anneal, first=own.first_temperature, last=own.last_temperature, hold=0.1
        )
        scores, zoom = self.module(channels, salience)
        return soften(
            self.tiles,
            scores,
            own.tokens,
            way=own.way,
            temperature=temperature,
            zoom=zoom.expand(scores.shape),
            generator=generator_at(own.seed, step, "gumbel") if own.way == "gumbel" else None,
        )

    def evaluate(self) -> dict[str, float]:
        """Means over the photographs that nothing was learned from: soft at the last temperature, and hard."""
        rows = [measured(boxes, objects) for boxes, objects in zip(self.hard_boxes(), self.judged.boxes)]
        soft = self.soft_overlaps()
        return {
            "hard_iou": sum(row["iou"] for row in rows) / len(rows),
            "soft_iou": sum(soft) / len(soft),
            "covered": sum(row["covered"] for row in rows) / len(rows),
            "lift": sum(row["on_objects"] for row in rows) / sum(row["objects"] for row in rows),
        }

    @torch.no_grad()
    def soft_overlaps(self) -> list[float]:
        """The IoU of each judged photograph as training sees it at the end."""
        found = []
        for index, boxes in enumerate(self.judged.boxes):
            tokens = self.soft(*self._judged(slice(index, index + 1)), self.settings.anneal)
            cover = covered(tokens, (FINE, FINE)).cpu()
            found.append(iou(cover, box_shares(torch.tensor(boxes), AREA, (FINE, FINE))[None]).item())
        return found

    @torch.no_grad()
    def hard_boxes(self) -> list[list[list[float]]]:
        """The footprints of the ordinary allocation of each judged photograph."""
        tokens = self.soft(*self._judged(slice(None)), self.settings.anneal)
        return tokens.harden(self.settings.tokens).boxes.tolist()

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(M, N): how much each candidate of the judged photographs is wanted."""
        return self.module(*self._judged(slice(None)))[0].cpu()

    def _judged(self, some: slice) -> tuple[Tensor, Tensor]:
        return self.judged.channels[some].to(self.device), self.judged_salience[some].to(self.device)


def measured(footprints: Sequence[Sequence[float]], objects: Sequence[Sequence[float]]) -> dict[str, float]:
    """By pixels of the square: the IoU of all footprints with all objects, the share of the square that footprints
    cover, that objects cover, and the share of what footprints cover that lies on objects."""
    cover, there = painted(footprints, AREA), painted(objects, AREA)
    both, area = int((cover & there).sum()), int(cover.sum())
    return {
        "iou": both / max(1, int((cover | there).sum())),
        "covered": area / cover.numel(),
        "objects": int(there.sum()) / there.numel(),
        "on_objects": both / max(1, area),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    from studies.hypothesis_report import experiment

    parser = command_parser("studies.hypothesis", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="photographs with object boxes, such as COCO")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for hypothesis.md, .csv and .png")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), metavar="DIR", help="for the channels")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument("--limit", type=int, metavar="N", help="photographs of each split: to try it out")
    options = parser.parse_args(arguments)
    try:
        check_count("--steps", "N", options.steps, 1)
        experiment(options.data, options.out, cache=options.cache, steps=options.steps, limit=options.limit)
    except MISTAKES as error:
        return complain(parser, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
