"""Do tokens stay on what the model looked at? A made clip, and a face in a real one.

    python -m texturevlm_lab.studies.feedback VIDEO --out results [--boxes BOXES] [--first N] [--fps 12.5]

VIDEO is a clip of one object, BOXES its place in each frame from frame N on (lines x,y,width,height). At the first
frame a model's attention lies on the object: an even map over its box, as after a question about it. From there on
nothing is asked. Measured is the scale at which tokens deliver the object where it is now, in pixels per sample, and
how much of it is legible at that scale, with `feedback` off and on, and with the box pointed at by a user. In the made
clip a card of print crosses a scene in which more print stands still.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.footprints import Box
from texturevlm.allocate.value import delivered_scale
from texturevlm.ops.legibility import legibility
from texturevlm.video import Sampler, open_video
from texturevlm.video.live import VideoStream
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import MISTAKES, command_line, provenance, versions, write_study

WAYS: dict[str, float | None] = {"none": 0.0, "feedback 0.5": 0.5, "feedback 0.9": 0.9, "pointed at": None}
BUDGET = 24
PATCH = 16
MADE_SIZE, MADE_FRAMES, CARD = (192, 320), 40, 48
SOON = 2.0  # seconds: the first part of a clip, told apart from the rest

Shown = tuple[Tensor, float, Box]  # an image (3, H, W), its time, where the object is


def made_clip() -> Iterator[Shown]:
    """A card of print that crosses a scene under a wall of print."""
    chance = torch.Generator().manual_seed(3)
    card, wall = ((torch.rand(3, *size, generator=chance) > 0.5).float() for size in ((CARD, CARD), (80, 320)))
    for index in range(MADE_FRAMES):
        image = torch.full((3, *MADE_SIZE), 0.6)
        image[:, :80] = wall
        left = 16 + 6 * index
        image[:, 100 : 100 + CARD, left : left + CARD] = card
        yield image, index / 12.5, (left, 100, left + CARD, 100 + CARD)


def real_clip(video: Path, boxes: Path, first: int, fps: float) -> Iterator[Shown]:
    """A clip with known boxes. first: the number of the frame of the first box, from 0"""
    table = [tuple(map(float, line.split(","))) for line in boxes.read_text(encoding="utf-8").split()]
    sampler = Sampler(fps)
    for index, frame in enumerate(open_video(video)):
        if first <= index < first + len(table) and sampler.takes(frame.time):
            x, y, width, height = table[index - first]
            yield frame.image, frame.time, (x, y, x + width, y + height)


def followed(shown: list[Shown], way: str) -> list[dict[str, float]]:
    """Per frame after the first: its time, and the means on the object: log2 of pixels per sample, and legibility."""
    size = tuple(shown[0][0].shape[1:])
    stream, share = VideoStream(size, BUDGET, relevance="none", patch=PATCH), WAYS[way]
    found = []
    for index, (image, time, box) in enumerate(shown):
        step = stream.step(image, time=time)
        if index:
            rows, columns = grid = step.relevance.grid
            # What no token shows counts as shown by one over the whole frame.
            scale = delivered_scale(step.allocation, grid)[0].clamp(max=max(size) / PATCH)
            legible = legibility(step.relevance.legible_scale[0], scale)
            where = _cells(box, 1, rows, size[0]), _cells(box, 0, columns, size[1])
            means = {"scale": float(scale[where].log2().mean()), "legible": float(legible[where].mean())}
            found.append({"time": time - shown[0][1], **means})
        elif share is None:
            stream.point(box)
        elif share:
            attention = torch.zeros(1, *size)
            x0, y0, x1, y1 = map(round, box)
            attention[:, y0:y1, x0:x1] = 1.0
            stream.tokens.attend(attention, share=share)
    return found


def _cells(box: Box, axis: int, count: int, extent: int) -> slice:
    """The cells between two sides of a box, at least one. count: of the cells along so many pixels"""
    low, high = (min(max(0, round(side * count / extent)), count) for side in (box[axis], box[axis + 2]))
    return slice(min(low, count - 1), max(low + 1, high))


def lines(rows: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """Per way: pixels per sample soon and later, and levels and legibility against none, with intervals by seconds."""
    found, plain = [], rows["none"]
    for way, own in rows.items():
        cells = []
        for part in (True, False):
            some = [one["scale"] for one in own if (one["time"] <= SOON) == part]
            cells.append(f"{2 ** (sum(some) / len(some)):.2f}" if some else "–")
        for name in ("scale", "legible"):
            ours, theirs = ([one[name] for one in each] for each in (own, plain))
            gain = paired_difference(ours, theirs, groups=[int(one["time"]) for one in own])
            cells.append("–" if way == "none" else f"{gain.mean:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})")
        cells.append(f"{sum(one['legible'] for one in own) / len(own):.2f}")
        found.append((way, *cells, str(len(own))))
    return found


def report(record: dict[str, Any]) -> str:
    heads = ["tokens go", f"pixels per sample, first {SOON:g} s", "later", "levels against none"]
    heads += ["legibility against none", "legibility", "frames"]
    parts = []
    for name, rows in record["clips"].items():
        parts += [f"## {name}", markdown_table(heads, lines(rows))]
    return markdown_page(
        "# Tokens follow what the model looked at",
        provenance(record),
        f"Budget {BUDGET} tokens of {PATCH}×{PATCH} samples per frame, relevance none, one CPU. The attention is put "
        "on the object's box at the first frame, and nothing is asked after that. Lower is finer; a level is a factor "
        "of two. Intervals: 95 %, paired by frame, seconds resampled; one clip each.",
        *parts,
    )


def main(arguments: list[str] | None = None) -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.feedback", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("video", type=Path, metavar="VIDEO", help="a clip of one object")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--boxes", type=Path, metavar="BOXES", required=True, help="lines x,y,width,height")
    parser.add_argument("--first", type=int, default=299, metavar="N", help="frame of the first box (default: 299)")
    parser.add_argument("--fps", type=float, default=12.5, metavar="F", help="frames per second (default: 12.5)")
    options = parser.parse_args(arguments)
    record: dict[str, Any] = {
        "command": command_line(parser, options),
        "code": str(origin("texturevlm_lab.studies.feedback")),
    }
    try:
        real = list(real_clip(options.video, options.boxes, options.first, options.fps))
        if len(real) < 2:
            raise ValueError(f"VIDEO must have frames with boxes from frame {options.first} on, got {len(real)}")
    except MISTAKES as error:
        print(f"texturevlm_lab.studies.feedback: {error}", file=sys.stderr)
        return 2
    clips = {"A card that crosses a made scene": list(made_clip()), f"The object of {options.video.name}": real}
    record |= {**versions(), "clips": {name: {way: followed(one, way) for way in WAYS} for name, one in clips.items()}}
    print(write_study(options.out, "feedback", record, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
