"""Small folders of questions, made on the spot: a page with rendered words, and photographs with objects."""

import json
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont


def write_page(path: Path, words: dict[str, tuple[int, int]], *, size: tuple[int, int] = (160, 240)) -> dict[str, list]:
    """A white page (height, width) with words at (x, y); returns the box of each."""
    page = Image.new("L", size[::-1], 255)
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(16)
    boxes = {}
    for word, place in words.items():
        draw.text(place, word, fill=0, font=font)
        boxes[word] = [round(edge) for edge in draw.textbbox(place, word, font=font)]
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path)
    return boxes


def write_folder(folder: Path, pages: int = 2, *, split: str = "eval") -> Path:
    """Pages with two questions each, in the project's own format."""
    rows = []
    for number in range(pages):
        words = {f"alpha{number}": (20, 30), f"beta{number}": (120, 110)}
        boxes = write_page(folder / "images" / f"{number}.png", words)
        for word, box in boxes.items():
            rows.append(
                {
                    "id": f"{number}-{word}",
                    "image": f"images/{number}.png",
                    "size": [160, 240],
                    "question": f"Where is {word}?",
                    "answers": [word, word.upper()],
                    "boxes": [box],
                    "split": split,
                }
            )
    write_rows(folder, rows)
    return folder


def write_rows(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_image(path: Path, size: tuple[int, int] = (24, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size[::-1], (90, 120, 60)).save(path)
