"""The smallest test of learned relevance: can about a hundred learned numbers put tokens on objects?

    python -m texturevlm_lab.studies.hypothesis DATA --out results [--steps N] [--limit N]

Thirteen cheap channels, read at seven mip levels at each candidate, are summed with learned weights. `Balance` mixes
the result with salience, which needs no learning; its `particularise` sets the size of the footprints. Where candidates
have several sizes, one number per size says which is preferred. That makes 91 weights and up to 6 numbers. 64
candidates are chosen; the loss is 1 − IoU of their footprints with the boxes of all objects. Before learning the
weights are zero, so salience alone decides.

All photographs are laid on one square: shares of area, and so IoU, do not change when an image is stretched. Methods
that need no learning get the area that the learned one covers, since a larger area alone raises IoU.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.channels import build
from texturevlm.channels.registry import PRESETS
from texturevlm.check import check_choice, check_count
from texturevlm.ops.lookup import lookup
from texturevlm.relevance import Balance, ImageMaps, image_maps
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.objects import painted
from texturevlm_lab.evaluate.statistics import paired_difference, pooled_ratio
from texturevlm_lab.studies.soft_tokens import RELAXATIONS, Lattice, box_shares, covered, soft_iou, soften
from texturevlm_lab.studies.study import each, evenly, option, provenance, study_main
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import draw_examples, fit, generator_at

SQUARE = 512  # side of the square that photographs are laid on
AREA = (SQUARE, SQUARE)
CHANNELS = PRESETS["mvp"]
_FINEST, LEVELS = 2, 7  # texels of 4 to 256 pixels
SALIENCE_GRID, LOSS_GRID, EVAL_GRID = (64, 64), (32, 32), (64, 64)  # cells of the square
MOST_ZOOM = 1.0  # octaves by which footprints may grow or shrink
_LEAST = 1e-12  # of a probability: the power of zero has no gradient
HOLD = 0.1  # the last share of the steps stays at the last temperature
# Candidates along a side; 64 of them cover a quarter, half, or, with three sizes, what is learned to be best.
VARIANTS: dict[str, tuple[int, ...]] = {"a quarter": (16,), "half": (11,), "as much as learned": (4, 8, 16)}
_RATE, SEEDS, TEMPERATURES = 0.03, (0, 1, 2), (1.0, 0.3, 0.1, 0.01)
RIVALS = ("uniform", "saliency (before learning)")
Measures = dict[str, list[float]]  # one number per photograph
Footprints = Sequence[Sequence[Sequence[float]]]  # per photograph, xyxy in pixels of the square


# ---- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Photographs:
    """M photographs, N candidates each.

    channels: (M, N, LEVELS, C), read at each candidate's centre, finest level first
    base:     (M, *SALIENCE_GRID), salience without learning
    objects:  (M, *LOSS_GRID), the share of each cell inside some object's box
    boxes:    of the objects, in pixels of the square
    """

    channels: Tensor
    base: Tensor
    objects: Tensor
    boxes: list[list[Box]]

    def __len__(self) -> int:
        return len(self.channels)

    def salience(self, grids: Sequence[int]) -> Tensor:
        """(M, N): salience of the candidates of `square_lattice(grids)`; each grid sums to 1."""
        pooled = [functional.adaptive_avg_pool2d(self.base[:, None], grid).flatten(1) for grid in grids]
        return torch.cat([one / one.sum(1, keepdim=True) for one in pooled], 1)


def square_lattice(grids: Sequence[int]) -> Lattice:
    """grid × grid candidates on the square for each of the grids, which are given coarse before fine."""
    if list(grids) != sorted(set(grids)):
        raise ValueError(f"square_lattice: grids must be different and coarse before fine, got {tuple(grids)}")
    return Lattice.of(AREA, [SQUARE / grid for grid in grids])


def read_photographs(data: Path, split: str, lattice: Lattice, limit: int | None = None) -> Photographs:
    """The photographs of a split that have objects; `limit` of them, evenly spread."""
    every = {sample.image: sample for sample in load_data(data, split=split, located=True).samples}
    found = evenly(list(every.values()), limit)
    channels, base = [], []
    for sample in each(found, f"{split} photographs"):
        texture = Texture.open(sample.image)
        channels.append(read_channels(build(texture, CHANNELS, base=0), lattice))
        base.append(functional.adaptive_avg_pool2d(image_maps(texture).salience[:, None], SALIENCE_GRID)[0])
    boxes = [_on_square(sample) for sample in found]
    shares = torch.stack([box_shares(one, AREA, LOSS_GRID) for one in boxes])
    return Photographs(torch.cat(channels), torch.cat(base), shares, boxes)


def read_channels(texture: Texture, lattice: Lattice) -> Tensor:
    """(B, N, LEVELS, C): the texture's channels at each candidate's centre, from level _FINEST on."""
    levels = [level.half().float() for level in texture.levels[min(_FINEST, len(texture.levels) - 1) :]]
    height, width = levels[0].shape[2:]
    points = lattice.centre * torch.tensor([width / lattice.size[1], height / lattice.size[0]])
    repeated = points.repeat_interleave(LEVELS, 0).expand(texture.batch, -1, -1)
    lod = torch.arange(LEVELS).float().repeat(len(points)).expand(texture.batch, -1)
    return lookup(levels, repeated, lod).view(texture.batch, len(points), LEVELS, -1)


def _on_square(sample: Sample) -> list[Box]:
    across, down = SQUARE / sample.size[1], SQUARE / sample.size[0]
    return [(x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in sample.objects]


# ---- what is learned ------------------------------------------------------------------------------------------------


class WeightedChannels(nn.Module):
    """Channels at candidates → a score per candidate, and the size of the footprints."""

    mean: Tensor
    deviation: Tensor
    which: Tensor

    def __init__(self, channels: Tensor, grids: Sequence[int], *, learn_scale: bool = True) -> None:
        """channels: (M, N, LEVELS, C) of the training set, for their mean and deviation."""
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
        """(B, N, LEVELS, C) and (B, N) → scores and zoom (B, N): octaves by which footprints are larger."""
        wanted = torch.einsum("bnlc,lc->bn", (channels - self.mean) / self.deviation, self.weight)
        finer = torch.exp2(self.particularise.clamp(-MOST_ZOOM, MOST_ZOOM))
        balance = Balance(self.explore.sigmoid(), self.focus.exp(), finer)
        row = salience[:, None]  # one row of cells: positions do not matter here
        learned = wanted.softmax(1).clamp(min=_LEAST)[:, None]
        maps = ImageMaps(row, torch.ones_like(row), torch.ones_like(row, dtype=torch.bool))
        found = balance.weigh(learned, maps, AREA)
        scores = found.mass[:, 0].clamp(min=_LEAST).log() + self.size[self.which]
        return scores, found.legible_scale[0, 0, 0].log2().expand(scores.shape)


class Hypothesis:
    """The task, as `texturevlm_lab.train.fit` trains it."""

    @dataclass(frozen=True)
    class Settings:
        """data: photographs with boxes; grids: candidates along a side, per size; the temperature falls from first to
        last over `anneal` steps; learn_scale: whether footprints may grow or shrink."""

        data: Path
        tokens: int = 64
        grids: tuple[int, ...] = (16,)
        relaxation: str = "sigmoid"
        first_temperature: float = 1.0
        last_temperature: float = 0.03
        anneal: int = 1000
        batch: int = 16
        learn_scale: bool = False
        seed: int = 0
        limit: int | None = None

    def __init__(self, settings: Settings, data: tuple[Photographs, Photographs] | None = None) -> None:
        """data: photographs of train and eval that were read before, so that several tasks share them."""
        check_choice("Hypothesis", "relaxation", settings.relaxation, RELAXATIONS)
        check_count("Hypothesis", "tokens", settings.tokens, 1, sum(grid**2 for grid in settings.grids))
        self.settings, self.lattice = settings, square_lattice(settings.grids)
        self.train, self.evaluated = data or (
            read_photographs(settings.data, "train", self.lattice, settings.limit),
            read_photographs(settings.data, "eval", self.lattice, settings.limit),
        )
        self.salience, self.evaluated_salience = (
            part.salience(settings.grids) for part in (self.train, self.evaluated)
        )
        self.module = WeightedChannels(self.train.channels, settings.grids, learn_scale=settings.learn_scale)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen = draw_examples(len(self.train), self.settings.batch, seed=self.settings.seed, step=step)
        return self.train.channels[chosen], self.salience[chosen], self.train.objects[chosen]

    def losses(self, batch: tuple[Tensor, Tensor, Tensor], step: int) -> dict[str, Tensor]:
        channels, salience, objects = batch
        return {"overlap": (1 - soft_iou(self._covered(channels, salience, step, LOSS_GRID), objects)).mean()}

    def _covered(self, channels: Tensor, salience: Tensor, step: int, grid: tuple[int, int]) -> Tensor:
        """What the soft tokens cover at a step's temperature."""
        own = self.settings
        scores, zoom = self.module(channels, salience)
        tokens = soften(
            self.lattice,
            scores,
            own.tokens,
            relaxation=own.relaxation,
            temperature=annealed(step, own.anneal, own.first_temperature, own.last_temperature),
            zoom=zoom,
            generator=generator_at(own.seed, step, "gumbel") if own.relaxation == "gumbel" else None,
        )
        return covered(tokens, grid)

    def evaluate(self) -> dict[str, float]:
        """Means over the `eval` photographs: soft at the last temperature, and hard."""
        rows = {name: float(np.mean(values)) for name, values in self.hard().items()}
        lift = rows["on_objects"] / rows["objects"]
        soft = float(np.mean(self.soft_overlaps()))
        return {"hard_iou": rows["iou"], "soft_iou": soft, "covered": rows["covered"], "lift": lift}

    @torch.no_grad()
    def soft_overlaps(self) -> list[float]:
        """IoU of each `eval` photograph as training sees it at the end."""
        found = []
        for index, boxes in enumerate(self.evaluated.boxes):
            one = slice(index, index + 1)
            inputs = self.evaluated.channels[one], self.evaluated_salience[one]
            cover = self._covered(*inputs, self.settings.anneal, EVAL_GRID)
            found.append(soft_iou(cover, box_shares(boxes, AREA, EVAL_GRID)[None]).item())
        return found

    @torch.no_grad()
    def hard_boxes(self) -> Tensor:
        """(M, tokens, 4): the footprints that are deployed for each `eval` photograph."""
        scores, zoom = self.module(self.evaluated.channels, self.evaluated_salience)
        return self.lattice.best(scores, self.settings.tokens, zoom)

    def hard(self) -> Measures:
        """The measures of `hard_boxes`."""
        return measured(self.hard_boxes().tolist(), self.evaluated.boxes)


def annealed(step: int, steps: int, first: float, last: float) -> float:
    """The temperature of a step: from first to last by equal factors, then constant."""
    return first * math.pow(last / first, min(1.0, step / max(1.0, (steps - 1) * (1 - HOLD))))


def measured(footprints: Footprints, objects: Footprints) -> Measures:
    """Per photograph, by pixels of the square: IoU of the union of footprints with the union of objects, the share of
    the square that footprints cover and that objects cover, and the share of the covered area that lies on objects."""
    found: Measures = {"iou": [], "covered": [], "objects": [], "on_objects": []}
    for own, boxes in zip(footprints, objects):
        cover, there = painted(own, AREA), painted(boxes, AREA)
        both, area = int((cover & there).sum()), int(cover.sum())
        numbers = (both / max(1, int((cover | there).sum())), area / SQUARE**2, int(there.sum()) / SQUARE**2)
        for column, number in zip(found.values(), (*numbers, both / max(1, area))):
            column.append(number)
    return found


# ---- the experiment -------------------------------------------------------------------------------------------------


def trained(task: Hypothesis, steps: int) -> Hypothesis:
    own = task.settings
    print(f"grids {own.grids}, {own.relaxation}, to {own.last_temperature}, seed {own.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        fit(task, FitConfig(steps=steps, rate=_RATE, seed=own.seed, save_every=0), folder)
    return task


def compared(task: Hypothesis) -> dict[str, Measures]:
    """The learned method, and methods without learning that cover as much."""
    evaluated, budget = task.evaluated, task.settings.tokens
    grid = max(round(budget**0.5), round((budget / np.mean(task.hard()["covered"])) ** 0.5))
    lattice = square_lattice((grid,))
    centred = -(lattice.centre - SQUARE / 2).square().sum(1).expand(len(evaluated), -1)
    shares = [painted(boxes, AREA).float()[None, None] for boxes in evaluated.boxes]
    objects = torch.cat([functional.adaptive_avg_pool2d(one, grid).flatten(1) for one in shares])
    along, reach = int(budget**0.5), SQUARE / grid / 2
    centres = [(index + 0.5) * SQUARE / along for index in range(along)]
    uniform = [[x - reach, y - reach, x + reach, y + reach] for y in centres for x in centres]
    footprints: dict[str, Footprints] = {
        "whole image": [[[0, 0, SQUARE, SQUARE]]] * len(evaluated),
        "uniform": [uniform] * len(evaluated),
        "centre bias": lattice.best(centred, budget).tolist(),
        "saliency (before learning)": lattice.best(evaluated.salience((grid,)), budget).tolist(),
        "learned": task.hard_boxes().tolist(),
        "objects known": lattice.best(objects, budget).tolist(),
    }
    return {name: measured(own, evaluated.boxes) for name, own in footprints.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything. IoU of each relaxation and last temperature is per photograph, hard and soft."""
    steps = check_count("--steps", "N", options.steps, 1)
    base = Hypothesis.Settings(data=options.data, anneal=steps, limit=options.limit)
    found = {
        name: trained(Hypothesis(replace(base, grids=grids, learn_scale=len(grids) > 1)), steps)
        for name, grids in VARIANTS.items()
    }
    quarter = found["a quarter"]

    def again(**changed: Any) -> dict[str, list[float]]:
        """The same photographs with other settings; the same run if nothing changed."""
        settings = replace(quarter.settings, **changed)
        same = settings == quarter.settings
        task = quarter if same else trained(Hypothesis(settings, (quarter.train, quarter.evaluated)), steps)
        return {"hard": task.hard()["iou"], "soft": task.soft_overlaps()}

    return {
        "learned_numbers": sum(one.numel() for one in quarter.module.parameters() if one.requires_grad),
        "tokens": base.tokens,
        "steps": steps,
        "photographs": {"train": len(quarter.train), "eval": len(quarter.evaluated)},
        "methods": {name: compared(task) for name, task in found.items()},
        "relaxations": {name: [again(relaxation=name, seed=seed) for seed in SEEDS] for name in RELAXATIONS},
        "temperatures": {f"{last:g}": again(last_temperature=last) for last in (*TEMPERATURES, base.last_temperature)},
    }


def report(record: dict[str, Any]) -> str:
    area = np.mean(record["methods"]["a quarter"]["learned"]["objects"])
    blocks = []
    for variant, methods in record["methods"].items():
        heads = ["method", "covered", "on objects", "lift", "IoU", "IoU, difference to uniform"]
        heads.append("difference to saliency")
        rows = [_method_row(name, methods) for name in methods]
        blocks += [f"## Footprints that cover {variant}", markdown_table(heads, rows)]
    hard = {name: np.mean([one["hard"] for one in runs], 0) for name, runs in record["relaxations"].items()}
    relaxations = []
    for name, runs in record["relaxations"].items():
        soft = np.mean([one["soft"] for one in runs], 0)
        difference = "–" if name == "sigmoid" else _difference(hard[name], hard["sigmoid"])
        each = ", ".join(f"{np.mean(one['hard']):.4f}" for one in runs)
        means = (f"{np.mean(hard[name]):.4f}", each, f"{np.mean(soft):.4f}")
        relaxations.append((name, *means, _difference(hard[name], soft), difference))
    ends = []
    for last, own in sorted(record["temperatures"].items(), key=lambda item: -float(item[0])):
        soft_and_hard = (f"{np.mean(own[kind]):.4f}" for kind in ("soft", "hard"))
        ends.append((last, *soft_and_hard, _difference(own["hard"], own["soft"])))
    return markdown_page(
        "# Can a hundred learned numbers put tokens on objects?",
        provenance(record)
        + f" {len(CHANNELS)} channels at {LEVELS} levels, {record['learned_numbers']} learned numbers (4 more where "
        f"sizes are learned; {LEVELS} are those of motion, which a still photograph does not have), {record['tokens']} "
        f"footprints, {record['steps']} steps on {record['photographs']['train']} `train` photographs; measured on "
        f"{record['photographs']['eval']} `eval` photographs, whose boxes cover {area:.0%} of the area.",
        "IoU: of the union of all footprints with the union of all boxes, by pixels, mean over photographs. Lift: the "
        "share of the covered area that lies on objects, over the objects' share of the image; 1 is chance. Methods "
        "that need no learning cover as much as the learned one. Objects known: the tiles with the largest share in "
        "boxes, the best that any scores could do. Differences are paired by photograph, with 95% bootstrap intervals.",
        *blocks,
        "## Relaxations of top-K (covering a quarter)",
        "Hard: what is deployed. Soft: the overlap that training sees at its last temperature (with gumbel, a draw "
        "with noise). Means over the seeds; the difference is to sigmoid with the same seeds.",
        markdown_table(
            ("relaxation", "hard IoU", "each seed", "soft IoU", "hard − soft", "hard IoU, difference to sigmoid"),
            relaxations,
        ),
        "## How cold training must end (sigmoid, covering a quarter)",
        markdown_table(("last temperature", "soft IoU", "hard IoU", "hard − soft"), ends),
    )


def _method_row(name: str, methods: dict[str, Measures]) -> list[str]:
    own = methods[name]
    lift = format_interval(pooled_ratio(own["on_objects"], own["objects"]), ".2f")
    means = {key: f"{np.mean(values):.3f}" for key, values in own.items()}
    rivals = ("–" if name == rival else _difference(own["iou"], methods[rival]["iou"]) for rival in RIVALS)
    return [name, means["covered"], means["on_objects"], lift, means["iou"], *rivals]


def _difference(ours: Any, theirs: Any) -> str:
    return format_interval(paired_difference(ours, theirs))


STEPS = option("--steps", type=int, default=1000, metavar="N", help="(default: 1000)")
main = study_main(__name__, __doc__, measure, report, STEPS)
