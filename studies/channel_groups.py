"""Which groups of channels help the channel scorer? Weights are trained with ever more groups of them.

    python -m studies.channel_groups DATA --words CACHE --out DIR [--limit N]

DATA holds the data sets of examples/train/channels.toml. Only `train` images are used. Those that training holds out
are measured: the share of a place (answer box, objects) in the tenth of the area that is ranked highest. --limit is the
number of images per data set. Groups that no training image has (temporal, embeddings, gaze and attention) cannot be
measured here; their weights are stated.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from studies.relevance import gain
from studies.study import option, provenance, study_main
from texturevlm.channels import CHANNELS
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.relevance.channel_features import OF_MAPS
from texturevlm.train.channel_task import IMAGES_PER_SET, ChannelTask, in_top_tenth
from texturevlm.train.config import FitConfig
from texturevlm.train.fit import fit

GROUPS = {
    "colour and position": ("red", "green", "blue", "x", "y", "eccentricity"),
    "+ structure": ("edges", "edges_inverted", "high_pass", "low_pass", "edge_distance", "saliency", "text"),
    "+ clusters": ("cluster_distance", "cluster_size", "boundaries"),
    "+ salience, legible scale, ink": OF_MAPS,
}
FIT = FitConfig(steps=150, rate=1e-2, warmup=20, save_every=0)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    limits = {name: min(count, options.limit or count) for name, count in IMAGES_PER_SET.items()}
    task = ChannelTask(ChannelTask.Settings(options.data, options.words, limits=limits))
    every = {*CHANNELS, *OF_MAPS}
    found: dict[str, dict[str, list[float]]] = {"salience alone": _tops(task, every - {"salience"})}
    used: set[str] = set()
    for group, names in GROUPS.items():
        used |= {*names}
        task.restart(every - used)
        with TemporaryDirectory() as out:
            fit(task, FIT, out)
        found[group] = _tops(task)
    images = {kind: len(some) for kind, some in task.held.items()}
    learned = {kind: len(some) for kind, some in task.learned.items()}
    return {"images": images, "learned": learned, "tops": found}


@torch.no_grad()
def _tops(task: ChannelTask, without: set[str] | None = None) -> dict[str, list[float]]:
    """Per held-out image of each kind, the share of places in the top tenth; without: of untrained weights."""
    if without is not None:
        task.restart(without)
    return {
        kind: [float(in_top_tenth(task.logits(one, kind).cpu(), one).mean()) for one in examples]
        for kind, examples in task.held.items()
    }


def report(record: dict[str, Any]) -> str:
    images, learned = record["images"], record["learned"]
    rows = []
    before: dict[str, list[float]] = {}
    for group, tops in record["tops"].items():
        rows.append((group, *(_cell(tops[kind], before.get(kind)) for kind in images)))
        before = tops
    titles = [f"{kind}s ({count} held out, {learned[kind]} learned from)" for kind, count in images.items()]
    return markdown_page(
        "# The channel scorer with ever more groups of channels",
        provenance(record),
        "The share of a place in the top tenth of the area, mean over held-out `train` images; in brackets the "
        "difference to the row above, paired by image, with a 95% interval. Temporal channels, embeddings, gaze and "
        "attention are in no training image.",
        markdown_table(("channels", *titles), rows),
    )


def _cell(tops: list[float], before: list[float] | None) -> str:
    if before is None:
        return f"{np.mean(tops):.3f}"
    change = gain(np.array(tops) - np.array(before), [str(number) for number in range(len(tops))])
    return f"{np.mean(tops):.3f} [{format_interval(change)}]"


main = study_main(
    __name__, __doc__, measure, report, option("--words", type=Path, metavar="CACHE", help="words of charts, by OCR")
)
