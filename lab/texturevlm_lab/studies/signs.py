"""Signs in photographs: is a sign that hangs askew as legible as a straight one, when footprints follow it?

    python -m texturevlm_lab.studies.signs DATA --out DIR [--skip N] [--limit N] [--ocr E,E] [--readings DIR]

DATA holds coco, of which `train` photographs are used. Each gets a sign of its own: two lines on a coloured board,
turned, seen a little from the side (its corners are moved by up to an eighth of its height), dimmed and blurred. Signs
are made, photographs are real. As in stamps.py the place of the sign is known and its angle is found; OCR reads the
line with the number. --limit is the number of photographs, evenly spread over those that --skip leaves. Those of
--limit 10, --skip 6 --limit 24 and --skip 3 --limit 24 were seen while the finding of signs was repaired.
"""

import argparse
import random
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.frame import turn_vectors
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.held_out import PATCH
from texturevlm_lab.studies.stamps import FOLLOW, Printed, Stamped, read_lines
from texturevlm_lab.studies.study import OCR, READINGS, evenly, provenance, study_main
from texturevlm_lab.studies.turned import BUDGET, SKIP, angle_rows

ANGLES = (12, -25, 40)
WIDE, TALL = 0.42, 0.19  # of the photograph's longer side
ASIDE = 0.12  # of the sign's height: how far a corner may move
NAMES = ("Harbour", "Station", "Old Mill", "Airport", "Market", "North Gate", "Museum", "Bridge")
BOARDS = (((24, 96, 60), (245, 245, 240)), ((30, 70, 140), (250, 250, 250)), ((240, 200, 40), (20, 20, 20)))
LIT = (0.75, 1.0)  # brightness of the board
BLUR = 0.6  # pixels


def with_sign(photograph: Image.Image, angle: float, seed: str) -> Stamped:
    """A photograph with a sign turned clockwise; the same sign at the same place for every angle."""
    draw = random.Random(seed)
    number = f"{draw.randrange(10**3, 10**4)}-{draw.randrange(10, 100)}"
    side = max(photograph.size)
    wide, tall = round(WIDE * side), round(TALL * side)
    board, line = _board(wide, tall, draw.choice(NAMES), f"Exit {number}", draw.choice(BOARDS))
    corners = torch.tensor([[0, 0], [wide, 0], [wide, tall], [0, tall]], dtype=torch.float32)
    aside = torch.tensor([[draw.uniform(-1, 1), draw.uniform(-1, 1)] for _ in range(4)]) * (ASIDE * tall)
    middle = corners.mean(0)
    room = float(np.hypot(wide, tall) / 2 + ASIDE * tall)
    place = [draw.uniform(room, max(room, extent - room)) for extent in photograph.size]
    seen = turn_vectors(corners - middle + aside, angle) + torch.tensor(place)
    lit = draw.uniform(*LIT)
    to_board = _homography(seen, corners)  # from pixels of the photograph
    matrix = [float(one) for one in (to_board / to_board[2, 2]).flatten()[:8]]
    canvas = board.point(lambda value: round(value * lit)).transform(
        photograph.size, Image.Transform.PERSPECTIVE, matrix, Image.Resampling.BICUBIC
    )
    mask = Image.new("L", board.size, 255).transform(
        photograph.size, Image.Transform.PERSPECTIVE, matrix, Image.Resampling.BICUBIC
    )
    blurred = ImageFilter.GaussianBlur(BLUR)
    whole = Image.composite(canvas.filter(blurred), photograph, mask.filter(blurred))
    found = _moved(line, torch.linalg.inv(to_board))
    along = (found[1] - found[0]) + (found[3] - found[2])
    own = float(torch.rad2deg(torch.atan2(along[1], along[0])))
    return Stamped(whole, number, found, (*seen.amin(0).tolist(), *seen.amax(0).tolist()), own)


def _board(
    wide: int, tall: int, name: str, text: str, colours: tuple[tuple[int, int, int], tuple[int, int, int]]
) -> tuple[Image.Image, Tensor]:
    """A board, and the corners of its second line: left and right above, left and right below."""
    ground, ink = colours
    board = Image.new("RGB", (wide, tall), ground)
    pen, font = ImageDraw.Draw(board), ImageFont.load_default(tall * 0.24)
    pen.rectangle((3, 3, wide - 4, tall - 4), outline=ink, width=2)
    for row, one in enumerate((name, text)):
        pen.text((wide / 2, (0.3 + 0.4 * row) * tall), one, fill=ink, font=font, anchor="mm")
    x0, y0, x1, y1 = pen.textbbox((wide / 2, 0.7 * tall), text, font=font, anchor="mm")
    return board, torch.tensor([[x0, y0], [x1, y0], [x0, y1], [x1, y1]], dtype=torch.float32)


def _homography(sources: Tensor, targets: Tensor) -> Tensor:
    """(3, 3): the projective map that takes four points (4, 2) to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(sources.double().tolist(), targets.double().tolist()):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = torch.linalg.solve(torch.tensor(rows, dtype=torch.float64), torch.tensor(values, dtype=torch.float64))
    return torch.cat([solved, solved.new_ones(1)]).view(3, 3)


def _moved(points: Tensor, matrix: Tensor) -> Tensor:
    """Points (N, 2) under a projective map."""
    found = torch.cat([points.double(), points.new_ones(len(points), 1).double()], 1) @ matrix.T
    return (found[:, :2] / found[:, 2:]).float()


def study(options: argparse.Namespace) -> dict[str, Any]:
    samples = load_data(options.data / "coco", split="train", located=True).samples
    check_count("--skip", "N", options.skip, 0)
    images, paths = [], list(dict.fromkeys(sample.image for sample in samples))[options.skip :]
    for path in evenly(paths, options.limit):
        photograph = Image.open(path).convert("RGB")
        images.append(Printed(path.name, 1, partial(with_sign, photograph, seed=path.name)))
    return read_lines(images, ANGLES, options)


def report(record: dict[str, Any]) -> str:
    rows = angle_rows(record, FOLLOW, {angle: sum(own) for angle, own in record["found"].items()})
    heads = [head for name in record["scores"] for head in (name, "difference to the straight sign")]
    return markdown_page(
        "# Signs askew in photographs",
        provenance(record, *record["ocr"].values()),
        f"One sign in each of {len(record['pages'])} `train` photographs of COCO: two lines, seen a little from the "
        "side, the straight ones, too. Signs are made, photographs are real. The sign's place is known to the chooser, "
        f"its angle is not; allocator `auto`, {BUDGET} tokens of {PATCH}×{PATCH}. OCR reads the line with the number. "
        "Differences are paired, with 95% intervals from resampling photographs. Last column: signs whose "
        "tokens have their angle, within 3°.",
        markdown_table(("turned by", "tokens", *heads, "angle right"), rows),
    )


main = study_main(__name__, __doc__, study, report, SKIP, OCR, READINGS)
