"""What draws tokens away from the answer: stickers, moiré, codes and watermarks, put on real pages.

    python -m texturevlm_lab.studies.adversarial DATA --out DIR [--limit N] [--device D]

DATA holds sroie/ and docvqa_half/. One question with a located answer is taken per page of the train split, of --limit
pages per set. Each page is also shown with one distraction, beside the answer's own lines or, for a watermark, over
everything. Measured are the expected legibility of the answer at 32 tokens, and the tokens that lie on the
distraction; differences are paired by page.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont

from texturevlm.allocate.value import delivered_scale
from texturevlm.channels.pretrained import torch_device
from texturevlm.defaults import PATCH
from texturevlm.ops.legibility import legibility
from texturevlm.placement import choose_tokens
from texturevlm.progress import Progress
from texturevlm.relevance import find_relevance
from texturevlm.relevance.words import WORD_HEIGHT
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import DEVICE, device_of, evenly, provenance, study_main

SETS = ("sroie", "docvqa_half")
PAGES, BUDGET = 60, 32  # at 96 tokens nearly every answer of a receipt is legible, distracted or not
SHARE = 0.3  # side of a distraction, over the page's shorter side
CLEAN = "clean"
SCORERS = ("none", "prior", "scout")
Box = tuple[int, int, int, int]


def sticker(side: int, draw: random.Random) -> Image.Image:
    """A bright disc with a star."""
    image = Image.new("RGB", (side, side), "white")
    pen, middle = ImageDraw.Draw(image), side / 2
    pen.ellipse((0, 0, side - 1, side - 1), fill=draw.choice(["red", "orange", "magenta", "blue"]))
    radii = (0.42 * side, 0.18 * side)
    points = [(math.sin(k * math.pi / 5) * radii[k % 2], -math.cos(k * math.pi / 5) * radii[k % 2]) for k in range(10)]
    pen.polygon([(middle + x, middle + y) for x, y in points], fill="yellow")
    return image


def moire(side: int, draw: random.Random) -> Image.Image:
    """Two gratings, two to four pixels per period, a few degrees apart."""
    y, x = np.mgrid[:side, :side].astype(float)
    period, angle = draw.uniform(2, 4), draw.uniform(0, math.pi)
    waves = [np.sin(2 * math.pi / period * (x * math.cos(a) + y * math.sin(a))) for a in (angle, angle + 0.08)]
    return Image.fromarray(np.uint8(127.5 + 127.5 * waves[0] * waves[1])).convert("RGB")


def code(side: int, draw: random.Random) -> Image.Image:
    """Modules at random, with the three corner marks of a QR code."""
    count = 29
    grid = np.array([[draw.random() < 0.5 for _ in range(count)] for _ in range(count)])
    for top, left in ((0, 0), (0, count - 7), (count - 7, 0)):
        ring = np.ones((7, 7), dtype=bool)
        ring[1:6, 1:6] = False
        ring[2:5, 2:5] = True
        grid[top : top + 7, left : left + 7] = ring
    return Image.fromarray(np.uint8(255 * ~grid)).resize((side, side), Image.Resampling.NEAREST).convert("RGB")


PATCHES: dict[str, Callable[[int, random.Random], Image.Image]] = {"sticker": sticker, "moiré": moire, "code": code}
WATERMARK = "watermark"
KINDS = (CLEAN, *PATCHES, WATERMARK)


def free_place(size: tuple[int, int], answer: Box, draw: random.Random) -> Box:
    """A square on a page (width, height) that does not touch the answer's rows."""
    width, height = size
    above, below = answer[1], height - answer[3]
    side = min(int(SHARE * min(size)), max(above, below))
    top = draw.randint(0, above - side) if above >= below else draw.randint(answer[3], height - side)
    left = draw.randint(0, width - side)
    return left, top, left + side, top + side


def distracted(page: Image.Image, kind: str, place: Box, draw: random.Random) -> Image.Image:
    """The page with one distraction, a patch at its place or a watermark over everything."""
    if kind == WATERMARK:
        return _watermarked(page)
    found = page.copy()
    found.paste(PATCHES[kind](place[2] - place[0], draw), place[:2])
    return found


def _watermarked(page: Image.Image) -> Image.Image:
    """Grey words across the page, under the print."""
    size = max(12, page.width // 6)
    line = Image.new("L", (2 * page.width, 2 * page.height), 255)
    pen, font = ImageDraw.Draw(line), ImageFont.load_default(size)
    for top in range(0, line.height, 3 * size):
        pen.text((0, top), "CONFIDENTIAL  COPY  " * 4, fill=190, font=font)
    turned = line.rotate(30, fillcolor=255)
    left, top = page.width // 2, page.height // 2
    mark = turned.crop((left, top, left + page.width, top + page.height)).convert("RGB")
    return ImageChops.darker(page, mark)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [(name, sample) for name in SETS for sample in _located(options.data / name, options.limit or PAGES)]
    rows: list[dict[str, Any]] = []
    device = torch_device("adversarial", device_of(options))
    progress = Progress(len(chosen), "pages")
    for number, (name, sample) in enumerate(chosen):
        left, top, right, bottom = (round(edge) for edge in sample.boxes[0])
        page = Image.open(sample.image).convert("RGB")
        place = free_place(page.size, (left, top, right, bottom), random.Random(number))
        for kind in KINDS:
            shown = page if kind == CLEAN else distracted(page, kind, place, random.Random(number))
            texture = Texture.open(shown, device=device).mipmapped()
            scores = {scorer: _seen(texture, sample, scorer, place) for scorer in SCORERS}
            rows.append({"data": name, "page": sample.image.name, "kind": kind, **scores})
        progress.step()
    return {"rows": rows, "device": str(device)}


def _located(data: Path, limit: int) -> list[Sample]:
    """One question with a located answer per page."""
    located = {sample.image: sample for sample in load_data(data, split="train").samples if sample.boxes}
    if not located:
        raise ValueError(f"DATA must have questions with boxes of their answers, got none in {data}")
    return evenly(list(located.values()), limit)


def _seen(texture: Texture, sample: Sample, scorer: str, place: Box) -> dict[str, float]:
    """legible: of the answer, its box's height against the scale that is delivered at its centre; drawn: the share of
    the tokens with their centre in the distraction's place."""
    relevance = find_relevance(texture, sample.question, patch=PATCH, relevance=scorer)
    allocation = choose_tokens(texture, budget=BUDGET, relevance=relevance)
    scale = delivered_scale(allocation, relevance.grid)[0]
    left, top, right, bottom = sample.boxes[0]
    rows, columns = relevance.grid
    row = min(rows - 1, int((top + bottom) / 2 / texture.size[0] * rows))
    column = min(columns - 1, int((left + right) / 2 / texture.size[1] * columns))
    x, y = allocation.centre[allocation.valid].unbind(-1)
    inside = (x >= place[0]) & (x < place[2]) & (y >= place[1]) & (y < place[3])
    legible = float(legibility(np.array((bottom - top) / WORD_HEIGHT), float(scale[row, column])))
    return {"legible": legible, "drawn": float(inside.float().mean())}


def report(found: dict[str, Any]) -> str:
    blocks = []
    for name in dict.fromkeys(row["data"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["data"] == name]
        pages = len({row["page"] for row in rows})
        heads = ("relevance", "page", "legibility", "change", "change − that by `none`", "tokens drawn")
        blocks += [f"## {name}, {pages} pages", markdown_table(heads, list(_lines(rows)))]
    return markdown_page(
        "# Pages that distract",
        f"Pages of `train` splits, one located answer each, {BUDGET} tokens by `auto`, device {found['device']}. "
        "Legibility of the answer, expected from its height and the scale at its centre, and its change from the clean "
        "page. Tokens drawn: the share of the tokens with their centre on the distraction, less that at the same place "
        "of the clean page. `none` and `prior` do not read the question, `scout` does. Differences are paired, with "
        "95% intervals by page.",
        *blocks,
        provenance(found),
    )


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    def column(scorer: str, kind: str, name: str) -> list[float]:
        return [row[scorer][name] for row in rows if row["kind"] == kind]

    def changes(scorer: str, kind: str) -> list[float]:
        pairs = zip(column(scorer, kind, "legible"), column(scorer, CLEAN, "legible"))
        return [after - before for after, before in pairs]

    for scorer in SCORERS:
        for kind in KINDS:
            line = [scorer, kind, f"{mean(column(scorer, kind, 'legible')):.3f}"]
            pairs: list[tuple[list[float], list[float]] | None] = [None, None, None]
            if kind != CLEAN:
                pairs[0] = changes(scorer, kind), [0.0] * len(changes(scorer, kind))
                pairs[1] = None if scorer == SCORERS[0] else (changes(scorer, kind), changes(SCORERS[0], kind))
            if kind in PATCHES:
                pairs[2] = column(scorer, kind, "drawn"), column(scorer, CLEAN, "drawn")
            yield [*line, *("" if pair is None else format_interval(paired_difference(*pair)) for pair in pairs)]


main = study_main(__name__, __doc__, measure, report, DEVICE)
