"""texturevlm pack-pages, pack-reader and render-pages: the pages that the scout and the reader are trained on."""

import argparse
import json
from pathlib import Path

from texturevlm.commands import arguments

_WORDINGS = ("asked", "held_out")


def add_pages(commands: arguments.Commands) -> None:
    help = "pack the pages that the scout is trained on"
    parser = arguments.add_command(commands, "pack-pages", _pack_pages, help)
    add_page_data(parser)
    parser.add_out("FOLDER")
    parser.add_option("--sets", "NAME", "data sets to pack (default: all of them)", nargs="+")

    help = "pack the pages that the reader is trained on"
    parser = arguments.add_command(commands, "pack-reader", _pack_reader, help)
    add_page_data(parser)
    parser.add_out("FOLDER")

    help = "render synthetic pages, with their words as JSON, or with questions"
    parser = arguments.add_command(commands, "render-pages", _render_pages, help)
    parser.add_out("FOLDER", "for page_0000.png, page_0000.json …")
    parser.add_count("--count", "pages", 10)
    parser.add_option("--seed", "N", "", 0, type=int)
    fonts = ".ttf and .otf files (default: the system's fonts)"
    parser.add_option("--fonts", "DIR", fonts, type=arguments.existing_path)
    parser.add_option("--words", "FILE", "words to write (default: common English)", type=arguments.existing_file)
    parser.add_argument("--size", type=arguments.count, nargs=2, default=(1100, 850), metavar=("HEIGHT", "WIDTH"))
    questions = (
        "pages as the reader learns from, in the fonts of DIR that it did not learn from, and one question about each "
        "in wordings that training asked or held out: `texturevlm eval docvqa FOLDER` reads them (no --words, --size)"
    )
    parser.add_argument("--questions", choices=_WORDINGS, help=questions)


def add_page_data(parser: arguments.Parser) -> None:
    """DATA, --words and --limit of the commands that learn from pages."""
    parser.add_argument("data", type=arguments.existing_path, metavar="DATA", help="data sets with questions.jsonl")
    parser.add_option("--words", "CACHE", "folder of the words read by OCR", type=Path, required=True)
    parser.add_count("--limit", "at most N pages per data set (default: all)")


def _pack_pages(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.pages import SETS, pack

    count = pack(options.data, options.words, options.out, options.limit, sets=options.sets or SETS)
    print(f"{options.out}: {count} pages")
    return 0


def _pack_reader(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.reader.packing import pack_reader

    count = pack_reader(options.data, options.words, options.out, options.limit)
    print(f"{options.out}: {count} pages")
    return 0


def _render_pages(options: argparse.Namespace) -> int:
    import numpy as np
    from PIL import Image

    from texturevlm_lab.train.render import Vocabulary, find_fonts, render_page

    fonts = find_fonts(options.fonts)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.questions:
        from texturevlm_lab.train.reader.task import split_fonts

        _render_questions(options, fonts := split_fonts(fonts)[1])
    else:
        words = Vocabulary(options.words.read_text(encoding="utf-8").split() if options.words else ())
        for index in range(options.count):
            page = render_page(np.random.default_rng([options.seed, index]), fonts, words, tuple(options.size))
            Image.fromarray(page.image).save(options.out / f"page_{index:04d}.png")
            listed = [{"text": text, "box": box} for text, box in page.words]
            (options.out / f"page_{index:04d}.json").write_text(json.dumps(listed), encoding="utf-8")
    print(f"{options.out}: {options.count} pages, {len(fonts)} fonts")
    return 0


def _render_questions(options: argparse.Namespace, fonts: list[Path]) -> None:
    """Pages, and one question about each, in the layout of a data set."""
    import numpy as np
    from PIL import Image

    from texturevlm_lab.train.reader.pages import make_vocabulary, rendered

    vocabulary, rows = make_vocabulary([]), []
    for index in range(options.count):
        rng = np.random.default_rng([options.seed, index])
        page = rendered(rng, fonts, vocabulary, wording=options.questions)
        while not page.questions:
            page = rendered(rng, fonts, vocabulary, wording=options.questions)
        asked = page.questions[int(rng.integers(len(page.questions)))]
        file = f"page_{index:04d}.png"
        Image.fromarray(page.image).save(options.out / file)
        boxes = [[float(edge) for edge in box] for box in asked.boxes]
        rows.append(
            {"id": f"rendered-{index}", "image": file, "size": [*page.image.shape], "question": asked.text,
             "answers": [asked.answer], "boxes": boxes, "split": "eval"}
        )  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (options.out / "questions.jsonl").write_text(lines, encoding="utf-8")
