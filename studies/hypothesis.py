"""The smallest test of learned relevance: can about a hundred learned numbers put tokens on objects?

    python -m studies.hypothesis DATA --out results [--steps N] [--limit N]

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
import csv
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.soft_tokens import RELAXATIONS, Lattice, SoftTokens, box_shares, covered, soft_iou, soften
from studies.study import provenance, run_study, study_parser, versions
from texturevlm.channels import build
from texturevlm.channels.registry import PRESETS
from texturevlm.check import check_choice, check_count
from texturevlm.evaluate.data import Box, Sample, load_data
from texturevlm.evaluate.markdown import format_interval
from texturevlm.evaluate.objects import painted
from texturevlm.evaluate.statistics import paired_difference, pooled_ratio
from texturevlm.ops.lookup import lookup
from texturevlm.progress import Progress
from texturevlm.relevance import ImageMaps, image_maps
from texturevlm.relevance.balance import Balance
from texturevlm.train.config import FitConfig
from texturevlm.train.fit import draw_examples, fit, generator_at
from texturevlm.types import Texture

SQUARE = 512  # side of the square that photographs are laid on
AREA = (SQUARE, SQUARE)
CHANNELS = PRESETS["mvp"]
_FINEST, LEVELS = 2, 7  # texels of 4 to 256 pixels
SALIENCE_GRID, LOSS_GRID, EVAL_GRID = 64, 32, 64  # cells along the square's side
_PATCH = 32
MOST_ZOOM = 1.0  # octaves by which footprints may grow or shrink
_LEAST = 1e-12  # of a probability: the power of zero has no gradient
HOLD = 0.1  # the last share of the steps stays at the last temperature
# Candidates along a side; 64 of them cover a quarter, half, or, with three sizes, what is learned to be best.
VARIANTS: dict[str, tuple[int, ...]] = {"a quarter": (16,), "half": (11,), "as much as learned": (4, 8, 16)}
_RATE, SEEDS, TEMPERATURES = 0.03, (0, 1, 2), (1.0, 0.3, 0.1, 0.01)
SHOWN = (0.15, 0.5, 0.85)  # quantiles of the evaluated photographs whose heat maps are drawn
Measures = dict[str, float]


# ---- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Photographs:
    """M photographs, N candidates each.

    channels: (M, N, LEVELS, C), read at each candidate's centre, finest level first
    base:     (M, SALIENCE_GRID, SALIENCE_GRID), salience without learning
    objects:  (M, LOSS_GRID, LOSS_GRID), the share of each cell inside some object's box
    boxes:    of the objects, in pixels of the square
    """

    channels: Tensor
    base: Tensor
    objects: Tensor
    boxes: tuple[tuple[Box, ...], ...]

    def __len__(self) -> int:
        return len(self.channels)

    def salience(self, grids: Sequence[int]) -> Tensor:
        """(M, N): salience of the candidates of `square_lattice(grids)`; each grid sums to 1."""
        pooled = [functional.adaptive_avg_pool2d(self.base[:, None], (grid, grid)).flatten(1) for grid in grids]
        return torch.cat([one / one.sum(1, keepdim=True) for one in pooled], 1)


def square_lattice(grids: Sequence[int]) -> Lattice:
    """grid × grid candidates on the square for each of the grids, which are given coarse before fine."""
    if list(grids) != sorted(set(grids)):
        raise ValueError(f"square_lattice: grids must be different and coarse before fine, got {tuple(grids)}")
    return Lattice.of(AREA, patch=_PATCH, sides=[SQUARE / grid for grid in grids])


def read_photographs(data: Path, split: str, lattice: Lattice, *, limit: int | None = None) -> Photographs:
    """The photographs of a split that have objects; `limit` of them, evenly spread."""
    found = list({sample.image: sample for sample in load_data(data, split=split, located=True).samples}.values())
    if limit is not None and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    progress = Progress(len(found), f"{split} photographs")
    channels, base = [], []
    for sample in found:
        texture = Texture.open(sample.image)
        channels.append(read_channels(build(texture, CHANNELS, base=0), lattice))
        salience = image_maps(texture).salience[:, None]
        base.append(functional.adaptive_avg_pool2d(salience, (SALIENCE_GRID, SALIENCE_GRID))[0])
        progress.step()
    boxes = tuple(_on_square(sample) for sample in found)
    shares = [box_shares(torch.tensor(one), AREA, (LOSS_GRID, LOSS_GRID)) for one in boxes]
    return Photographs(torch.cat(channels), torch.cat(base), torch.stack(shares), boxes)


def read_channels(texture: Texture, lattice: Lattice) -> Tensor:
    """(B, N, LEVELS, C): the texture's channels at each candidate's centre, from level _FINEST on."""
    levels = [level.half().float() for level in texture.levels[min(_FINEST, len(texture.levels) - 1) :]]
    height, width = levels[0].shape[2:]
    points = lattice.centre * torch.tensor([width / lattice.size[1], height / lattice.size[0]])
    repeated = points.repeat_interleave(LEVELS, 0).expand(texture.batch, -1, -1)
    lod = torch.arange(LEVELS).float().repeat(len(points)).expand(texture.batch, -1)
    return lookup(levels, repeated, lod).view(texture.batch, len(points), LEVELS, -1)


def _on_square(sample: Sample) -> tuple[Box, ...]:
    across, down = SQUARE / sample.size[1], SQUARE / sample.size[0]
    return tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in sample.objects)


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
        """(B, N, LEVELS, C) and (B, N) → scores (B, N), and a number: octaves by which footprints are larger."""
        wanted = torch.einsum("bnlc,lc->bn", (channels - self.mean) / self.deviation, self.weight)
        finer = torch.exp2(self.particularise.clamp(-MOST_ZOOM, MOST_ZOOM))
        balance = Balance(self.explore.sigmoid(), self.focus.exp(), finer)
        row = salience[:, None]  # one row of cells: positions do not matter here
        learned = wanted.softmax(1).clamp(min=_LEAST)[:, None]
        maps = ImageMaps(row, torch.ones_like(row), torch.ones_like(row, dtype=torch.bool))
        found = balance.weigh(learned, maps, AREA)
        return found.mass[:, 0].clamp(min=_LEAST).log() + self.size[self.which], found.legible_scale[0, 0, 0].log2()


class Hypothesis:
    """The task, as `texturevlm.train.fit` trains it."""

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
        if data is None:
            train, evaluated = (
                read_photographs(settings.data, split, self.lattice, limit=settings.limit)
                for split in ("train", "eval")
            )
            data = train, evaluated
        self.train, self.evaluated = data
        self.salience, self.evaluated_salience = (part.salience(settings.grids) for part in data)
        self.module = WeightedChannels(self.train.channels, settings.grids, learn_scale=settings.learn_scale)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen = draw_examples(len(self.train), self.settings.batch, seed=self.settings.seed, step=step)
        return self.train.channels[chosen], self.salience[chosen], self.train.objects[chosen]

    def losses(self, batch: tuple[Tensor, Tensor, Tensor], step: int) -> dict[str, Tensor]:
        channels, salience, objects = batch
        cover = covered(self.soft(channels, salience, step), (LOSS_GRID, LOSS_GRID))
        return {"overlap": (1 - soft_iou(cover, objects)).mean()}

    def soft(self, channels: Tensor, salience: Tensor, step: int) -> SoftTokens:
        """The soft tokens at a step's temperature."""
        own = self.settings
        scores, zoom = self.module(channels, salience)
        return soften(
            self.lattice,
            scores,
            own.tokens,
            relaxation=own.relaxation,
            temperature=annealed(step, own.anneal, own.first_temperature, own.last_temperature),
            zoom=zoom.expand(scores.shape),
            generator=generator_at(own.seed, step, "gumbel") if own.relaxation == "gumbel" else None,
        )

    def evaluate(self) -> Measures:
        """Means over the `eval` photographs: soft at the last temperature, and hard."""
        rows, soft = measure_all(self.hard_boxes(), self.evaluated), self.soft_overlaps()
        return {
            "hard_iou": _mean(rows, "iou"),
            "soft_iou": sum(soft) / len(soft),
            "covered": _mean(rows, "covered"),
            "lift": _mean(rows, "on_objects") / _mean(rows, "objects"),
        }

    @torch.no_grad()
    def soft_overlaps(self) -> list[float]:
        """IoU of each `eval` photograph as training sees it at the end."""
        found = []
        for index, boxes in enumerate(self.evaluated.boxes):
            one = slice(index, index + 1)
            tokens = self.soft(self.evaluated.channels[one], self.evaluated_salience[one], self.settings.anneal)
            objects = box_shares(torch.tensor(boxes), AREA, (EVAL_GRID, EVAL_GRID))[None]
            found.append(soft_iou(covered(tokens, (EVAL_GRID, EVAL_GRID)), objects).item())
        return found

    @torch.no_grad()
    def hard_boxes(self) -> list[list[list[float]]]:
        """The footprints of the ordinary allocation of each `eval` photograph."""
        tokens = self.soft(self.evaluated.channels, self.evaluated_salience, self.settings.anneal)
        return tokens.harden(self.settings.tokens).boxes.tolist()

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(M, N): scores of the candidates of the `eval` photographs."""
        scores: Tensor = self.module(self.evaluated.channels, self.evaluated_salience)[0]
        return scores


def annealed(step: int, steps: int, first: float, last: float) -> float:
    """The temperature of a step: from first to last by equal factors, then constant."""
    return first * math.pow(last / first, min(1.0, step / max(1.0, (steps - 1) * (1 - HOLD))))


def measured(footprints: Sequence[Sequence[float]], objects: Sequence[Sequence[float]]) -> Measures:
    """By pixels of the square: IoU of the union of footprints with the union of objects, the share of the square that
    footprints cover and that objects cover, and the share of the covered area that lies on objects."""
    cover, there = painted(footprints, AREA), painted(objects, AREA)
    both, area = int((cover & there).sum()), int(cover.sum())
    return {
        "iou": both / max(1, int((cover | there).sum())),
        "covered": area / cover.numel(),
        "objects": int(there.sum()) / there.numel(),
        "on_objects": both / max(1, area),
    }


def measure_all(footprints: Sequence[Sequence[Sequence[float]]], evaluated: Photographs) -> list[Measures]:
    return [measured(own, objects) for own, objects in zip(footprints, evaluated.boxes)]


# ---- the experiment -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trained:
    """A task after its steps: measures and soft overlaps per `eval` photograph."""

    task: Hypothesis
    hard: list[Measures]
    soft: list[float]


def trained(task: Hypothesis, steps: int) -> Trained:
    own = task.settings
    print(f"grids {own.grids}, {own.relaxation}, to {own.last_temperature}, seed {own.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        fit(task, FitConfig(steps=steps, rate=_RATE, seed=own.seed, save_every=0), folder)
    return Trained(task, measure_all(task.hard_boxes(), task.evaluated), task.soft_overlaps())


def _again(model: Trained, steps: int, **changed: Any) -> Trained:
    """The same photographs with other settings; the same run if nothing changed."""
    old = model.task
    settings = replace(old.settings, **changed)
    return model if settings == old.settings else trained(Hypothesis(settings, (old.train, old.evaluated)), steps)


def compared(model: Trained) -> dict[str, list[Measures]]:
    """Rows per photograph of the learned method, and of methods without learning that cover as much."""
    evaluated, budget = model.task.evaluated, model.task.settings.tokens
    grid = max(round(budget**0.5), round((budget / _mean(model.hard, "covered")) ** 0.5))
    lattice = square_lattice((grid,))
    shares = [painted(boxes, AREA).float()[None, None] for boxes in evaluated.boxes]
    objects = torch.cat([functional.adaptive_avg_pool2d(one, (grid, grid)).flatten(1) for one in shares])
    middle = (lattice.centre - SQUARE / 2).square().sum(1)

    def best(scores: Tensor) -> list[Measures]:
        return measure_all(lattice.best(scores, budget).boxes.tolist(), evaluated)

    return {
        "whole image": measure_all([[[0, 0, SQUARE, SQUARE]]] * len(evaluated), evaluated),
        "uniform": measure_all([_uniform(budget, SQUARE / grid)] * len(evaluated), evaluated),
        "centre bias": best(-middle.expand(len(evaluated), -1)),
        "saliency (before learning)": best(evaluated.salience((grid,))),
        "learned": model.hard,
        "objects known": best(objects),
    }


def _uniform(budget: int, side: float) -> list[list[float]]:
    """Footprints of a side, evenly over the square: the largest square number within the budget."""
    along = int(budget**0.5)
    centres = [(index + 0.5) * SQUARE / along for index in range(along)]
    return [[x - side / 2, y - side / 2, x + side / 2, y + side / 2] for y in centres for x in centres]


def _mean(rows: Sequence[Measures], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _column(rows: Sequence[Measures], name: str) -> list[float]:
    return [row[name] for row in rows]


def experiment(options: argparse.Namespace, command: str) -> None:
    """Train everything; write hypothesis.md, hypothesis.csv and hypothesis.png."""
    steps, out = check_count("--steps", "N", options.steps, 1), options.out
    base = Hypothesis.Settings(data=options.data, anneal=steps, limit=options.limit)
    found = {
        name: trained(Hypothesis(replace(base, grids=grids, learn_scale=len(grids) > 1)), steps)
        for name, grids in VARIANTS.items()
    }
    tables = {name: compared(model) for name, model in found.items()}
    quarter = found["a quarter"]
    seeds = {(name, seed): _again(quarter, steps, relaxation=name, seed=seed) for name in RELAXATIONS for seed in SEEDS}
    ends = {last: _again(quarter, steps, last_temperature=last) for last in TEMPERATURES}
    ends[base.last_temperature] = quarter
    out.mkdir(parents=True, exist_ok=True)
    text = [*_head(command, quarter), *_methods(tables), *_relaxations(seeds), *_ends(ends)]
    (out / "hypothesis.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    _write_csv(out / "hypothesis.csv", tables)
    _draw(quarter, out / "hypothesis.png")
    print("\n".join(text))


def _head(command: str, model: Trained) -> list[str]:
    task = model.task
    count = sum(one.numel() for one in task.module.parameters() if one.requires_grad)
    return [
        "# Can a hundred learned numbers put tokens on objects?",
        "",
        provenance({"command": command, **versions()})
        + f" {len(CHANNELS)} channels at {LEVELS} levels, {count} learned numbers (4 more where sizes are learned; "
        f"{LEVELS} are those of motion, which a still photograph does not have), {task.settings.tokens} footprints, "
        f"{task.settings.anneal} steps on {len(task.train)} `train` photographs; measured on {len(task.evaluated)} "
        f"`eval` photographs, whose boxes cover {_mean(model.hard, 'objects'):.0%} of the area.",
        "",
        "IoU: of the union of all footprints with the union of all boxes, by pixels, mean over photographs. Lift: the "
        "share of the covered area that lies on objects, over the objects' share of the image; 1 is chance. Methods "
        "that need no learning cover as much as the learned one. Objects known: the tiles with the largest share in "
        "boxes, the best that any scores could do. Differences are paired by photograph, with 95% bootstrap intervals.",
    ]


def _methods(tables: dict[str, dict[str, list[Measures]]]) -> list[str]:
    text = []
    for variant, methods in tables.items():
        text += ["", f"## Footprints that cover {variant}", ""]
        text += ["| method | covered | on objects | lift | IoU | IoU, difference to uniform | difference to saliency |"]
        text += ["|---|---|---|---|---|---|---|"]
        for name, rows in methods.items():
            lift = pooled_ratio(_column(rows, "on_objects"), _column(rows, "objects"))
            differences = " | ".join(
                "–"
                if name == other
                else format_interval(paired_difference(_column(rows, "iou"), _column(methods[other], "iou")))
                for other in ("uniform", "saliency (before learning)")
            )
            text.append(
                f"| {name} | {_mean(rows, 'covered'):.3f} | {_mean(rows, 'on_objects'):.3f} | {lift.mean:.2f} "
                f"({lift.low:.2f} to {lift.high:.2f}) | {_mean(rows, 'iou'):.3f} | {differences} |"
            )
    return text


def _relaxations(models: dict[tuple[str, int], Trained]) -> list[str]:
    text = [
        "",
        "## Relaxations of top-K (covering a quarter)",
        "",
        "Hard: what is deployed. Soft: the overlap that training sees at its last temperature (with gumbel, a draw "
        "with noise). Means over the seeds; the difference is to sigmoid with the same seeds.",
        "",
        "| relaxation | hard IoU | each seed | soft IoU | hard − soft | hard IoU, difference to sigmoid |",
        "|---|---|---|---|---|---|",
    ]

    def over_seeds(columns: list[list[float]]) -> list[float]:
        return torch.tensor(columns, dtype=torch.float64).mean(0).tolist()

    hard = {name: over_seeds([_column(models[name, seed].hard, "iou") for seed in SEEDS]) for name in RELAXATIONS}
    for name, own in hard.items():
        soft = over_seeds([models[name, seed].soft for seed in SEEDS])
        each = ", ".join(f"{_mean(models[name, seed].hard, 'iou'):.4f}" for seed in SEEDS)
        difference = "–" if name == "sigmoid" else format_interval(paired_difference(own, hard["sigmoid"]))
        text.append(
            f"| {name} | {sum(own) / len(own):.4f} | {each} | {sum(soft) / len(soft):.4f} | "
            f"{format_interval(paired_difference(own, soft))} | {difference} |"
        )
    return text


def _ends(ends: dict[float, Trained]) -> list[str]:
    text = ["", "## How cold training must end (sigmoid, covering a quarter)", ""]
    text += ["| last temperature | soft IoU | hard IoU | hard − soft |", "|---|---|---|---|"]
    for last, own in sorted(ends.items(), reverse=True):
        gap = format_interval(paired_difference(_column(own.hard, "iou"), own.soft))
        text.append(f"| {last:g} | {sum(own.soft) / len(own.soft):.4f} | {_mean(own.hard, 'iou'):.4f} | {gap} |")
    return text


def _write_csv(path: Path, tables: dict[str, dict[str, list[Measures]]]) -> None:
    names = ("iou", "covered", "objects", "on_objects")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["footprints_cover", "method", "photograph", *names])
        for variant, methods in tables.items():
            for method, rows in methods.items():
                for index, row in enumerate(rows):
                    writer.writerow([variant, method, index, *(round(row[name], 5) for name in names)])


def _draw(model: Trained, path: Path) -> None:
    """Heat maps of the candidates' ranks, and nothing of the photographs; the chosen candidates are framed."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    task, grid = model.task, model.task.settings.grids[0]
    maps = {"salience, before": task.evaluated_salience, "learned": task.scores()}
    figure = Figure(figsize=(7, 10.5), layout="constrained")
    axes = figure.subplots(len(SHOWN), len(maps), squeeze=False)
    for row, share in zip(axes, SHOWN):
        for axis, (name, one) in zip(row, maps.items()):
            rank = one[round(share * (len(one) - 1))].argsort(descending=True, stable=True).argsort()
            axis.imshow(rank.view(grid, grid).numpy(), cmap="magma_r")
            for cell in (rank < task.settings.tokens).nonzero()[:, 0].tolist():
                axis.add_patch(Rectangle((cell % grid - 0.5, cell // grid - 0.5), 1, 1, fill=False, edgecolor="cyan"))
            axis.set(title=name, xticks=[], yticks=[])
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = study_parser("hypothesis", __doc__)
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="(default: 1000)")
    return run_study(parser, arguments, experiment)


if __name__ == "__main__":
    sys.exit(main())
