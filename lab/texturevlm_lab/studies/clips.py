"""One budget over space and time against uniform frames: how much of what a video shows stays legible.

    python -m texturevlm_lab.studies.clips --out results

No model: made videos with lines of print at known places and times. A line is as legible as print of its height is at
the scale at which tokens deliver it, in a moment in which it is there. Slides stay up for times of
different lengths; a notice board changes one line at a time; a camera moves along a wall of print.
"""

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from texturevlm.allocate.value import delivered_scale
from texturevlm.ops.legibility import legibility
from texturevlm.video import FrameSource, MomentTokens, choose_clip, keep_moments, open_video
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.evaluate.video_baselines import VIDEO_BASELINES, spread_moments
from texturevlm_lab.studies.study import command_line, provenance, versions, write_study

SIZE = (384, 640)
FPS = 2.0
BUDGETS = (64, 128, 273)
FONT = 22  # pixels
READABLE = 9.0  # samples per height of type: where half of the print can be read (results/readable-height.md)
CELLS = (96, 160)
SEEDS = 3


class Line(NamedTuple):
    """A line of print: its box, xyxy in pixels, and the seconds in which it is there, from and to."""

    box: tuple[float, float, float, float]
    begin: float
    end: float


def _board(texts: dict[tuple[int, int], str]) -> np.ndarray:
    image = Image.new("RGB", SIZE[::-1], (246, 246, 240))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(FONT)
    for place, text in texts.items():
        draw.text(place, text, fill=(25, 25, 25), font=font)
    return np.asarray(image)


def _text(chance: random.Random) -> str:
    return " ".join("".join(chance.choice("abcdefghiknorstu") for _ in range(chance.randint(3, 8))) for _ in range(3))


def _box(place: tuple[int, int]) -> tuple[float, float, float, float]:
    return place[0], place[1], place[0] + 200.0, place[1] + FONT


def slides(chance: random.Random) -> tuple[list[np.ndarray], list[Line]]:
    """Eight slides of four lines, up for one to twelve seconds."""
    frames, lines, begin = [], [], 0.0
    for _ in range(8):
        texts = {(40, 40 + 80 * row): _text(chance) for row in range(4)}
        count = chance.choice((2, 4, 24))
        frames += [_board(texts)] * count
        lines += [Line(_box(place), begin, begin + count / FPS) for place in texts]
        begin += count / FPS
    return frames, lines


def notices(chance: random.Random) -> tuple[list[np.ndarray], list[Line]]:
    """A board of eight lines, one of which changes every two seconds."""
    texts = {(40 + 300 * (index % 2), 30 + 85 * (index // 2)): _text(chance) for index in range(8)}
    since = dict.fromkeys(texts, 0.0)
    frames, lines = [], []
    for index in range(64):
        if index and index % 4 == 0:
            place = chance.choice(list(texts))
            lines.append(Line(_box(place), since[place], index / FPS))
            texts[place], since[place] = _text(chance), index / FPS
        frames.append(_board(texts))
    return frames, [*lines, *(Line(_box(place), since[place], 32.0) for place in texts)]


def wall(chance: random.Random) -> tuple[list[np.ndarray], list[Line]]:
    """A camera moves along a wall of print, half a screen per second; a line counts while all of it is there."""
    texts = [(40 + 320 * column, 40 + 110 * row, _text(chance)) for column in range(16) for row in range(3)]
    frames, lines = [], []
    step = SIZE[1] // 4  # pixels per frame
    for index in range(28):
        frames.append(
            _board({(x - step * index, y): text for x, y, text in texts if -400 < x - step * index < SIZE[1]})
        )
    for x, y, _ in texts:
        seen = [index for index in range(28) if 0 <= x - step * index <= SIZE[1] - 200]
        lines += [Line(_box((x - step * index, y)), index / FPS, (index + 1) / FPS) for index in seen[:1]]
    return frames, lines


VIDEOS: dict[str, Callable[[random.Random], tuple[list[np.ndarray], list[Line]]]] = {
    "slides": slides,
    "notice board": notices,
    "moving camera": wall,
}


def legible(shown: list[MomentTokens], lines: list[Line]) -> float:
    """The share of the print that is legible in a moment in which it is there."""
    scales = [(one.time, delivered_scale(one.allocation, CELLS)[0]) for one in shown]
    found = 0.0
    for line in lines:
        x0, y0, x1, y1 = (edge / SIZE[1] * CELLS[1] for edge in line.box)
        window = slice(round(y0), max(round(y0) + 1, round(y1))), slice(round(x0), max(round(x0) + 1, round(x1)))
        own = [scale[window] for time, scale in scales if line.begin - 1e-6 <= time < line.end]
        if own:
            best = torch.stack(own).amin(0)  # each part by the moment that shows it best
            found += float(legibility(torch.tensor(FONT / READABLE), best).mean())
    return found / len(lines)


def _ours(source: FrameSource, budget: int) -> list[MomentTokens]:
    return choose_clip(keep_moments(source).moments(), budget=budget, patch=32)


def _theirs(name: str, source: FrameSource, budget: int) -> list[MomentTokens]:
    tokens, choose = VIDEO_BASELINES[name]
    return choose(spread_moments(source, max(1, budget // tokens), 2), budget, 32, torch.device("cpu"))


def measured(seeds: int) -> list[dict[str, Any]]:
    ways: dict[str, Callable[[FrameSource, int], list[MomentTokens]]] = {
        "clip": _ours,
        **{name: partial(_theirs, name) for name in VIDEO_BASELINES},
    }
    rows = []
    for kind, make in VIDEOS.items():
        for seed in range(seeds):
            frames, lines = make(random.Random(seed))
            source = open_video(frames, fps=FPS)
            for budget in BUDGETS:
                for name, way in ways.items():
                    shown = way(source, budget)
                    tokens = sum(int(one.allocation.valid.sum()) for one in shown)
                    row = {"video": kind, "seed": seed, "budget": budget, "way": name, "tokens": tokens}
                    rows.append({**row, "moments": len(shown), "legible": legible(shown, lines)})
    return rows


def report(record: dict[str, Any]) -> str:
    ways = ["clip", *VIDEO_BASELINES]
    table = []
    for kind in VIDEOS:
        for budget in BUDGETS:
            cells = []
            for way in ways:
                own = [
                    row for row in record["rows"] if (row["video"], row["budget"], row["way"]) == (kind, budget, way)
                ]
                score, moments = (sum(row[name] for row in own) / len(own) for name in ("legible", "moments"))
                cells.append(f"{score:.2f} ({moments:.0f})")
            table.append((kind, budget, *cells))
    return markdown_page(
        "# One budget over space and time",
        provenance(record),
        "The share of the print that is legible in a moment in which it is there, and the number of moments shown. "
        "clip: ours. uniform: frames evenly spread, 32 tokens each; few: 128 tokens each; many: 8 tokens each; static: "
        "many frames, of which the half of the tokens that changed most is kept.",
        markdown_table(["video", "budget", *ways], table),
    )


def main(arguments: list[str] | None = None) -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.clips", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--limit", type=int, default=SEEDS, metavar="N", help=f"videos of each kind (default: {SEEDS})")
    options = parser.parse_args(arguments)
    record = {
        "command": command_line(parser, options),
        "code": str(origin("texturevlm_lab.studies.clips")),
        **versions(),
    }
    print(write_study(options.out, "clips", {**record, "rows": measured(options.limit)}, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
