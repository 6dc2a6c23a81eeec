"""What each part of the reader's recipe is worth: short trainings that differ in one thing, beside one that does not.

    python -m texturevlm_lab.studies.reader_ablation RECIPE --out DIR [--seconds S] [--at-once N] [--only NAME,NAME]

RECIPE is a file like examples/train/reader.toml. N variations train at once, each in a process of its own, for S
seconds with smaller batches: most begin with the recipe's weights, those of the letters and of the optimiser from
nothing, on lines alone. They are judged by the loss on the same samples of held-out pages: rendered ones in unseen
fonts, and real ones of held-out documents of the train splits; once more with views of one scale alone and of choosers
alone, which says how much a reader favours the views that it was trained with. A variation of what the weights have
learned already (where the question stands, levels, coordinates) begins with a handicap: its row says what a change
would cost at most.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from texturevlm.check import check_choice, check_count
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import option, provenance, study_main
from texturevlm_lab.train.config import RunConfig, from_table, read_config
from texturevlm_lab.train.fit import fit
from texturevlm_lab.train.reader.alphabet import START, STOP
from texturevlm_lab.train.reader.forward import Prompts, answer_starts
from texturevlm_lab.train.reader.pool import Batch, Pool
from texturevlm_lab.train.reader.samples import CROPS, SHAPES, page_samples
from texturevlm_lab.train.reader.task import Drawn, ReaderTask
from texturevlm_lab.train.reader.views import AHEAD

POOLS = ("rendered", "real")
CHOSEN = {"fit": 0.6, "layers": 0.4, AHEAD: 1.0}  # views as choosers lay them, and no controls
KINDS = {"resize": {"resize": 1.0}, "chosen": CHOSEN}  # of views, judged apart
APART = "many"  # the shape that is judged by kinds of views
GAIN = "gain by choosing"  # the column that compares both kinds of views
SMALL = {"batch": 0.33, "room": 2500, "first": 200, "workers": 2, "choosers": 0.0, "judged": 48}
SCRATCH: dict[str, Any] = {"start": None, "lines": 10**6, "blocks": 10**6}
Change = Callable[[Prompts], Prompts]
Losses = dict[str, tuple[list[float], list[int]]]  # what was judged → the loss of each sample, and its page


def question_last(prompts: Prompts) -> Prompts:
    """The image first, then the question."""
    first = answer_starts(prompts.ids)[:, None]
    at = torch.arange(prompts.ids.shape[1], device=prompts.ids.device)[None]
    ids = prompts.ids.gather(1, torch.where((at >= 2) & (at < first), at - 2, at))
    ids = torch.where(at == 0, START, torch.where(at == 1, STOP, ids))
    return prompts._replace(ids=ids, before=torch.ones_like(prompts.before))


def levels_joint(prompts: Prompts) -> Prompts:
    """All tokens attend to one another in the vision tower."""
    segment = prompts.segment
    return prompts if segment is None else prompts._replace(segment=torch.zeros_like(segment))


@dataclass(frozen=True)
class Variation:
    """What differs from the recipe: weights of losses, settings of the loop and of the task, and prompts."""

    what: str
    losses: dict[str, float] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    change: Change | None = None
    coordinates: str = "native"


LINES = "from nothing, lines alone: "
VARIATIONS = {
    "recipe": Variation("the recipe"),
    "no_place": Variation("no loss on the place of answer and label", {"place": 0.0}),
    "question_last": Variation("the image before the question", change=question_last),
    "joint": Variation("levels together in the vision tower", change=levels_joint),
    "fine": Variation("fine coordinates in the vision tower", coordinates="fine"),
    "choosers_alone": Variation("views of choosers alone, no controls", own={"views": CHOSEN}),
    "no_resize": Variation(
        "no view of one scale (resize left out)",
        own={"views": {"oracle": 0.16, "fit": 0.5, "layers": 0.34, AHEAD: 1.0}},
    ),
    "no_choosers": Variation(
        "one scale and true places alone (choosers left out)",
        own={"views": {"resize": 0.3, "one scale": 0.3, "oracle": 0.4}},
    ),
    "lines": Variation(LINES + "the recipe", {"letters": 0.5}, {"rate": 1.5e-3}, SCRATCH),
    "lines_no_letters": Variation(LINES + "no letters head", {"letters": 0.0}, {"rate": 1.5e-3}, SCRATCH),
    "lines_adamw": Variation(
        LINES + "AdamW instead of Muon", {"letters": 0.5}, {"rate": 1e-3, "optimiser": "adamw"}, SCRATCH
    ),
}


class VariedTask(ReaderTask):
    """The reader's task with other prompts, judged by losses alone."""

    def __init__(self, settings: ReaderTask.Settings, *, device: str, change: Change | None) -> None:
        super().__init__(settings, device=device)
        self.change = change
        scratch = settings.start is None
        self.shapes = ["line"] if scratch else [shape for shape in SHAPES if shape not in CROPS]
        self.kinds = {} if scratch else KINDS
        self.losses_found: Losses = {}  # by the last evaluation

    def batch(self, step: int) -> Drawn:
        drawn = super().batch(step)
        return drawn._replace(batch=self._changed(drawn.batch))

    def judged(self, pool: Pool, shape: str) -> Any:
        found = super().judged(pool, shape)
        return None if found is None else (self._changed(found[0]), found[1])

    def _changed(self, batch: Batch) -> Batch:
        return batch if self.change is None else batch._replace(prompts=self.change(batch.prompts))

    def evaluate(self) -> dict[str, float]:
        pools = {f"{name}_{shape}": (self.held[name], shape) for name in POOLS for shape in self.shapes}
        pools |= {f"{kind} views": (pool, APART) for kind, pool in self._pools_by_kind().items()}
        judged = {key: self.judged(*where) for key, where in pools.items()}
        self.losses_found = {
            key: (self.sample_losses(one[0]).tolist(), one[1].tolist())
            for key, one in judged.items()
            if one is not None
        }
        return {key: sum(losses) / len(losses) for key, (losses, _) in self.losses_found.items()}

    def _pools_by_kind(self) -> dict[str, Pool]:
        """Kind of view → the held-out real pages, seen by such views alone."""
        pages = [page._replace(views=()) for page, _ in self.maker.held_out("real", self.settings.judged)]
        pools = {kind: Pool(max(1, len(pages)), self.device) for kind in self.kinds}
        for kind, pool in pools.items():
            for number, page in enumerate(pages):
                own = page_samples(page, np.random.default_rng([5, number]), kinds=self.kinds[kind])
                pool.add([(page, own)])
        return pools


def run_one(recipe: RunConfig, name: str, out: Path, seconds: float) -> None:
    """Train one variation; writes what is found."""
    variation = VARIATIONS[name]
    config = replace(
        recipe.fit,
        seconds=seconds,
        save_every=0,
        evaluate_every=0,
        log_every=1,
        warmup=50,
        average=0.0,
        losses={**recipe.fit.losses, **variation.losses},
        **variation.fit,
    )
    own = {**recipe.own, **SMALL, **variation.own}
    settings = from_table(
        ReaderTask.Settings, {key: value for key, value in own.items() if value is not None}, str(out)
    )
    Pool.coordinates = variation.coordinates
    task = VariedTask(settings, device=config.device, change=variation.change)
    try:
        fit(task, config, out / name)
    finally:
        task.workers.close()
    steps = sum(1 for _ in (out / name / "log.csv").open(encoding="utf-8")) - 1
    record = {"losses": task.losses_found, "steps": steps, "pages": task.pool.seen if task.pool else 0}
    (out / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    recipe, names = read_config(options.data), (options.only or ",".join(VARIATIONS)).split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    check_count("reader_ablation", "--at-once", options.at_once, 1)
    for name in names:
        check_choice("reader_ablation", "--only", name, VARIATIONS)
    if len(names) == 1:
        run_one(recipe, names[0], options.out, options.seconds)
    else:
        command = [
            sys.executable,
            "-m",
            "texturevlm_lab.studies.reader_ablation",
            str(options.data),
            "--out",
            str(options.out),
        ]
        more = ["--seconds", str(options.seconds)]
        for first in range(0, len(names), options.at_once):
            group = names[first : first + options.at_once]
            running = [subprocess.Popen([*command, *more, "--only", name]) for name in group]
            failed = [name for name, process in zip(group, running) if process.wait() != 0]
            if failed:
                raise RuntimeError(f"reader_ablation: {', '.join(failed)} did not end, see the error above")
    runs = {name: options.out / f"{name}.json" for name in VARIATIONS if name in names}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in runs.items()}
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"runs": found, "seconds": options.seconds, "device": card, "at_once": options.at_once}


def report(record: dict[str, Any]) -> str:
    shapes = [f"{pool}, {shape}" for pool in POOLS for shape in SHAPES if shape not in CROPS]
    heads = ["variation", "steps", *shapes, *(f"{kind} views" for kind in KINDS), GAIN]
    runs = record["runs"]
    asked = [name for name in runs if not VARIATIONS[name].own.get("lines")]
    lines = [name for name in runs if name not in asked]
    columns = ["rendered, line", "real, line"]
    rows = [_row(runs, name, lines[0], columns) for name in lines]
    scratch = ["From nothing, on lines alone:", markdown_table(["variation", "steps", *columns], rows)] if rows else []
    return markdown_page(
        "# What each part of the reader's recipe is worth",
        provenance(record, record["device"]),
        f"Each variation trained for {record['seconds']:.0f} s, {record['at_once']} of them at once on one GPU, with a "
        "third of the recipe's batch. Loss per character of the true answer on held-out pages; in other rows the "
        "difference to the first row, 95% intervals by resampling pages; more than 0 is worse. `few`, `many`, "
        f"`most` have up to 96, 288, 512 visual tokens; the last columns are of real pages in `{APART}`, and `{GAIN}` "
        "is how much less is lost on chosen views than on those of one scale, per page (less than 0 in other rows: the "
        "gain is smaller). Where the "
        "question stands, levels and coordinates are changed in weights that learned them otherwise: those rows say "
        "what a change would cost at most.",
        markdown_table(heads, [_row(runs, name, asked[0], heads[2:]) for name in asked]),
        *scratch,
    )


def _row(runs: dict[str, Any], name: str, first: str, columns: Sequence[str]) -> list[str]:
    cells = []
    for column in columns:
        key = column.replace(", ", "_")
        own, base = (_gain(runs[one]) if key == GAIN else runs[one]["losses"].get(key) for one in (name, first))
        if own is None or base is None:
            cells.append("")
        elif name == first:
            cells.append(f"{sum(own[0]) / len(own[0]):.3f}")
        else:
            cells.append(format_interval(paired_difference(own[0], base[0], groups=base[1])))
    return [VARIATIONS[name].what, str(runs[name]["steps"]), *cells]


def _gain(run: dict[str, Any]) -> tuple[list[float], list[int]] | None:
    """For each page how much less is lost on chosen views than on those of one scale; and the pages."""
    kinds = [run["losses"].get(f"{kind} views") for kind in KINDS]
    if any(one is None for one in kinds):
        return None
    means = [{page: np.mean(np.array(losses)[np.array(at) == page]) for page in set(at)} for losses, at in kinds]
    pages = sorted(means[0].keys() & means[1].keys())
    return [float(means[0][page] - means[1][page]) for page in pages], pages


main = study_main(
    __name__,
    __doc__,
    measure,
    report,
    option("--seconds", type=float, default=90.0, metavar="S", help="of each training (default: 90)"),
    option("--at-once", type=int, default=3, metavar="N", help="trainings that share the GPU (default: 3)"),
    option("--only", metavar="NAME,NAME", help="some of the variations (default: all)"),
)
