"""A page about a corpus: how it was made, what went wrong, how fast, and a contact sheet of what was seen."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from itertools import islice
from pathlib import Path

from PIL import Image, ImageDraw

from texturevlm.corpus.build import Summary
from texturevlm.corpus.dataset import Corpus, Sample
from texturevlm.corpus.watch import shown
from texturevlm.types import Allocation

PAGE, SHEET = "report.html", "contact.png"
SHOWN, COLUMNS, SIDE = 24, 6, 192  # images on the sheet, per row of it, pixels of each
MOST_ERRORS = 20  # named on the page
STYLE = """<style>
body { font: 15px/1.5 sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid #ddd; }
td { overflow-wrap: anywhere; }
img { max-width: 100%; border: 1px solid #ddd; }
</style>"""


def write_report(corpus: Corpus, summary: Summary) -> None:
    """Write report.html and contact.png, which it shows, into the folder of the corpus."""
    store = corpus.ledger.store
    title = escape(f"Corpus {Path(store.url).name}")
    counts = f"{summary.rows:,} rows in {summary.units:,} units, {summary.errors:,} errors."
    parts = [f"<h1>{title}</h1>", f"<p>{counts}</p>", *_speed(summary)]
    if len(corpus):
        store.write(SHEET, contact_sheet(corpus))
        what = f"What was seen of {min(SHOWN, len(corpus))} images, evenly spread"
        parts += [f"<h2>{what}</h2>", f'<img src="{SHEET}" alt="{what}">']
    if summary.failed:
        why = ((f"unit {number}", error) for number, error in islice(summary.failed.items(), MOST_ERRORS))
        parts += [f"<h2>{len(summary.failed)} units are not done</h2>", _table(why)]
    if faults := list(islice(corpus.faults(), MOST_ERRORS)) if summary.errors else []:
        kinds = Counter(fault.error.split(":")[0] for fault in faults)
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        parts += [f"<h2>Errors: the first {len(faults)}</h2>", f"<p>{escape(said)}</p>"]
        parts += [_table(((fault.key, fault.error) for fault in faults), ("key", "error"))]
    recipe = ((name, str(value)) for name, value in asdict(corpus.recipe).items() if value != "")
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n{STYLE}'
    store.write(PAGE, "\n".join([head, *parts, "<h2>Recipe</h2>", _table(recipe), "</html>\n"]).encode())


def _speed(summary: Summary) -> list[str]:
    if not summary.made:
        return ["<p>The last run found everything done.</p>"]
    marks = {summary.bottleneck: " (bottleneck)"}
    rows = ((f"{stage}{marks.get(stage, '')}", shown(rate)) for stage, rate in summary.rates.items())
    return [
        "<h2>Speed</h2>",
        f"<p>The last run made {summary.made:,} rows in {summary.seconds:.1f} s, "
        f"{shown(summary.made / summary.seconds)} per second. The bottleneck was {escape(summary.bottleneck)}.</p>",
        _table(rows, ("stage", "images/s, if it never waited")),
    ]


def _table(rows: Iterable[tuple[str, str]], heads: tuple[str, ...] = ()) -> str:
    """Two columns of text; keys and errors come from anywhere, so that all of it is escaped."""
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"] if heads else []
    lines += [f"<tr><td>{escape(left)}</td><td>{escape(right)}</td></tr>" for left, right in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


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
