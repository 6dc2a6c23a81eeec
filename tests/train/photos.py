"""A tiny set of photographs with captions and boxes, as shared/data has them, made on the spot."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (40, 40, 230)}


def write_data(folder: Path, captioned: int = 30, boxed: int = 12) -> Path:
    """Captioned ones are of one colour; boxed ones grey with a coloured box, each third of them not for training."""
    generator = np.random.default_rng(0)
    (folder / "flickr8k_small" / "images").mkdir(parents=True)
    (folder / "coco" / "images").mkdir(parents=True)
    rows = []
    for number in range(captioned):
        name, colour = list(COLOURS.items())[number % 3]
        pixels = generator.normal(colour, 10, (144, 144, 3)).clip(0, 255).astype(np.uint8)
        image = f"images/{number}.jpg"
        Image.fromarray(pixels).save(folder / "flickr8k_small" / image)
        captions = [f"A {name} wall .", f"Some {name} walls", f"The {name} paint", "A wall", "Nothing at all"]
        rows.append({"image": image, "captions": captions})
    (folder / "flickr8k_small" / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = []
    for number in range(boxed):
        name, colour = list(COLOURS.items())[number % 3]
        pixels = generator.normal(120, 10, (120, 200, 3)).clip(0, 255).astype(np.uint8)
        x, y = (int(place) for place in generator.integers((0, 0), (120, 60)))
        pixels[y : y + 60, x : x + 80] = colour
        image = f"images/{number}.png"
        Image.fromarray(pixels).save(folder / "coco" / image)
        row = {"id": f"{number}-1", "image": image, "size": [120, 200], "cls": 1, "name": name}
        rows.append({**row, "boxes": [[x, y, x + 80, y + 60]], "split": "eval" if number % 4 == 3 else "train"})
    (folder / "coco" / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
