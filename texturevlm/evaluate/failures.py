"""A picture of a method's worst failures: its tokens, what they delivered, what was read, and the answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from texturevlm.draw import FAINT, INK, PAPER, footprints, to_pil
from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.legibility import crop_boxes
from texturevlm.evaluate.results import IDEAL_RESIZE, Configuration, Results
from texturevlm.rebuilding import rebuild, resized
from texturevlm.types import Allocation, Texture

_PAGE = 460  # side of the square into which a page is fitted
_CROP = 860  # width into which a crop is fitted
_MARGIN = 24
_WRONG = (200, 40, 40)


@dataclass(frozen=True)
class Failure:
    """A sample, the scores of the method and of resize, and the text read from either."""

    sample: Sample
    score: float
    baseline: float | None
    read: str
    baseline_read: str


def worst(
    results: Results, samples: Sequence[Sample], configuration: Configuration, name: str, count: int = 6
) -> list[Failure]:
    """Where the method falls furthest behind resize, then where its score is lowest. One per page."""
    found = []
    for sample in samples:
        row = results.rows.get(configuration.key(sample.id))
        if row is None or name not in row.scores:
            continue
        rival = results.rows.get(Configuration(IDEAL_RESIZE, budget=configuration.budget).key(sample.id))
        baseline = rival.scores.get(name) if rival is not None else None
        texts = [" | ".join(text.strip() for text in one.read) if one is not None else "" for one in (row, rival)]
        found.append(Failure(sample, row.scores[name], baseline, texts[0], texts[1]))
    found.sort(key=lambda one: (one.score - one.baseline if one.baseline is not None else 0.0, one.score))
    pages: dict[Path, Failure] = {}
    for one in found:
        pages.setdefault(one.sample.image, one)
    return list(pages.values())[:count]


def draw_failures(
    failures: Sequence[Failure], allocate: Callable[[Sample], Allocation], *, title: str, patch: int
) -> Image.Image:
    """One band per failure: the page with footprints and the answer's boxes, beside it the crops and the texts.

    allocate: computes the tokens of a sample again, since a run keeps no allocations
    """
    bands = [_band(failure, allocate(failure.sample), patch) for failure in failures]
    head = 56
    width = 3 * _MARGIN + _PAGE + _CROP
    picture = Image.new("RGB", (width, head + sum(band.height + _MARGIN for band in bands)), PAPER)
    ImageDraw.Draw(picture).text((_MARGIN, 18), title, fill=INK, font=ImageFont.load_default(22))
    y = head
    for band in bands:
        picture.paste(band, (_MARGIN, y))
        y += band.height + _MARGIN
    return picture


def _band(failure: Failure, allocation: Allocation, patch: int) -> Image.Image:
    sample = failure.sample
    texture = Texture.open(sample.image, device=allocation.centre.device)
    page = footprints(to_pil(texture.levels[0]), allocation)
    outline = ImageDraw.Draw(page)
    for box in sample.boxes[:3]:
        outline.rectangle(box, outline=_WRONG, width=max(2, round(max(page.size) / 350)))
    page.thumbnail((_PAGE, _PAGE), Image.Resampling.LANCZOS)
    band = Image.new("RGB", (_PAGE + _MARGIN + _CROP, _PAGE), PAPER)
    band.paste(page, (0, 0))
    draw = ImageDraw.Draw(band)
    x, y = _PAGE + _MARGIN, 0
    answers = " / ".join(sample.answers[:3])
    scores = f"{failure.score:.2f}" + ("" if failure.baseline is None else f", resize {failure.baseline:.2f}")
    for text, colour in (
        (sample.question or "no question", INK),
        (f"wanted: {answers}" if answers else sample.name, INK),
        (f"score: {scores}", _WRONG),
    ):
        draw.text((x, y), _cut(text, 92), fill=colour, font=ImageFont.load_default(18))
        y += 24
    boxes = crop_boxes(sample.boxes[:1], sample.size)
    for box in boxes:
        for picture, words in (
            (rebuild(texture, allocation, box=box), f"delivered; read: {failure.read}"),
            (
                resized(texture, budget=allocation.budget, patch=patch, box=box),
                f"resize; read: {failure.baseline_read}",
            ),
            (texture.levels[0][..., box[1] : box[3], box[0] : box[2]], "the image"),
        ):
            y += 6
            draw.text((x, y), _cut(words, 100), fill=FAINT, font=ImageFont.load_default(15))
            crop = _fitted(to_pil(picture), (_CROP, (_PAGE - 72) // 3 - 30))
            band.paste(crop, (x, y + 20))
            y += 20 + crop.height
    return band


def _cut(text: str, length: int) -> str:
    """On one line, no longer than fits."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def _fitted(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    scale = min(size[0] / image.width, size[1] / image.height)
    shape = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(shape, Image.Resampling.BICUBIC)
