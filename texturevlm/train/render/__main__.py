"""python -m texturevlm.train.render --out FOLDER: pages as PNG, each with a JSON of its words, for a person to see."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from PIL import Image

from texturevlm.train.render.fonts import find_fonts
from texturevlm.train.render.page import render_page
from texturevlm.train.render.vocabulary import Vocabulary


def main() -> None:
    """Write the pages and say how long one took."""
    parser = argparse.ArgumentParser(prog="python -m texturevlm.train.render", description="Render document pages.")
    parser.add_argument("--out", type=Path, required=True, help="folder for page_0000.png and page_0000.json, …")
    parser.add_argument("--count", type=int, default=10, help="how many pages")
    parser.add_argument("--seed", type=int, default=0, help="which endless book")
    parser.add_argument("--fonts", type=Path, help="folder of .ttf and .otf files (default: those of the system)")
    parser.add_argument("--words", type=Path, help="text file whose words to write (default: common English)")
    parser.add_argument("--size", type=int, nargs=2, default=(1100, 850), metavar=("HEIGHT", "WIDTH"))
    chosen = parser.parse_args()
    fonts = find_fonts(chosen.fonts)
    vocabulary = Vocabulary(chosen.words.read_text().splitlines() if chosen.words else ())
    chosen.out.mkdir(parents=True, exist_ok=True)
    spent, written = 0.0, 0
    for index in range(chosen.count):
        start = time.perf_counter()
        page = render_page(np.random.default_rng([chosen.seed, index]), fonts, vocabulary, tuple(chosen.size))
        spent += time.perf_counter() - start
        written += len(page.words)
        Image.fromarray(page.image).save(chosen.out / f"page_{index:04d}.png")
        words = [{"text": text, "box": box} for text, box in page.words]
        (chosen.out / f"page_{index:04d}.json").write_text(json.dumps(words))
    pages = max(chosen.count, 1)
    print(
        f"{chosen.count} pages, {len(fonts)} fonts, {written / pages:.0f} words and {spent / pages * 1e3:.0f} ms a page"
    )


if __name__ == "__main__":
    main()
