"""The experiment of `hypothesis`: before and after learning beside what needs none, the relaxations beside each other.

All methods give out the same number of footprints; what needs no learning gets the area that the learned ones cover
(on a lattice whose tiles have it), since a larger area alone raises the overlap: boxes cover half of a photograph.
"""

from __future__ import annotations

import csv
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from texturevlm.evaluate.objects import painted
from texturevlm.evaluate.statistics import Interval, paired_difference, pooled_ratio
from texturevlm.train.config import FitConfig
from texturevlm.train.fit import fit
from studies.heat import heat_maps
from studies.hypothesis import AREA, Hypothesis, measured
from studies.photographs import CHANNELS, LEVELS, SQUARE, Photographs, lattice
from studies.relax import WAYS

# Candidates along a side; 64 of them cover a quarter, half, or, with three sizes, what is learned to be best.
VARIANTS: dict[str, tuple[int, ...]] = {"a quarter": (16,), "half": (11,), "as much as learned": (4, 8, 16)}
RATE, SEEDS, TEMPERATURES = 0.03, (0, 1, 2), (1.0, 0.3, 0.1, 0.01)
SHOWN = (0.15, 0.5, 0.85)  # of the judged photographs: whose heat maps are drawn
Row = dict[str, float]


@dataclass(frozen=True, eq=False)
class Trained:
    """A task after its steps: a row of measures a judged photograph, and their soft overlaps."""

    task: Hypothesis
    hard: list[Row]
    soft: list[float]

    @property
    def iou(self) -> float:
        return _mean(self.hard, "iou")


def experiment(data: Path, out: Path, *, cache: Path, steps: int, limit: int | None = None) -> None:
    """Everything, written to hypothesis.md, hypothesis.csv and hypothesis.png."""
    base = Hypothesis.Settings(data=data, cache=cache, anneal=steps, limit=limit)
    found: dict[str, Trained] = {}
    tables: dict[str, dict[str, list[Row]]] = {}
    for name, grids in VARIANTS.items():
        first = Hypothesis(replace(base, grids=grids, learn_scale=len(grids) > 1))
        found[name] = trained(first, steps, f"covering {name}")
        tables[name] = beside(found[name])
    quarter = found["a quarter"]
    ways = {(way, seed): _again(quarter, steps, way=way, seed=seed) for way in WAYS for seed in SEEDS}
    ends = {last: _again(quarter, steps, last_temperature=last) for last in TEMPERATURES}
    ends[base.last_temperature] = quarter
    out.mkdir(parents=True, exist_ok=True)
    command = f"python -m studies.hypothesis DATA --out DIR --steps {steps}"
    command += f" --limit {limit}" if limit else ""
    text = [*_head(command, quarter), *_methods(tables), *_relaxations(ways), *_ends(ends)]
    (out / "hypothesis.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    _write_csv(out / "hypothesis.csv", tables)
    _draw(quarter).save(out / "hypothesis.png")
    print("\n".join(text))


def trained(task: Hypothesis, steps: int, name: str) -> Trained:
    print(f"{name}: {task.settings.way}, seed {task.settings.seed}", file=sys.stderr, flush=True)
    config = FitConfig(steps=steps, rate=RATE, seed=task.settings.seed, save_every=0, device=task.device)
    with tempfile.TemporaryDirectory() as folder:
        fit(task, config, folder)
    return Trained(task, rows_of(task.hard_boxes(), task.judged), task.soft_overlaps())


def _again(model: Trained, steps: int, **changed: object) -> Trained:
    """The same photographs, other settings; the same run if nothing is other."""
    old = model.task
    settings = replace(old.settings, **changed)  # type: ignore[arg-type]
    if settings == old.settings:
        return model
    name = ", ".join(f"{key} {value}" for key, value in changed.items())
    return trained(Hypothesis(settings, device=old.device, train=old.train, judged=old.judged), steps, name)


def rows_of(footprints: Sequence[Sequence[Sequence[float]]], judged: Photographs) -> list[Row]:
    return [measured(own, objects) for own, objects in zip(footprints, judged.boxes)]


def beside(model: Trained) -> dict[str, list[Row]]:
    """Rows a photograph of what was learned, and of what needs no learning, covering as much."""
    judged, budget = model.task.judged, model.task.settings.tokens
    grid = max(round(budget**0.5), round((budget / _mean(model.hard, "covered")) ** 0.5))
    tiles = lattice((grid,))
    middle = (tiles.centre - SQUARE / 2).square().sum(1)
    shares = [painted(boxes, AREA).float()[None, None] for boxes in judged.boxes]
    objects = torch.cat([functional.adaptive_avg_pool2d(one, (grid, grid)).flatten(1) for one in shares])
    chosen = {
        "centre bias": -middle.expand(len(judged), -1),
        "saliency (before learning)": judged.salience((grid,)),
        "objects known": objects,
    }
    found = {
        name: rows_of(tiles.allocation_of_best(scores, budget).boxes.tolist(), judged)
        for name, scores in chosen.items()
    }
    return {
        "whole image": rows_of([[[0, 0, SQUARE, SQUARE]]] * len(judged), judged),
        "uniform": rows_of([_spread(budget, SQUARE / grid)] * len(judged), judged),
        **{name: found[name] for name in ("centre bias", "saliency (before learning)")},
        "learned": model.hard,
        "objects known": found["objects known"],
    }


def _spread(budget: int, side: float) -> list[list[float]]:
    """Footprints of a side, evenly over the square: as many as make a square of them."""
    along = int(budget**0.5)
    centres = [(index + 0.5) * SQUARE / along for index in range(along)]
    return [[x - side / 2, y - side / 2, x + side / 2, y + side / 2] for y in centres for x in centres]


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows]


def _interval(value: Interval) -> str:
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})"


def _head(command: str, model: Trained) -> list[str]:
    task = model.task
    count = sum(one.numel() for one in task.module.parameters() if one.requires_grad)
    objects = _mean(model.hard, "objects")
    return [
        "# Can a hundred learned numbers put tokens on objects?",
        "",
        f"Command: `{command}`; torch {torch.__version__}, Python {platform.python_version()}. {len(CHANNELS)} "
        f"channels at {LEVELS} levels, {count} learned numbers (4 more where sizes are learned; "
        f"{LEVELS} are those of motion, which a still photograph has not), "
        f"{task.settings.tokens} footprints, {task.settings.anneal} steps on {len(task.train)} `train` photographs; "
        f"measured on {len(task.judged)} `eval` photographs, whose boxes cover {objects:.0%} of the area.",
        "",
        "IoU: of the union of all footprints with the union of all boxes, by pixels, mean over photographs. Lift: the "
        "share of what footprints cover that lies on objects, over the objects' share of the image; 1 is chance. "
        "Methods that need no learning cover as much as the learned one. Objects known: the tiles that most of a box "
        "lies in, the best that any scores could do there. Differences are paired by photograph, with 95% bootstrap "
        "intervals.",
    ]


def _methods(tables: dict[str, dict[str, list[Row]]]) -> list[str]:
    text = []
    for variant, methods in tables.items():
        text += ["", f"## Footprints that cover {variant}", ""]
        text += ["| method | covered | on objects | lift | IoU | IoU, difference to uniform | difference to saliency |"]
        text += ["|---|---|---|---|---|---|---|"]
        for name, rows in methods.items():
            lift = pooled_ratio(_column(rows, "on_objects"), _column(rows, "objects"))
            against = [
                _interval(paired_difference(_column(rows, "iou"), _column(methods[other], "iou")))
                if name != other
                else "–"
                for other in ("uniform", "saliency (before learning)")
            ]
            text.append(
                f"| {name} | {_mean(rows, 'covered'):.3f} | {_mean(rows, 'on_objects'):.3f} | "
                f"{lift.mean:.2f} ({lift.low:.2f} to {lift.high:.2f}) | {_mean(rows, 'iou'):.3f} | "
                + " | ".join(against)
                + " |"
            )
    return text


def _relaxations(ways: dict[tuple[str, int], Trained]) -> list[str]:
    text = ["", "## Relaxations of top-K (covering a quarter)", ""]
    text += [
        "Hard: what is deployed. Soft: the overlap that training sees at its last temperature (with gumbel, a draw "
        "with noise). Means over the seeds; the difference is to sigmoid, of the same seeds.",
        "",
        "| way | hard IoU | each seed | soft IoU | hard − soft | hard IoU, difference to sigmoid |",
        "|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        own = [ways[way, seed] for seed in SEEDS]
        hard, soft = _together([_column(one.hard, "iou") for one in own]), _together([one.soft for one in own])
        other = _together([_column(ways["sigmoid", seed].hard, "iou") for seed in SEEDS])
        each = ", ".join(f"{one.iou:.4f}" for one in own)
        against = "–" if way == "sigmoid" else _interval(paired_difference(hard, other))
        gap = _interval(paired_difference(hard, soft))
        text.append(
            f"| {way} | {sum(hard) / len(hard):.4f} | {each} | {sum(soft) / len(soft):.4f} | {gap} | {against} |"
        )
    return text


def _together(columns: Sequence[Sequence[float]]) -> list[float]:
    """The mean over runs, photograph by photograph."""
    return torch.tensor(columns, dtype=torch.float64).mean(0).tolist()


def _ends(ends: dict[float, Trained]) -> list[str]:
    text = ["", "## How cold training must end (sigmoid, covering a quarter)", ""]
    text += ["| last temperature | soft IoU | hard IoU | hard − soft |", "|---|---|---|---|"]
    for last, own in sorted(ends.items(), reverse=True):
        gap = _interval(paired_difference(_column(own.hard, "iou"), own.soft))
        text.append(f"| {last:g} | {sum(own.soft) / len(own.soft):.4f} | {own.iou:.4f} | {gap} |")
    return text


def _write_csv(path: Path, tables: dict[str, dict[str, list[Row]]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["footprints_cover", "method", "photograph", "iou", "covered", "objects", "on_objects"])
        for variant, methods in tables.items():
            for method, rows in methods.items():
                for index, row in enumerate(rows):
                    numbers = [round(row[name], 5) for name in ("iou", "covered", "objects", "on_objects")]
                    writer.writerow([variant, method, index, *numbers])


def _draw(model: Trained) -> Image.Image:
    task = model.task
    grid = task.settings.grids[0]
    chosen = [round(share * (len(task.judged) - 1)) for share in SHOWN]
    maps: dict[str, Tensor] = {"salience, before": task.judged_salience, "learned": task.scores()}
    return heat_maps(
        [{name: one[index].view(grid, grid) for name, one in maps.items()} for index in chosen], task.settings.tokens
    )
