"""Does the gist know where in a photograph a named thing is, and does the name matter?

    python -m texturevlm.evaluate.gist DATA --weights FILE [--photographs FOLDER] --out DIR [--limit N]

DATA is a folder like shared/data/coco; of its `eval` rows (a photograph, a class name, the boxes of that class) each is
asked as "Where is the NAME?". Reported are how much of the boxes' area lies in the top 5, 10, 20 and 30% of each map,
and how often the map's peak is in a box; beside plain maps, the gist asked for a thing that is not there, and the boxes
themselves. FOLDER, from `train.captions`, adds how well words are told for photographs that nothing was learned from.
Differences are paired, with a 95% interval from resampling photographs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.saliency import centre_prior
from texturevlm.check import check_count
from texturevlm.evaluate.data import Sample, load
from texturevlm.evaluate.relevance import TOPS, gain
from texturevlm.evaluate.scout import answer_shares, box_map
from texturevlm.evaluate.study import MISTAKES, check_limit, command_parser, complain, provenance, versions, write_study
from texturevlm.relevance import image_maps
from texturevlm.relevance.prepare import BALANCE
from texturevlm.progress import Progress
from texturevlm.scout.layer import folded
from texturevlm.train.captions import load_photographs
from texturevlm.train.gist import SIDE, SPOT, Gist, glimpse, load_gist
from texturevlm.train.matching import LEAST_IMAGES, average_precision, named
from texturevlm.types import Texture

GIST, OTHER = "gist", "gist with a name that is not there"
OVER, WEIGHED = "gist over saliency", "gist over saliency, weighed as tokens are"
SALIENCY, CENTRE, ORACLE = "saliency", "centre bias", "oracle"
EVEN = "any part of that size"
RIVALS = (SALIENCY, OTHER, CENTRE)
SHOWN_PARTS = (GIST, OTHER, OVER, SALIENCY)
SHOWN = 12  # words that are told best, and worst
STEP = 64  # photographs at a time


def measure(folder: Path, weights: Path, photographs: Path | None, side: int, limit: int | None) -> dict[str, Any]:
    gist = folded(load_gist(weights))
    samples = load(folder, split="eval", located=True, limit=limit).samples
    every = samples if limit is None else load(folder, split="eval", located=True).samples
    record: dict[str, Any] = {
        **versions(),
        "side": side,
        "words": len(gist.vocabulary),
        **measure_places(samples, gist, side, every),
    }
    if photographs is not None:
        record["telling"] = measure_words(photographs, gist)
    return record


def measure_places(samples: Sequence[Sample], gist: Gist, side: int, every: Sequence[Sample]) -> dict[str, Any]:
    """Shares of boxes in the top of each map, and how often its peak is in one; every: of which `samples` are some."""
    shares: dict[str, list[np.ndarray]] = {}
    peaks: dict[str, list[float]] = {}
    by_image: tuple[Path, Tensor, dict[str, np.ndarray]] = (Path(), torch.empty(0), {})
    progress = Progress(len(samples), "names")
    for number, sample in enumerate(samples):
        if sample.image != by_image[0]:
            by_image = (sample.image, *_seen(sample.image, gist, side))
        _, spots, fixed = by_image
        asked, over = _asked(gist, spots, sample.name), _asked(gist, spots, sample.name, fixed[SALIENCY])
        maps = {
            GIST: asked,
            OTHER: _asked(gist, spots, name_not_there(samples, number, every)),
            OVER: over,
            WEIGHED: _weighed(over, fixed[SALIENCY]),
            **fixed,
            ORACLE: box_map(sample.boxes, asked.shape, sample.size),
        }
        for method, values in maps.items():
            shares.setdefault(method, []).append(answer_shares(values, sample, together=True))
            peaks.setdefault(method, []).append(peak_inside(values, sample))
        shares.setdefault(EVEN, []).append(np.array(TOPS))
        peaks.setdefault(EVEN, []).append(_covered(sample))
        progress.step()
    images = [str(sample.image) for sample in samples]
    known = np.array([bool(gist.vocabulary.find(sample.name)) for sample in samples])
    people = np.array([sample.name == "person" for sample in samples])
    tables = {method: np.column_stack([np.stack(rows), np.array(peaks[method])]) for method, rows in shares.items()}
    parts = {"people": people, "other names that are known": known & ~people, "unknown names": ~known}
    return {
        "rows": len(samples),
        "photographs": len(set(images)),
        "unknown": sorted({sample.name for sample, is_known in zip(samples, known) if not is_known}),
        "mean": {method: table.mean(0).tolist() for method, table in tables.items()},
        "difference": {
            rival: [gain(column, images) for column in (tables[GIST] - tables[rival]).T] for rival in RIVALS
        },
        "gain on saliency": {
            way: [gain(column, images) for column in (tables[way] - tables[SALIENCY]).T] for way in (OVER, WEIGHED)
        },
        "parts": {
            name: {"rows": int(part.sum()), **{way: tables[way][part].mean(0).tolist() for way in SHOWN_PARTS}}
            for name, part in parts.items()
            if part.any()
        },
    }


def _seen(image: Path, gist: Gist, side: int) -> tuple[Tensor, dict[str, np.ndarray]]:
    """What the gist sees, and the maps that know no name."""
    texture = Texture.open(image).mipmapped()
    spots = gist(glimpse(texture, side=side))
    cells = (spots.shape[2], spots.shape[3])
    standing = functional.adaptive_avg_pool2d(image_maps(texture).salience[:, None], cells)[0, 0]
    return spots, {SALIENCY: standing.numpy(), CENTRE: centre_prior(torch.empty(1, 1, *cells)).numpy()}


def _asked(gist: Gist, spots: Tensor, name: str, before: np.ndarray | None = None) -> np.ndarray:
    prior = None if before is None else torch.from_numpy(before)[None]
    chance: np.ndarray = gist.where(spots, gist.encode([f"Where is the {name}?"]), prior)[0].numpy()
    return chance


def _weighed(chance: np.ndarray, standing: np.ndarray) -> np.ndarray:
    """The mass that tokens would be given out by."""
    query, salience = (torch.from_numpy(one)[None] for one in (chance, standing))
    salience = salience / salience.sum().clamp(min=1e-30)
    nothing = torch.ones_like(query)
    mass: np.ndarray = BALANCE.weigh(query, salience, nothing, nothing > 0, (SIDE, SIDE)).mass[0].numpy()
    return mass


def name_not_there(samples: Sequence[Sample], number: int, every: Sequence[Sample] | None = None) -> str:
    """The next name of another photograph that this one has no object of; its own name if there is none.

    every: of which `samples` are some
    """
    here = {sample.name for sample in every or samples if sample.image == samples[number].image}
    following = (*samples[number:], *samples[:number])
    return next((later.name for later in following if later.name not in here), samples[number].name)


def peak_inside(values: np.ndarray, sample: Sample) -> float:
    """1 if the middle of the cell of greatest value is in a box; of equal ones the share of them that is."""
    rows, columns = np.nonzero(values == values.max())
    y, x = (rows + 0.5) * sample.size[0] / values.shape[0], (columns + 0.5) * sample.size[1] / values.shape[1]
    inside = np.zeros(len(rows), bool)
    for x0, y0, x1, y1 in sample.boxes:
        inside |= (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
    return float(inside.mean())


def _covered(sample: Sample) -> float:
    """The share of the photograph that lies in boxes: how often a spot anywhere is in one."""
    return peak_inside(np.zeros((64, 64)), sample)


def measure_words(folder: Path, gist: Gist) -> dict[str, Any]:
    """Average precision of the words of photographs with captions that nothing was learned from."""
    read = load_photographs(folder)
    held = [number for number, one in enumerate(read.listed) if one.held_out and one.captions]
    if not held:
        raise ValueError(f"--photographs must hold photographs that nothing was learned from, got none in {folder}")
    truth = named([read.listed[number] for number in held], gist.vocabulary) > 0
    logits = []
    for chosen in torch.tensor(held).split(STEP):
        spots = gist(read.pixels[chosen].float() / 255).flatten(2)
        logits.append((gist.vectors @ spots).logsumexp(2) + gist.bias)
    counts = truth.sum(0)
    enough = (counts >= LEAST_IMAGES).nonzero()[:, 0]
    if not len(enough):
        raise ValueError(f"--photographs must hold words of {LEAST_IMAGES} held-out photographs, got none in {folder}")
    found = average_precision(torch.cat(logits)[:, enough], truth[:, enough])
    order = (found / (counts[enough] / len(held))).argsort(descending=True).tolist()
    told = [(gist.vocabulary.entries[enough[at]], float(found[at]), int(counts[enough[at]])) for at in order]
    return {
        "photographs": len(held),
        "words": len(enough),
        "precision": float(found.mean()),
        "by chance": float(counts[enough].float().mean() / len(held)),
        "best": told[:SHOWN],
        "worst": told[-SHOWN:],
    }


def report(record: dict[str, Any]) -> str:
    heads = " | ".join([*(f"top {100 * top:.0f}%" for top in TOPS), "peak in a box"])
    rule = "|---|" + "---|" * (len(TOPS) + 1)
    lines = [
        "# The gist: does the scout know where in a photograph a named thing is?",
        "",
        provenance(record),
        "",
        f"{record['rows']} names of things in {record['photographs']} `eval` photographs of {record['set']}, asked as "
        f"“Where is the NAME?”. The gist sees a photograph at {record['side']}×{record['side']} pixels, {SPOT}×{SPOT} "
        "a spot; every map is ranked on these spots. Shares are of the area of all boxes of that name. Over saliency: "
        "saliency is how likely a spot was before the question. The gist knows "
        f"{record['words']} words; not these names: {', '.join(record['unknown']) or 'none'}.",
        "",
        f"| map | {heads} |",
        rule,
    ]
    for method, means in record["mean"].items():
        lines.append(f"| {method} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    lines += ["", "Paired, with a 95% interval from resampling photographs:", "", f"| | {heads} |", rule]
    rows = {f"{GIST} − {rival}": found for rival, found in record["difference"].items()}
    rows |= {f"{way} − {SALIENCY}": found for way, found in record["gain on saliency"].items()}
    for name, found in rows.items():
        cells = (f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" for mean, low, high in found)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", f"| names | rows | map | {heads} |", "|---|---" + rule]
    for name, part in record["parts"].items():
        for way in SHOWN_PARTS:
            lines.append(f"| {name} | {part['rows']} | {way} | " + " | ".join(f"{one:.3f}" for one in part[way]) + " |")
    if "telling" in record:
        lines += ["", "## Telling words", "", *_telling(record["telling"])]
    return "\n".join(lines) + "\n"


def _telling(told: dict[str, Any]) -> list[str]:
    def listed(rows: Sequence[tuple[str, float, int]]) -> str:
        return ", ".join(f"{word} {precision:.2f} ({count})" for word, precision, count in rows)

    return [
        f"{told['photographs']} photographs with captions that nothing was learned from, ranked for each of the "
        f"{told['words']} words that the captions of at least {LEAST_IMAGES} of them hold: mean average precision "
        f"{told['precision']:.3f}, by chance {told['by chance']:.3f}.",
        "",
        f"Furthest above chance (precision, photographs): {listed(told['best'])}.",
        "",
        f"Nearest to it: {listed(told['worst'])}.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("texturevlm.evaluate.gist", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with images and questions.jsonl")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help="of a training run of gist")
    parser.add_argument("--photographs", type=Path, metavar="FOLDER", help="from train.captions")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for scout-photographs.md and .json")
    parser.add_argument("--side", type=int, default=SIDE, metavar="N", help=f"pixels that are seen (default: {SIDE})")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N names, evenly spread: to try it out")
    options = parser.parse_args(arguments)
    try:
        check_limit(options.limit)
        if check_count("--side", "N", options.side, SPOT) % SPOT:
            raise ValueError(f"--side must be a multiple of {SPOT}, got {options.side}")
        command = "python -m texturevlm.evaluate.gist DATA --weights FILE"
        command += " --photographs FOLDER --out DIR" if options.photographs else " --out DIR"
        command += f" --side {options.side}" if options.side != SIDE else ""
        command += f" --limit {options.limit}" if options.limit else ""
        with torch.inference_mode():
            found = measure(options.data, options.weights, options.photographs, options.side, options.limit)
    except MISTAKES as error:
        return complain(parser, error)
    record = {"command": command, "set": options.data.resolve().name, **found}
    write_study(options.out, "scout-photographs", record, report)
    print(f"{options.out / 'scout-photographs.md'} and .json written", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
