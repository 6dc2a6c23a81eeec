"""Stamps: is a stamp that lies at an angle on an upright page as legible as an upright one, when footprints follow it?

    python -m texturevlm_lab.studies.stamps DATA --out DIR [--skip N] [--limit N] [--ocr E,E] [--readings DIR]

The pages are those of turned.py: real scans, `train`, that the scout's training held out. A stamp of three lines, 62 ×
30 mm on an A4 page, is printed where a page has least ink. Its angle is found as `ask` finds it. Patches are sampled at
the tokens' footprints and painted where a model places them; OCR reads the stamp's number there. Where the stamp is, is
known, so that the table is about angles and not about finding stamps.
"""

import argparse
import random
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.defaults import PATCH
from texturevlm.frame import Frame, turn_vectors
from texturevlm.placement import Placement, TokenConfig, place_together, prepare
from texturevlm.placement.placement import BY_EVIDENCE
from texturevlm.types import Texture
from texturevlm.vlm.views import as_read
from texturevlm_lab.evaluate.asked_page import box_map
from texturevlm_lab.evaluate.legibility import as_bytes, crop_boxes, legibility_score
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.ocr import LineCrop
from texturevlm_lab.studies.study import OCR, READINGS, each, ocr_engines, provenance, study_main
from texturevlm_lab.studies.turned import BUDGET, MAIN_SET, SKIP, angle_rows, held_pages, painted

ANGLES = (20, -35, 90)
WIDE, TALL = 62 / 297, 30 / 297  # of the page's longer side
TRIED = 60  # places
FOLLOW, LIES, BACK = "footprints follow the text", "upright, read as it lies", "upright, turned back by the true angle"


class Stamped(NamedTuple):
    """A page with a stamp on it.

    line: (4, 2), the corners of the number's line; box: around the stamp; angle: of the line, in degrees
    """

    page: Image.Image
    number: str
    line: Tensor
    box: tuple[float, float, float, float]
    angle: float


def stamped(page: Image.Image, angle: float, seed: str) -> Stamped:
    """A page, grey, with a stamp turned clockwise; the same stamp at about the same place for every angle."""
    draw = random.Random(seed)
    number = f"{draw.randrange(10**4, 10**5)}-{draw.randrange(10, 100)}"
    wide, tall = round(WIDE * max(page.size)), round(TALL * max(page.size))
    stamp, top = Image.new("L", (wide, tall), 255), tall / 3
    pen, font = ImageDraw.Draw(stamp), ImageFont.load_default(tall * 0.22)
    pen.rectangle((1, 1, wide - 2, tall - 2), outline=60, width=2)
    words = ("RECEIVED", f"Number {number}", f"{draw.randrange(1, 29)} March 19{draw.randrange(60, 99)}")
    for row, text in enumerate(words):
        pen.text((wide * 0.08, (row + 0.5) * top), text, fill=50, font=font, anchor="lm")
    x0, y0, x1, y1 = pen.textbbox((wide * 0.08, 1.5 * top), words[1], font=font, anchor="lm")
    corners = torch.tensor([[x, y] for x in (x0, x1) for y in (y0, y1)]) - torch.tensor([wide, tall]) / 2
    turned = stamp.rotate(-angle, Image.Resampling.BICUBIC, expand=True, fillcolor=255)
    # Room for any angle, so that the stamp is at one place for all of them.
    room = int(np.hypot(wide, tall)) + 1
    dark = 255 - np.asarray(page, dtype=np.float32)
    spots = [(draw.randrange(page.width - room), draw.randrange(page.height - room)) for _ in range(TRIED)]
    left, top_ = min(spots, key=lambda spot: dark[spot[1] : spot[1] + room, spot[0] : spot[0] + room].mean())
    whole = np.array(page)
    x, y = left + (room - turned.width) // 2, top_ + (room - turned.height) // 2
    part = whole[y : y + turned.height, x : x + turned.width]
    part[...] = np.minimum(part, np.asarray(turned))
    middle = x + turned.width / 2, y + turned.height / 2
    line = turn_vectors(corners.float(), angle) + torch.tensor(middle)
    return Stamped(Image.fromarray(whole), number, line, (x, y, x + turned.width, y + turned.height), angle)


def placed(one: Stamped, turn: float | str) -> Placement:
    """The tokens for the stamp, whose place is known."""
    how = TokenConfig(BUDGET, relevance=BY_EVIDENCE, turn=turn)
    picture = prepare(Texture.open(one.page), how)
    corners = torch.cartesian_prod(*torch.tensor(one.box).view(2, 2).T)
    own = picture.frame.inverse().apply(corners)  # the page may have been taken for a turned one
    x0, y0, x1, y1 = *own.amin(0).tolist(), *own.amax(0).tolist()
    cells = box_map([(x0, y0, x1, y1)], picture.texture.size, picture.memo.maps.grid)
    return place_together([picture], "", how, evidence=[cells[None]])[0]


def line_crops(picture: Tensor, corners: Tensor, times: int) -> list[LineCrop]:
    """The line as OCR takes it. times: how much larger the data set's own page is"""
    box = (*corners.amin(0).tolist(), *corners.amax(0).tolist())
    found = []
    for left, top, right, bottom in crop_boxes([box], (picture.shape[1], picture.shape[2])):
        part = picture[:, top:bottom, left:right]
        found.append(as_bytes(torch.nn.functional.interpolate(part[None], scale_factor=times, mode="bicubic")[0]))
    return found


def followed(one: Stamped, times: int) -> tuple[list[LineCrop], float]:
    """What OCR gets if footprints follow, and the angle of the tokens at the number's line."""
    found = placed(one, "auto")
    allocation = found.given
    read, picture = as_read("stamps", allocation), painted(found.picture.original, allocation)
    middle = one.line.mean(0)
    used = allocation.valid[0].nonzero()[:, 0]
    fine = used[allocation.area[0, used] <= 2 * allocation.area[0, used].min()]
    token = fine[(allocation.centre[0, fine] - middle).norm(dim=-1).argmin()]
    x, y = allocation.ddx[0, token].tolist()
    angle = float(np.degrees(np.arctan2(y, x)))
    corners = turn_vectors(one.line - allocation.centre[0, token], -angle) + read.centre[0, token]
    return line_crops(picture, corners, times), angle


def left_upright(one: Stamped, times: int) -> dict[str, list[LineCrop]]:
    """What OCR gets if footprints stay upright."""
    found = placed(one, 0.0)
    picture = painted(found.picture.original, found.given)
    whole = Texture((picture[None],))
    frame = Frame.turned(whole.size, one.angle)
    back = frame.inverse().apply(one.line)
    return {
        LIES: line_crops(picture, one.line, times),
        BACK: line_crops(frame.show(whole).levels[0][0], back, times),
    }


def study(options: argparse.Namespace) -> dict[str, Any]:
    """The scores of each way at each angle, and whether tokens have the stamp's angle."""
    torch.set_num_threads(1)
    pages = [questions[0] for questions in held_pages(options)]
    engines = ocr_engines(options)
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    found: dict[str, list[bool]] = {}
    for first in each(pages, "pages"):
        page, times = Image.open(first.image).convert("L"), max(1, round(first.reduced))
        for angle in (0, *ANGLES):
            one = stamped(page, angle, first.image.name)
            crops, got = followed(one, times)
            cut = {f"{angle}/{FOLLOW}": crops}
            found.setdefault(str(angle), []).append(abs((got - angle + 180) % 360 - 180) <= 3)
            if angle:
                cut |= {f"{angle}/{how}": some for how, some in left_upright(one, times).items()}
            for name, engine in engines.items():
                for key, some in cut.items():
                    scores[name].setdefault(key, []).append(legibility_score(engine.read(some), [one.number]))
    names = {name: engine.name for name, engine in engines.items()}
    return {"ocr": names, "pages": [first.image.name for first in pages], "scores": scores, "found": found}


def report(record: dict[str, Any]) -> str:
    rows = angle_rows(record, FOLLOW, {angle: sum(own) for angle, own in record["found"].items()})
    heads = [head for name in record["scores"] for head in (name, "difference to the upright stamp")]
    return markdown_page(
        "# Stamps at an angle on upright pages",
        provenance(record, *record["ocr"].values()),
        f"One stamp on each of {len(record['pages'])} `train` pages of {MAIN_SET} whose documents the training of the "
        "scout held out; 62 × 30 mm if the page is A4, three lines, printed where the page has least ink. Stamps are "
        f"made, pages are real. The stamp's place is known to the chooser, its angle is not; allocator `auto`, "
        f"{BUDGET} tokens of {PATCH}×{PATCH}. OCR reads the line with the number. Differences are paired, with 95% "
        "intervals from resampling pages. Last column: stamps whose tokens have their angle, within 3°.",
        markdown_table(("turned by", "tokens", *heads, "angle right"), rows),
    )


main = study_main(__name__, __doc__, study, report, SKIP, OCR, READINGS)
