"""texturevlm render-pages: render synthetic pages, with their words as JSON."""

import argparse
import json

from texturevlm.commands import arguments


def add_render_pages(commands: arguments.Commands) -> None:
    help = "render synthetic pages, with their words as JSON"
    parser = arguments.add_command(commands, "render-pages", _render_pages, help)
    parser.add_out("FOLDER", "for page_0000.png, page_0000.json …")
    parser.add_count("--count", "pages", 10)
    parser.add_option("--seed", "N", "", 0, type=int)
    fonts = ".ttf and .otf files (default: the system's fonts)"
    parser.add_option("--fonts", "DIR", fonts, type=arguments.existing_path)
    parser.add_option("--words", "FILE", "words to write (default: common English)", type=arguments.existing_file)
    size = ("HEIGHT", "WIDTH")
    parser.add_argument("--size", type=arguments.count, nargs=2, default=(1100, 850), metavar=size)


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
