"""Which groups of channels help the channel scorer? Weights are trained with ever more groups of them.

    python -m texturevlm_lab.studies.channel_groups DATA --words CACHE --out DIR [--limit N] [--ocr E,E] [--readings
        DIR]

DATA holds the data sets of examples/train/channels.toml. Only `train` images are used. Those that training holds out
are measured, without a question: what each map finds of a place (answer box, objects), and what 64 tokens that are
chosen by it deliver (place_measures.py). With --ocr the answers on pages are read, too. The last row is a network with
a hidden layer instead of the linear form. --limit is the number of images per data set. Groups that no training image
has (temporal, embeddings, gaze and attention) are in channel_maps.py: their weights are stated.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.channels import CHANNELS
from texturevlm.rebuilding import median_grey
from texturevlm.relevance.channel_logits import IMAGE_KINDS, OF_MAPS, ChannelForm, cell_features, channel_layers
from texturevlm.relevance.prepared import image_maps
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.legibility import legibility_score
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.metrics import Delivered
from texturevlm_lab.evaluate.ocr import OcrEngine
from texturevlm_lab.studies.place_measures import BUDGET, MEASURES, compared_cell, mean_of, measured, tokens_by
from texturevlm_lab.studies.study import READINGS, each, ocr_engines, option, provenance, study_main
from texturevlm_lab.train.channel_task import (
    IMAGES_PER_SET,
    KIND_OF_SET,
    ChannelTask,
    chosen_images,
    is_held_out,
    places_of,
)
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit

GROUPS = {
    "colour and position": ("red", "green", "blue", "x", "y", "eccentricity"),
    "+ structure": ("edges", "edges_inverted", "high_pass", "low_pass", "edge_distance", "saliency", "text"),
    "+ clusters": ("cluster_distance", "cluster_size", "boundaries"),
    "+ salience, legible scale, ink": OF_MAPS,
}
SALIENCE, NETWORK = "salience alone", "all of these, a hidden layer of 24"
HIDDEN = 24
FIT = FitConfig(steps=150, rate=1e-2, warmup=20, save_every=0)
NETWORK_FIT = FitConfig(steps=300, rate=3e-3, warmup=20, decay=0.1, save_every=0)


class SmallNetwork(nn.Module):
    """A network with one hidden layer per kind of image, added to a linear form."""

    mean: Tensor
    spread: Tensor

    def __init__(self, form: ChannelForm) -> None:
        super().__init__()
        kinds, features = form.weight.shape
        self.register_buffer("mean", form.mean.clone())
        self.register_buffer("spread", form.spread.clone())
        self.weight = nn.Parameter(form.weight.detach().clone())
        self.first = nn.Parameter(torch.randn(kinds, features, HIDDEN, generator=torch.Generator().manual_seed(0)) / 9)
        self.last = nn.Parameter(torch.zeros(kinds, HIDDEN))

    def forward(self, features: Tensor, kind: int) -> Tensor:
        """As `ChannelForm.forward`."""
        known = (features - self.mean[kind]) / self.spread[kind]
        return known @ self.weight[kind] + functional.gelu(known @ self.first[kind]) @ self.last[kind]


class Trained(NamedTuple):
    """Weights, and the features that they were trained with."""

    module: Any
    used: Tensor

    def logits(self, features: Tensor, kind: str) -> Tensor:
        number = IMAGE_KINDS.index(kind)
        found: Tensor = self.module(torch.where(self.used, features, self.module.mean[number]), number)
        return found


def trained_groups(task: ChannelTask) -> dict[str, Trained]:
    """Weights with ever more groups."""
    every, used = {*CHANNELS, *OF_MAPS}, set[str]()
    task.restart(every - {"salience"})  # untrained weights are salience
    found = {SALIENCE: Trained(task.module, task.used)}
    for group, names in GROUPS.items():
        used |= {*names}
        task.restart(every - used)
        found[group] = _fitted(task, FIT)
    network: Any = SmallNetwork(task.module)
    task.module = network
    return {**found, NETWORK: _fitted(task, NETWORK_FIT)}


def _fitted(task: ChannelTask, how: FitConfig) -> Trained:
    with TemporaryDirectory() as out:
        fit(task, how, out)
    return Trained(task.module.eval(), task.used)


def held_samples(folder: Path, words: Path | None, limit: int) -> dict[Path, list[Sample]]:
    """The images of a data set that training holds out, with their questions; boxes are the places to be found."""
    asked: dict[Path, list[Sample]] = {}
    for sample in load_data(folder, split="train").samples:
        boxes = places_of(sample, folder.name, words)
        if boxes and not (sample.objects and sample.image in asked):  # a photograph has one place: all its objects
            asked.setdefault(sample.image, []).append(replace(sample, boxes=boxes))
    return {path: asked[path] for path in chosen_images(asked, limit) if is_held_out(path)}


@torch.inference_mode()
def measured_image(
    path: Path, samples: Sequence[Sample], kind: str, groups: Mapping[str, Trained], engines: Mapping[str, OcrEngine]
) -> dict[str, dict[str, float]]:
    """group → the measures of one image, the mean over its places."""
    texture = Texture.open(path).mipmapped()
    maps, grey = image_maps(texture), median_grey(texture)
    features = cell_features(channel_layers(texture), maps)[0]
    found = {}
    for group, weights in groups.items():
        logits = weights.logits(features, kind).view(maps.grid)
        chosen = tokens_by(logits, texture, maps)
        rows = []
        for sample in samples:
            row = measured(logits, chosen, maps, sample.boxes)
            if kind == "page" and engines:
                crops = Delivered(texture, grey, chosen).crops(sample)
                row |= {name: legibility_score(one.read(crops), sample.answers) for name, one in engines.items()}
            rows.append(row)
        found[group] = mean_of(rows)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    limits = {name: min(count, options.limit or count) for name, count in IMAGES_PER_SET.items()}
    engines = ocr_engines(options)
    task = ChannelTask(ChannelTask.Settings(options.data, options.words, limits=limits))
    groups = trained_groups(task)
    kinds: dict[str, dict[str, Any]] = {}
    for name, limit in limits.items():
        kind, held = KIND_OF_SET[name], held_samples(options.data / name, options.words, limit)
        own = kinds.setdefault(kind, {"images": [], "learned": len(task.learned.get(kind, ())), "rows": {}})
        for path, samples in each(held.items(), f"held-out images of {name}"):
            for group, row in measured_image(path, samples, kind, groups, engines).items():
                own["rows"].setdefault(group, []).append(row)
            own["images"].append(path.name)
    return {"kinds": kinds, "ocr": {name: engine.name for name, engine in engines.items()}}


def report(record: dict[str, Any]) -> str:
    blocks = []
    for kind, own in record["kinds"].items():
        names = [name for name in (*MEASURES, *record["ocr"]) if name in own["rows"][SALIENCE][0]]
        rows, before = [], dict[str, list[float]]()
        for group, found in own["rows"].items():
            columns = {name: [row[name] for row in found] for name in names}
            cells = [compared_cell(columns[name], before.get(name), own["images"]) for name in names]
            rows.append((group, *cells))
            before = columns
        blocks.append(f"## {kind.capitalize()}s: {len(own['images'])} held out, {own['learned']} learned from")
        blocks.append(markdown_table(("channels", *names), rows))
    return markdown_page(
        "# The channel scorer with ever more groups of channels",
        provenance(record, *record["ocr"].values()),
        "Held-out `train` images, no question asked. The share of a place (answer box, objects) in the top tenth of"
        f" the area; of {BUDGET} tokens (at most a fifth of those of the whole image) that are chosen by the map the"
        " share of fine ones on the place, and the place's expected legibility, by the curve that allocators use; "
        "with OCR the legibility of the answers. In brackets the difference to the row above, paired by image, with"
        " a 95% interval. Temporal channels, embeddings, gaze and attention are in no training image ([channel-"
        "maps.md](channel-maps.md)).",
        *blocks,
    )


OPTIONS = (
    option("--words", type=Path, metavar="CACHE", help="words of charts, by OCR"),
    option("--ocr", default="", metavar="E,E", help="read the answers on pages: tesseract, rapidocr (default: none)"),
)
main = study_main(__name__, __doc__, measure, report, *OPTIONS, READINGS)
