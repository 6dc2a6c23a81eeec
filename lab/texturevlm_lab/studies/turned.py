"""Turned pages: is a page that lies at an angle as legible as an upright one, when it is turned upright?

    python -m texturevlm_lab.studies.turned DATA --out DIR [--set NAME] [--split eval] [--skip N] [--limit N] …

DATA holds the sets that the scout was trained on; measured are pages of docvqa_half, or of --set, that its training
held out. Those of docvqa_half served while turning was built: --skip leaves the first out. With --split eval the pages
of docvqa at full resolution are measured instead, --limit of them evenly spread. Each page is turned clockwise on paper
of its own colour; its angle is found as `ask` finds it. Patches are sampled as `ask` samples them, from the picture
that was turned upright, and painted where a model places them; OCR reads the answer's line there. Three controls. One
leaves footprints upright; its picture is turned back by the true angle before OCR reads it. One is a bound on what can
be reached: the turned page is turned back by the same fine filters that turned it, and then is an upright page. The
last is the upright page, moved by half a pixel by these filters.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from texturevlm.check import check_count
from texturevlm.defaults import PATCH
from texturevlm.frame import QUARTER, Frame, upright_frame, within
from texturevlm.placement import Picture, TokenConfig, place_together, prepare
from texturevlm.rebuilding import median_grey
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.views import as_read
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.legibility import as_bytes, crop_boxes, legibility_score
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.ocr import LineCrop
from texturevlm_lab.studies.study import (
    OCR,
    READINGS,
    SPLIT,
    by_page,
    each,
    evenly,
    lead,
    ocr_engines,
    option,
    provenance,
    study_main,
)
from texturevlm_lab.train.pages import held_images

MAIN_SET, FULL_SET = "docvqa_half", "docvqa"
ANGLES = (5, 15, 45, 90)
CONTROLLED = (90,)  # angles of the control
BUDGET = 96
HOW = TokenConfig(BUDGET, relevance="scout")
FINER = 3  # times the page's resolution, in which it is turned
FOLLOWED, LEFT = "turned upright", "left as it lies"
BACK, MOVED = "turned back before, finely: a bound", "moved by half a pixel, upright"


def turned_page(page: Image.Image, angle: float) -> Image.Image:
    """A page turned clockwise, on paper of its own colour; at a higher resolution, so that turning does not blur it."""
    if angle % QUARTER == 0:
        return page.rotate(-angle, expand=True)
    paper = int(np.median(np.asarray(page)))
    large = page.resize((page.width * FINER, page.height * FINER), Image.Resampling.LANCZOS)
    turned = large.rotate(-angle, Image.Resampling.BICUBIC, expand=True, fillcolor=paper)
    size = round(turned.width / FINER), round(turned.height / FINER)
    return turned.resize(size, Image.Resampling.LANCZOS)


def moved_page(page: Image.Image) -> Image.Image:
    """The page half a pixel further right and down."""
    large = page.resize((page.width * 2, page.height * 2), Image.Resampling.LANCZOS)
    moved = ImageChops.offset(large, 1, 1)  # one of two
    return moved.resize(page.size, Image.Resampling.LANCZOS)


def turned_and_back(page: Image.Image, angle: float) -> Image.Image:
    """The page after it was turned and turned back."""
    back = turned_page(turned_page(page, angle), -angle)
    left, top = (back.width - page.width) // 2, (back.height - page.height) // 2
    return back.crop((left, top, left + page.width, top + page.height))


def painted(texture: Texture, allocation: Allocation) -> Tensor:
    """(C, H, W): the sampled patches where a model places them, the finest on top."""
    patches, read = sample(texture, allocation).pixels[0], as_read("turned", allocation)
    height, width = read.size
    canvas = median_grey(texture)[0].expand(patches.shape[1], height, width).clone()
    first, last = read.pixel_span()
    for slot in sorted(read.valid[0].nonzero()[:, 0].tolist(), key=lambda slot: -float(read.area[0, slot])):
        (x0, y0), (x1, y1) = first[0, slot].tolist(), last[0, slot].tolist()
        part = canvas[:, y0:y1, x0:x1]
        if part.numel():
            u, v, inside = read.local(0, slot, x0, y0, part.shape[1:])
            grid = torch.stack([u, v], -1).to(part)[None]
            values = grid_sample(patches[slot][None], grid, "bicubic", "border", align_corners=False)[0]
            part.copy_(torch.where(inside, values, part))
    return canvas


def boxes_after(question: Sample, middle: Sequence[float], turned: float) -> list[tuple[float, float, float, float]]:
    """The answer's boxes in a picture whose page is turned by an angle; middle: where the page's centre lies there."""
    height, width = question.size
    cosine, sine = math.cos(math.radians(turned)), math.sin(math.radians(turned))
    found = []
    for x0, y0, x1, y1 in question.boxes:
        corners = [(x - width / 2, y - height / 2) for x in (x0, x1) for y in (y0, y1)]
        xs = [x * cosine - y * sine + middle[0] for x, y in corners]
        ys = [x * sine + y * cosine + middle[1] for x, y in corners]
        found.append((min(xs), min(ys), max(xs), max(ys)))
    return found


def crops_of(picture: Tensor, question: Sample, turned: float, middle: Sequence[float]) -> list[LineCrop]:
    """The answer's lines as an OCR engine takes them, at the size that the data set's page has."""
    size = (picture.shape[1], picture.shape[2])
    found = []
    for left, top, right, bottom in crop_boxes(boxes_after(question, middle, turned), size):
        part = picture[:, top:bottom, left:right]
        if (times := round(question.reduced)) > 1:
            part = interpolate(part[None], scale_factor=times, mode="bicubic")[0]
        found.append(as_bytes(part))
    return found


def prepared(page: Image.Image, angle: float, how: str) -> Picture:
    """A page turned clockwise: turned upright by the angle that is found, left as it lies, or as the controls say."""
    given = moved_page(page) if how == MOVED else (turned_and_back if how == BACK else turned_page)(page, angle)
    return prepare(Texture.open(given), replace(HOW, turn="auto" if how == FOLLOWED else 0.0))


def delivered(image: Picture, question: Sample, angle: float, how: str) -> tuple[list[LineCrop], float]:
    """What OCR gets of an answer, and by how much the angle that was found is wrong."""
    angle = 0.0 if how == BACK else angle
    (placed,) = place_together([image], question.question, HOW)
    picture = painted(image.texture, placed.allocation)
    if how == LEFT and angle:
        given = Texture((picture[None],))
        frame = upright_frame(given, angle)
        return crops_of(frame.show(given).levels[0][0], question, 0.0, middle_in(frame)), 0.0
    left = angle - image.frame.angle
    return crops_of(picture, question, left, middle_in(image.frame)), abs(within(left))


def middle_in(frame: Frame) -> list[float]:
    """Where the image's centre lies in its picture, x and y."""
    height, width = frame.given
    return frame.inverse().apply(torch.tensor([width, height], dtype=torch.float64) / 2).tolist()


def full_pages(options: argparse.Namespace) -> list[list[Sample]]:
    """The questions of each `eval` page at full resolution that is measured."""
    samples = load_data(options.data / FULL_SET, split="eval", located=True).samples
    return evenly(list(by_page(samples).values()), options.limit)


def held_pages(options: argparse.Namespace, name: str = MAIN_SET) -> list[list[Sample]]:
    """The questions of each page that is measured. name: of the data set"""
    held = held_images(options.data, name)
    samples = load_data(options.data / name, split="train", located=True).samples
    pages = by_page(one for one in samples if one.image.name in held)
    check_count("--skip", "N", options.skip, 0)
    if not (chosen := list(pages.values())[options.skip :][: options.limit]):
        raise ValueError(
            f"{options.data} must hold questions on more than {options.skip} pages of held-out documents (--skip), "
            f"got {len(pages)}"
        )
    return chosen


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    chosen = held_pages(options, options.set) if options.split == "train" else full_pages(options)
    engines = ocr_engines(options)
    variants = [(angle, FOLLOWED) for angle in (0, *ANGLES)] + [(angle, LEFT) for angle in CONTROLLED]
    variants += [*((angle, BACK) for angle in ANGLES if angle % QUARTER), (0, MOVED)]
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    errors: dict[str, list[float]] = {}
    for questions in each(chosen, "pages"):
        page = Image.open(questions[0].image).convert("L")
        for angle, how in variants:
            image = prepared(page, angle, how)
            cut = [delivered(image, question, angle, how) for question in questions]
            if how == FOLLOWED:
                errors.setdefault(str(angle), []).append(max(error for _, error in cut))
            for name, engine in engines.items():
                texts = iter(engine.read([crop for crops, _ in cut for crop in crops]))
                for question, (crops, _) in zip(questions, cut):
                    score = legibility_score([next(texts) for _ in crops], question.answers)
                    scores[name].setdefault(f"{angle}/{how}", []).append(score)
    return {
        "ocr": {name: engine.name for name, engine in engines.items()},
        "split": options.split,
        "set": options.set,
        "pages": [one.image.name for questions in chosen for one in questions],
        "scores": scores,
        "errors": errors,
    }


def angle_rows(record: dict[str, Any], followed: str, last: dict[str, int]) -> list[tuple[Any, ...]]:
    """Per angle and way its score with each OCR engine, and the difference to angle 0 of the way `followed`.

    last: of each angle, what the last column says in the rows of that way
    """
    rows = []
    for key in next(iter(record["scores"].values())):
        angle, _, how = key.partition("/")
        pairs = [(own[key], own[f"0/{followed}"]) for own in record["scores"].values()]
        cells = [cell for own, first in pairs for cell in (f"{np.mean(own):.3f}", lead(own, first, record["pages"]))]
        rows.append((f"{angle}°", how, *cells, last[angle] if how == followed else "–"))
    return rows


def report(record: dict[str, Any]) -> str:
    wrong = {angle: sum(error > 2 for error in own) for angle, own in record["errors"].items()}
    rows = angle_rows(record, FOLLOWED, wrong)
    heads = [head for name in record["scores"] for head in (name, "difference to the upright page")]
    held = f"`train` pages of {record['set']} whose documents the training of the scout held out"
    pages = held if record["split"] == "train" else f"`eval` pages of {FULL_SET} at full resolution"
    return markdown_page(
        "# Turned pages: legibility when they are turned upright",
        provenance(record, *record["ocr"].values()),
        f"{len(record['pages'])} located questions on {len(set(record['pages']))} {pages}. Relevance `scout`, "
        f"allocator `auto`, {BUDGET} tokens of {PATCH}×{PATCH}. The angle is found, not given. Differences are paired, "
        f"with 95% intervals from resampling pages. Pages are turned at {FINER} times their resolution, so that "
        "turning itself blurs them little; what it costs is seen where a page was turned and turned back in that way "
        "before tokens are chosen (no method can win that back), and where it was only moved by half a pixel. Last "
        "column: pages whose angle was found wrong by more than 2°.",
        markdown_table(("turned by", "tokens", *heads, "wrong angle"), rows),
    )


SKIP = option("--skip", type=int, default=0, metavar="N", help="leave out the first N (default: 0)")
SET = option("--set", default=MAIN_SET, choices=("docvqa_half", "funsd", "sroie"), help=f"(default: {MAIN_SET})")
main = study_main(__name__, __doc__, study, report, SET, SKIP, SPLIT, OCR, READINGS)
