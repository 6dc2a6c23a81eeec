"""Tiny pages for the training tests: words drawn by PIL, packed in a folder as `texturevlm pack-pages` leaves it."""

import json

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONT = ImageFont.load_default(14)
LABELS = {"Total": "940.00", "Date": "3 May", "Phone": "5550199"}
SIZE = (96, 160)


def drawn(rows, size=SIZE):
    """A page with a label and a value on each line, and its words: (text, box)."""
    image = Image.new("L", size[::-1], 255)
    draw = ImageDraw.Draw(image)
    words = []
    for line, row in enumerate(rows):
        for column, text in enumerate(row):
            at = (8 + 72 * column, 8 + 28 * line)
            draw.text(at, text, 0, FONT)
            words.append((text, tuple(float(edge) for edge in draw.textbbox(at, text, FONT))))
    return np.asarray(image), words


def packed(folder, count=14, *, source="docvqa_half", unplaced=0):
    """`count` pages, each a document of its own, with a question for each line; the last `unplaced` have no places."""
    (folder / "pages").mkdir(parents=True)
    generator = np.random.default_rng(4)
    listed = []
    for number in range(count):
        labels = generator.permutation(list(LABELS))
        image, words = drawn([(label, LABELS[label]) for label in labels])
        size = SIZE if number % 3 else (SIZE[0] + 16, SIZE[1])  # pages of a batch differ
        page = np.full(size, 255, np.uint8)
        page[: SIZE[0]] = image
        Image.fromarray(page).save(folder / "pages" / f"{number}.webp", quality=80)
        boxes = dict(words)
        placed = number < count - unplaced
        questions = [[f"What is the {label.lower()}?", [boxes[LABELS[label]]] if placed else []] for label in LABELS]
        row = {"file": f"{number}.webp", "set": source, "document": f"{source}/{number}", "questions": questions}
        listed.append({**row, "words": [[text, box, 0, 0.99] for text, box in words]})
    (folder / "pages.json").write_text(json.dumps(listed))
    return folder
