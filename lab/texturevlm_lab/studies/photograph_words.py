"""Does the image–text network of region_words.py know where in a photograph a named thing is, better than salience?

    python -m texturevlm_lab.studies.photograph_words DATA --maps DIR --out DIR [--limit N]

DATA is the folder of COCO's photographs with boxes, --maps what region_words.py wrote. Maps are ranked on its 32 × 32
cells; counted is the share of the area of all boxes of a name in the fifth of the cells that is ranked highest. A mix
adds the logarithm of a map that knows no name, salience or channels, to a multiple of how well the name fits. Which
network, which map and how much of the name is chosen on `train` photographs, each by a network that has not learned
from it; `eval` is measured once, with that choice. The control asks for names of things that are not there. The network
ships only if the chosen mix is above salience, above the channels (which ship already) and above the control, all with
their intervals. --limit is the number of photographs of each split.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from texturevlm.progress import Progress
from texturevlm.relevance import ChannelScorer, Prepared
from texturevlm.relevance.channel_features import log_density
from texturevlm.types import Texture
from texturevlm_lab.evaluate.asked_page import box_map
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.region_canvases import SIDE
from texturevlm_lab.studies.region_words import BOXES, CAPTIONS, RECORD, load_maps
from texturevlm_lab.studies.study import evenly, option, provenance, study_main

TOP = 0.2
CELLS = SIDE * SIDE
AMOUNTS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)  # of the network's fit, beside the logarithm of a density
ABSENT = 8  # names that are not there, per name that is
SALIENCE, CHANNELS = "salience", "channels, no question"
NETWORK, MIX = "network alone", "chosen mix"
OTHER = ", a name that is not there"
ORACLE = "the place itself"


class Choice(NamedTuple):
    """A mix: the file of the network's maps, the map without a name, and how much of the name is added."""

    maps: str
    base: str
    amount: float


class Asked(NamedTuple):
    """A name in a photograph.

    place: (CELLS,), the share of each cell in its boxes; fits: file → (1 + ABSENT, CELLS), of the name and of others
    bases: name of a map → (CELLS,), logarithms of densities
    """

    image: str
    place: Tensor
    fits: dict[str, Tensor]
    bases: dict[str, Tensor]


def top_share(values: Tensor, place: Tensor) -> Tensor:
    """(…, CELLS) → (…): the share of a place in the fifth of the cells with the highest values."""
    best = values.topk(round(TOP * values.shape[-1]), -1).indices
    return place[best].sum(-1) / place.sum()


@torch.inference_mode()
def base_maps(path: Path) -> dict[str, Tensor]:
    """What is known of a photograph without a name, on the network's cells."""
    scorer = ChannelScorer(kind="photograph")
    prepared = Prepared(Texture.open(path).mipmapped(), scorer=scorer)
    found = {SALIENCE: prepared.maps.salience, CHANNELS: scorer.score(prepared.reading(scorer), "", prepared.maps)[0]}
    return {name: log_density(_on_cells(one)) for name, one in found.items()}


def _on_cells(mass: Tensor) -> Tensor:
    """(1, h, w) → (CELLS,): a density with mean 1."""
    density = interpolate(mass[:, None].float(), (SIDE, SIDE), mode="area").flatten()
    return density / density.mean()


def asked_of(
    samples: Sequence[Sample], names: Sequence[str], number: int, maps: dict[str, Tensor], random: np.random.Generator
) -> list[Asked]:
    """The names in one photograph. maps: file → (photographs, names, SIDE, SIDE); number: of the photograph there"""
    bases = base_maps(samples[0].image)
    absent = [names.index(name) for name in names if name not in {one.name for one in samples}]
    found = []
    for one in samples:
        place = box_map(one.boxes, one.size, (SIDE, SIDE)).flatten()
        if place.sum() == 0:
            continue
        drawn = random.choice(absent, min(ABSENT, len(absent)), replace=False).tolist()
        wanted = [names.index(one.name), *drawn]
        fits = {file: own[number, wanted].flatten(1) for file, own in maps.items()}
        found.append(Asked(one.image.name, place, fits, bases))
    return found


def mixed(one: Asked, choice: Choice) -> Tensor:
    """(1 + ABSENT, CELLS): the map of the name, then of names that are not there."""
    return one.bases[choice.base] + choice.amount * one.fits[choice.maps]


def chosen_on(asked: Sequence[Asked]) -> tuple[Choice, dict[str, float]]:
    """The mix that is best on these photographs, and what each mix reached."""
    tried = {}
    for file in asked[0].fits:
        for base in (SALIENCE, CHANNELS):
            for amount in AMOUNTS:
                choice = Choice(file, base, amount)
                tried[choice] = float(np.mean([float(top_share(mixed(one, choice)[0], one.place)) for one in asked]))
    best = max(tried, key=lambda choice: tried[choice])
    return best, {" / ".join(map(str, choice)): value for choice, value in tried.items()}


def scores_of(asked: Sequence[Asked], choice: Choice) -> dict[str, list[float]]:
    """Per name in a photograph what each map reaches."""
    found: dict[str, list[float]] = {}
    for one in asked:
        network, mix = (top_share(own, one.place) for own in (one.fits[choice.maps], mixed(one, choice)))
        row = {base: float(top_share(own, one.place)) for base, own in one.bases.items()}
        row |= {NETWORK: float(network[0]), NETWORK + OTHER: float(network[1:].mean())}
        row |= {MIX: float(mix[0]), MIX + OTHER: float(mix[1:].mean()), ORACLE: float(top_share(one.place, one.place))}
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    if options.maps is None or not (options.maps / RECORD).is_file():
        raise FileNotFoundError(f"--maps must be a folder that region_words.py wrote, got {options.maps}")
    learned = json.loads((options.maps / RECORD).read_text(encoding="utf-8"))
    # of a run that was cut there are the maps of the first network alone
    maps = {name: load_maps(options.maps / name) for name in (CAPTIONS, BOXES) if (options.maps / name).is_file()}
    numbers = {Path(image).name: number for number, image in enumerate(learned["images"])}
    asked: dict[str, list[Asked]] = {}
    for split in ("train", "eval"):
        photographs: dict[Path, list[Sample]] = {}
        for sample in load_data(options.data, split=split, located=True).samples:
            if sample.image.name in numbers:
                photographs.setdefault(sample.image, []).append(sample)
        chosen = evenly(list(photographs), options.limit)
        if not chosen:
            raise ValueError(f"DATA must hold `{split}` photographs that {options.maps} has maps of, got none")
        random, progress, asked[split] = np.random.default_rng(0), Progress(len(chosen), f"{split} photographs"), []
        for path in chosen:
            asked[split] += asked_of(photographs[path], learned["names"], numbers[path.name], maps, random)
            progress.step()
    choice, tried = chosen_on(asked["train"])
    found: dict[str, Any] = {"learned": learned, "choice": choice._asdict(), "tried": tried}
    for split, own in asked.items():
        found[split] = {"images": [one.image for one in own], "scores": scores_of(own, choice)}
    return found


COMPARED = (
    (MIX, SALIENCE),
    (MIX, CHANNELS),
    (MIX, MIX + OTHER),
    (NETWORK, SALIENCE),
    (NETWORK, NETWORK + OTHER),
    (CHANNELS, SALIENCE),
)


def report(record: dict[str, Any]) -> str:
    learned, choice = record["learned"], record["choice"]
    scores = {split: record[split]["scores"] for split in ("train", "eval")}
    means = [(name, *(f"{np.mean(own[name]):.3f}" for own in scores.values())) for name in scores["eval"]]
    rows = []
    for first, second in COMPARED:
        pairs = [(scores[split][first], scores[split][second], record[split]["images"]) for split in scores]
        differences = [paired_difference(ours, theirs, groups=images) for ours, theirs, images in pairs]
        rows.append((f"{first} − {second}", *map(format_interval, differences)))
    counts = [f"`{split}` ({len(own['images'])} names in {len(set(own['images']))})" for split, own in _splits(record)]
    steps = ", ".join(f"{name} {count}" for name, count in learned["steps"].items())
    words = learned["words"]
    return markdown_page(
        "# Does an image–text network know where in a photograph a named thing is?",
        provenance(record, f"network: `{learned['command']}`, {learned['code']}, on {learned['device']}"),
        f"COCO photographs; counted is the share of the area of all boxes of a name in the top {TOP:.0%} of "
        f"{SIDE} × {SIDE} cells. The network saw Flickr8k's captions in photographs and mosaics and, in `{BOXES}`, "
        "boxes of COCO's `train` photographs, of which each was judged by a network that had not seen it. Steps: "
        f"{steps}. Mean average precision of {words['words']} words in {words['photographs']} captioned photographs "
        f"that nothing was learned from: {words['precision']:.3f}, by chance {words['by_chance']:.3f}. Chosen on "
        f"`train`: maps of `{choice['maps']}`, {choice['amount']:g} × the fit + the logarithm of {choice['base']}. The "
        "channels' weights were themselves learned from most of the `train` photographs. `eval` was measured once.",
        markdown_table(("map", *counts), means),
        "Paired, with 95% intervals from resampling photographs:",
        markdown_table(("", *counts), rows),
    )


def _splits(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(split, record[split]) for split in ("train", "eval")]


main = study_main(
    __name__,
    __doc__,
    measure,
    report,
    option("--maps", type=Path, metavar="DIR", help="what region_words.py wrote"),
)
