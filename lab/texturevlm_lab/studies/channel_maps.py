"""What do the channels that no training image has add to the channel scorer: temporal, embeddings, gaze, attention?

    python -m texturevlm_lab.studies.channel_maps DATA --words CACHE --out DIR [--limit N]

DATA holds docvqa_half, coco and chartqa, of which `train` images that training held out are measured, and
video/david.webm with a face box per frame. --limit is the number of images per kind. The weights are those that ship;
groups of channels are switched on one after another, without training again. Measured
is what the map finds of a place (answer, objects, face), and what 64 tokens that are chosen by it deliver
(place_measures.py).

Real are the frames of the video. **Simulated** are gaze (three fixations near the place, two anywhere), attention (the
place on 16 × 16 cells, half of the mass anywhere) and embeddings (a vector for the place under noise of four times its
length): the table says whether such maps reach the relevance, not how good a person or an encoder is.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.channels import CHANNELS, build
from texturevlm.channels.registry import EMBEDDING_LAYERS
from texturevlm.progress import Progress
from texturevlm.relevance import ChannelScorer, Prepared
from texturevlm.relevance.channel_logits import (
    ALL_MOVES,
    MOTION_KEY,
    MOVING,
    OF_MAPS,
    context_levels,
    feature_names,
    known_channels,
)
from texturevlm.relevance.channel_scorer import QUESTION_TERM
from texturevlm.types import COLOURS, Texture
from texturevlm.video import open_video
from texturevlm_lab.evaluate.asked_page import box_map
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.place_measures import BUDGET, MEASURES, TENTH, compared_cell, measured, tokens_by, top_share
from texturevlm_lab.studies.study import by_page, evenly, option, provenance, study_main
from texturevlm_lab.train.channel_task import is_held_out, places_of

GROUPS = {
    "colour and position": ("red", "green", "blue", "x", "y", "eccentricity"),
    "+ structure": ("edges", "edges_inverted", "high_pass", "low_pass", "edge_distance", "saliency", "text"),
    "+ clusters": ("cluster_distance", "cluster_size", "boundaries"),
    "+ salience, legible scale, ink": OF_MAPS,
}
SETS = {"page": "docvqa_half", "chart": "chartqa", "photograph": "coco"}
VIDEO = "video"
CLIPS = ("david.webm", "big_buck_bunny.mp4", "Megamind.avi")
APART = 6  # frames between a frame of the video and the one before it: a fifth of a second
BLOCKS = 8  # of the video that are resampled: neighbouring frames are alike
TEMPORAL, EMBEDDED, LOOKED = "+ temporal", "+ embeddings (simulated)", "+ gaze and attention (simulated)"
ADDED = {
    TEMPORAL: ("motion", "previous_relevance", "previous_saliency", "fixation_history"),
    EMBEDDED: (QUESTION_TERM,),
    LOOKED: ("gaze", "attention", "previous_attention"),
}
MOST = "at most: places may be larger than a tenth"
NOISE = 4.0  # length of the noise of a simulated embedding, where the place's own vector has length 1


class Place(NamedTuple):
    """An image, where in it something is, and its group in the resampling; before: an earlier frame of a video."""

    image: Texture
    boxes: Sequence[Box]
    group: str
    before: Texture | None = None


class Simulated:
    """Encoder and projection of simulated embeddings: similarity is the cosine."""

    def __init__(self, vector: Tensor) -> None:
        self.vector = vector

    def text(self, question: str) -> Tensor:
        return self.vector

    def similarity(self, reduced: Tensor, text: Tensor) -> Tensor:
        return functional.cosine_similarity(reduced, text[None, :, None, None], dim=1)


def images_of(folder: Path, words: Path, limit: int | None) -> Iterator[Place]:
    """The images of a data set that training held out, with one place each; charts are read until there are enough."""
    asked = by_page(sample for sample in load_data(folder, split="train").samples if is_held_out(sample.image))
    found = 0
    for path in sorted(asked, key=lambda path: sha256(path.name.encode()).digest()):  # in no order
        places = (places_of(sample, folder.name, words) for sample in asked[path])
        if found != limit and (boxes := next(filter(None, places), ())):
            found += 1
            yield Place(Texture.open(path).mipmapped(), boxes, path.name)


def frames_of(folder: Path, limit: int | None) -> Iterator[Place]:
    """Frames of the video with the face's box."""
    boxes = [[float(one) for one in line.split(",")] for line in (folder / "david_gt.txt").read_text().split()]
    frames = [frame.image[None].float() / 255 for frame in open_video(folder / "david.webm")]
    frames = frames[len(frames) - len(boxes) :]
    chosen = evenly(range(APART, len(frames)), limit)
    for number, index in enumerate(chosen):
        x, y, width, height = boxes[index]
        now, before = (Texture((frames[one],)).mipmapped() for one in (index, index - APART))
        yield Place(now, [(x, y, x + width, y + height)], str(number * BLOCKS // len(chosen)), before)


def pairs_of(path: Path, limit: int | None) -> Iterator[tuple[Texture, Texture]]:
    """Frames of any video with the frame APART before each."""
    frames = [frame.image[None] for frame in open_video(path)]
    for index in evenly(range(APART, len(frames)), limit):
        before, now = (Texture((frames[one].float() / 255,)).mipmapped() for one in (index - APART, index))
        yield before, now


@torch.inference_mode()
def motion_in(before: Texture, now: Texture) -> dict[str, float]:
    """The share of cells that move, whether motion still counts, and how much of the top tenth it leaves."""
    scorer = ChannelScorer(kind="photograph", previous=build(before, COLOURS))
    maps = Prepared(now, scorer="none").maps
    reading = scorer.prepare(now)
    names = feature_names(known_channels(reading.layers))
    counted = reading.features(maps)[0, :, names.index(f"here.{MOTION_KEY}")]
    level = context_levels(reading.layers, maps)[0]
    seen = reading.layers.levels[round(level)][0, reading.layers.names.index(MOTION_KEY)]
    parts = scorer.terms(reading, "", maps)
    total = torch.stack(list(parts.values())).sum(0)[0]
    without = total - parts[MOTION_KEY][0]
    best = without >= without.flatten().topk(max(1, int(0.1 * without.numel()))).values[-1]
    moves = float((seen > MOVING).float().mean())
    return {"moves": moves, "counts": float(counted.any()), "left": top_share(total, best.float())}


def simulated_maps(place: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
    """(1, h, w) maps of gaze and attention. place: (h, w), the share of each cell that lies in it"""
    rows, columns = place.shape
    weight = (place / place.sum()).flatten().double().numpy()
    near = random.choice(len(weight), 3, p=weight / weight.sum())
    spots = [divmod(int(one), columns) for one in (*near, *random.integers(0, len(weight), 2))]
    spread = 0.05 * max(rows, columns)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    gaze = torch.zeros(rows, columns)
    for row, column in spots:
        down, across = row + random.normal(0, spread), column + random.normal(0, spread)
        gaze = gaze.maximum(torch.exp(-((y - down) ** 2 + (x - across) ** 2) / (2 * spread**2)))
    coarse = functional.interpolate(place[None, None], (16, 16), mode="area")[0]
    noise = torch.from_numpy(random.exponential(1.0, (1, 16, 16))).float()
    attention = coarse / coarse.sum() + noise / noise.sum()
    return {"gaze": gaze[None], "attention": attention / attention.max()}


def embedding_layers(place: Tensor, vector: Tensor, size: torch.Size, random: np.random.Generator) -> Texture:
    """The embedding layers at an extent, with mips: the vector where the place is, and noise everywhere."""
    noise = torch.from_numpy(random.normal(0, NOISE / math.sqrt(len(vector)), (1, len(vector), *place.shape))).float()
    planes = vector[None, :, None, None] * place + noise
    return Texture((functional.interpolate(planes, size, mode="bilinear"),), EMBEDDING_LAYERS).mipmapped()


@torch.inference_mode()
def found_by(one: Place, kind: str, random: np.random.Generator) -> dict[str, dict[str, float]]:
    """Group of channels → the measures of the place, with this group and all before it."""
    form = "photograph" if kind == VIDEO else kind
    plain, maps = ChannelScorer(kind=form), Prepared(one.image, scorer="none").maps
    place = box_map(one.boxes, one.image.size, maps.grid)
    given: dict[str, Any] = simulated_maps(place, random)
    names = [name for name, channel in CHANNELS.items() if not channel.needs or channel.needs in given]
    if one.before is not None:
        earlier = build(one.before, names)
        known = Prepared(one.before, scorer=plain).find("").mass
        given |= {"previous": earlier, "relevance": known / known.max()}
        names = [name for name in CHANNELS if name not in (*EMBEDDING_LAYERS, "fixation_history")]
    layers = build(one.image, names, **given)
    parts = plain.terms(plain.prepare(layers), "", maps)
    if form == "photograph":
        vector = torch.from_numpy(random.normal(size=16)).float()
        vector = vector / vector.norm()
        added = embedding_layers(place, vector, layers.levels[0].shape[2:], random)
        both = Texture(
            tuple(torch.cat(pair, 1) for pair in zip(layers.levels, added.levels)),
            (*layers.names, *added.names),
            layers.size,
            (*layers.reduce, *added.reduce),
        )
        sim = Simulated(vector)
        asked = ChannelScorer(kind=form, encoder=sim, projection=sim)
        parts[QUESTION_TERM] = asked.terms(asked.prepare(both), "object", maps)[QUESTION_TERM]
    found: dict[str, dict[str, float]] = {}
    total = torch.zeros(maps.grid)
    for group, members in {**GROUPS, **ADDED}.items():
        own = [parts[name][0] for name in members if name in parts]
        if own:
            total = total + torch.stack(own).sum(0)
            found[group] = measured(total, tokens_by(total, one.image, maps), maps, one.boxes)
    return {**found, MOST: {TENTH: top_share(place, place)}}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    if options.words is None:
        raise ValueError("--words must be a cache of the words of charts, got none")
    data = options.data
    kinds = {kind: images_of(data / name, options.words, options.limit) for kind, name in SETS.items()}
    kinds[VIDEO] = frames_of(data / VIDEO, options.limit)
    record: dict[str, Any] = {}
    for kind, places in kinds.items():
        random, found, groups = np.random.default_rng(0), [], []
        progress = Progress(options.limit or 1, f"{kind}s")
        for one in places:
            found.append(found_by(one, kind, random))
            groups.append(one.group)
            progress.step()
        rows = {group: [row[group] for row in found] for group in found[0]}
        record[kind] = {"groups": groups, "rows": rows}
    clips = {
        name: [motion_in(*pair) for pair in pairs_of(data / VIDEO / name, options.limit)]
        for name in CLIPS
        if (data / VIDEO / name).is_file()
    }
    return {"kinds": record, "clips": clips}


def report(record: dict[str, Any]) -> str:
    kinds = record["kinds"]
    titles = [f"{kind}s ({len(own['groups'])})" for kind, own in kinds.items()]
    titles[-1] = f"video (david.webm, {len(kinds[VIDEO]['groups'])} frames)"
    blocks = []
    for measure in MEASURES:
        rows = [(group, *(_cell(own, group, measure) for own in kinds.values())) for group in (*GROUPS, *ADDED, MOST)]
        shown = [row for row in rows if set(row[1:]) != {"–"}]
        blocks += [f"## {measure.capitalize()}", markdown_table(("channels", *titles), shown)]
    return markdown_page(
        "# The channel scorer with maps that no training image has",
        provenance(record),
        "A place is the answer box of a page or a chart, the objects of a photograph, a face in a video. Measured "
        f"are its share in the top tenth of the area; of {BUDGET} tokens (at most a fifth of those of the whole "
        "image) that are chosen by the map the share of fine ones on it; and its expected legibility, by the curve "
        "that allocators use. `train` images that training held out; no question asked. Shipped weights: groups are"
        " switched on one after another, without training again. In brackets the difference to the last row with a "
        f"number, paired, with a 95% interval from resampling images, of the video {BLOCKS} stretches of time. "
        "Temporal channels are real: the frame a fifth of a second before. Gaze, attention and embeddings are "
        "**simulated** from the place itself (see the study): these rows say that such maps reach the relevance, "
        "and no more.",
        *blocks,
        "## Motion in three clips",
        f"Frames a fifth of a second apart. A cell moves if its motion is above {MOVING}; motion counts less the more "
        f"cells move, and not at all from {ALL_MOVES:.0%} of them on. Last column: how much of the top tenth without "
        "motion stays when motion is added. Only the first clip says where something is.",
        markdown_table(
            ("clip", "frames", "share of cells that move", "frames in which motion counts", "top tenth that stays"),
            [
                (
                    name,
                    len(rows),
                    *(f"{np.mean([row[key] for row in rows]):.3f}" for key in ("moves", "counts", "left")),
                )
                for name, rows in record["clips"].items()
            ],
        ),
    )


def _cell(own: dict[str, Any], group: str, measure: str) -> str:
    rows = own["rows"]
    if group not in rows or measure not in rows[group][0]:
        return "–"
    number = list(rows).index(group)
    values = [row[measure] for row in rows[group]]
    before = None if not number or group == MOST else [row[measure] for row in rows[list(rows)[number - 1]]]
    return compared_cell(values, before, own["groups"])


main = study_main(
    __name__, __doc__, measure, report, option("--words", type=Path, metavar="CACHE", help="words of charts, by OCR")
)
