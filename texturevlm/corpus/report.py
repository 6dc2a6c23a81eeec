"""A page about a corpus: how it was made, what went wrong, how fast, and a contact sheet of what was seen."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import asdict
from itertools import islice

from PIL import Image, ImageDraw

from texturevlm.corpus.build import Summary
from texturevlm.corpus.dataset import Corpus, Sample
from texturevlm.corpus.watch import shown
from texturevlm.types import Allocation

PAGE, SHEET = "report.md", "contact.png"
SHOWN, COLUMNS, SIDE = 24, 6, 192  # images on the sheet, per row of it, pixels of each
MOST_ERRORS = 20  # named on the page


def write_report(corpus: Corpus, summary: Summary) -> None:
    """Write report.md and contact.png into the folder of the corpus."""
    store = corpus.ledger.store
    lines = [
        f"# Corpus of {summary.rows} rows",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in asdict(corpus.recipe).items() if value != ""),
        f"| units | {summary.units} |",
        f"| errors | {summary.errors} |",
    ]
    if summary.made:
        lines += [
            "",
            f"The last run: {summary.made} rows in {summary.seconds:.1f} s, "
            f"{shown(summary.made / summary.seconds)} per second. The bottleneck was {summary.bottleneck}.",
            "",
            "| stage | images/s, if it never waited |",
            "|---|---|",
            *(f"| {stage} | {shown(rate)} |" for stage, rate in summary.rates.items()),
        ]
    if summary.failed:
        lines += ["", "Not done:", "", *(f"- unit {number}: {why}" for number, why in summary.failed.items())]
    if summary.errors:
        faults = list(islice(corpus.faults(), MOST_ERRORS))
        kinds = Counter(fault.error.split(":")[0] for fault in faults)
        lines += ["", f"The first {len(faults)} errors ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}):", ""]
        lines += [f"- `{fault.key}`: {fault.error}" for fault in faults]
    if len(corpus):
        store.write(SHEET, contact_sheet(corpus))
        lines += ["", f"What was seen of {min(SHOWN, len(corpus))} images, evenly spread:", "", f"![contact]({SHEET})"]
    store.write(PAGE, ("\n".join(lines) + "\n").encode())


def contact_sheet(corpus: Corpus) -> bytes:
    """A PNG of images evenly spread over the corpus."""
    count = min(SHOWN, len(corpus))
    sheet = Image.new("RGB", (COLUMNS * SIDE, -(-count // COLUMNS) * SIDE), "white")
    for place in range(count):
        picture = _picture(corpus[place * len(corpus) // count])
        picture.thumbnail((SIDE - 8, SIDE - 8))
        sheet.paste(picture, (place % COLUMNS * SIDE + 4, place // COLUMNS * SIDE + 4))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _picture(sample: Sample) -> Image.Image:
    """What the tokens show; without pixels, where they lie."""
    if "thumbnails" in sample:
        return Image.open(io.BytesIO(sample["thumbnails"].numpy().tobytes()))
    allocation: Allocation = sample["allocation"]
    scale = SIDE / max(allocation.size)
    height, width = (max(1, round(side * scale)) for side in allocation.size)
    picture = Image.new("RGB", (width, height), (235, 235, 235))
    draw = ImageDraw.Draw(picture)
    boxes, level = (allocation.boxes[0] * scale).round().int().tolist(), allocation.level[0]
    for slot in level.argsort(descending=True).tolist():  # fine ones over coarse ones
        left, top, right, bottom = boxes[slot]
        if "patches" not in sample:
            draw.rectangle((left, top, right, bottom), outline=(40, 90, 160))
            continue
        pixels = sample["patches"].pixels[0, slot].mul(255).round().byte().permute(1, 2, 0).numpy()
        picture.paste(Image.fromarray(pixels).resize((max(1, right - left), max(1, bottom - top))), (left, top))
    return picture
