"""texturevlm render-pages: render synthetic pages, with their words as JSON."""

import argparse
import json
from pathlib import Path

from texturevlm.commands.options import Commands, count, existing_file, existing_path


def add_render_pages(commands: Commands) -> None:
    parser = commands.add_parser("render-pages", help="render synthetic pages, with their words as JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for page_0000.png, page_0000.json …")
    parser.add_argument("--count", type=count, default=10, metavar="N", help="pages (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument(
        "--fonts", type=existing_path, metavar="DIR", help=".ttf and .otf files (default: the system's fonts)"
    )
    parser.add_argument("--words", type=existing_file, metavar="FILE", help="words to write (default: common English)")
    parser.add_argument("--size", type=count, nargs=2, default=(1100, 850), metavar=("HEIGHT", "WIDTH"))
    parser.set_defaults(run=_render_pages)


def _render_pages(options: argparse.Namespace) -> int:
    import numpy as np
    from PIL import Image

    from texturevlm.train.render import Vocabulary, find_fonts, render_page

    fonts = find_fonts(options.fonts)
    words = Vocabulary(options.words.read_text(encoding="utf-8").split() if options.words else ())
    options.out.mkdir(parents=True, exist_ok=True)
    for index in range(options.count):
        page = render_page(np.random.default_rng([options.seed, index]), fonts, words, tuple(options.size))
        Image.fromarray(page.image).save(options.out / f"page_{index:04d}.png")
        listed = [{"text": text, "box": box} for text, box in page.words]
        (options.out / f"page_{index:04d}.json").write_text(json.dumps(listed), encoding="utf-8")
    print(f"{options.out}: {options.count} pages, {len(fonts)} fonts")
    return 0
