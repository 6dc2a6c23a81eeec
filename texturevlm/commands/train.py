"""texturevlm train, pack-pages, render-pages, fit-words and ship-scout: from data to the weights in the package."""

import argparse
import json
import sys
from pathlib import Path

from texturevlm.commands.options import Commands


def add_train(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train what a config describes")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file (examples/train)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="for checkpoints and logs (default: runs/CONFIG's name)"
    )
    parser.add_argument("--resume", action="store_true", help="continue exactly from the last checkpoint in DIR")
    parser.set_defaults(run=_train)


def add_pack_pages(commands: Commands) -> None:
    parser = commands.add_parser("pack-pages", help="pack the pages that the scout is trained on")
    _add_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="data sets to pack (default: all of them)")
    parser.set_defaults(run=_pack_pages)


def add_render_pages(commands: Commands) -> None:
    parser = commands.add_parser("render-pages", help="render synthetic pages, with their words as JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for page_0000.png, page_0000.json …")
    parser.add_argument("--count", type=int, default=10, metavar="N", help="pages (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument("--fonts", type=Path, metavar="DIR", help=".ttf and .otf files (default: the system's fonts)")
    parser.add_argument("--words", type=Path, metavar="FILE", help="words to write (default: common English)")
    parser.add_argument("--size", type=int, nargs=2, default=(1100, 850), metavar=("HEIGHT", "WIDTH"))
    parser.set_defaults(run=_render_pages)


def add_fit_words(commands: Commands) -> None:
    parser = commands.add_parser("fit-words", help="train the word ranker of `--relevance words`")
    _add_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="for the weights")
    parser.set_defaults(run=_fit_words)


def add_ship_scout(commands: Commands) -> None:
    parser = commands.add_parser("ship-scout", help="put the trained spotter and ranker into one file of weights")
    parser.add_argument("--spotter", type=Path, required=True, metavar="WEIGHTS", help="weights.safetensors of a run")
    parser.add_argument("--ranker", type=Path, required=True, metavar="WEIGHTS", help="weights.safetensors of a run")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    parser.set_defaults(run=_ship_scout)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of data sets, each with questions.jsonl")
    parser.add_argument("--words", type=Path, required=True, metavar="CACHE", help="folder of the words read by OCR")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N pages per data set (default: all)")


def _train(options: argparse.Namespace) -> int:
    from texturevlm.train.config import read_config, to_json
    from texturevlm.train.fit import fit
    from texturevlm.train.tasks import task_of

    config = read_config(options.config)
    out = options.out or Path("runs") / options.config.stem
    task, settings = task_of(config)
    found = fit(task, config.fit, out, resume=options.resume, settings=to_json(settings))
    for name, value in found.items():
        print(f"{name}: {value:.4f}")
    print(f"{out}: {config.fit.steps} steps of {config.task}")
    return 0


def _pack_pages(options: argparse.Namespace) -> int:
    from texturevlm.train.pages import SETS, pack

    _check_limit(options)
    count = pack(options.data, options.words, options.out, options.limit, sets=options.sets or SETS)
    print(f"{options.out}: {count} pages")
    return 0


def _render_pages(options: argparse.Namespace) -> int:
    import numpy as np
    from PIL import Image

    from texturevlm.check import check_count
    from texturevlm.train.render import Vocabulary, find_fonts, render_page

    check_count("render-pages", "--count", options.count, 1)
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


def _fit_words(options: argparse.Namespace) -> int:
    from texturevlm.train.word_ranking import fit_words

    _check_limit(options)
    record = fit_words(options.data, options.words, options.limit)
    options.out.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")
    return 0


def _ship_scout(options: argparse.Namespace) -> int:
    from texturevlm.scout.spotter import Spotter
    from texturevlm.scout.weights import load_module, load_ranker, save_modules

    if options.out.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {options.out}")
    spotter = load_module(Spotter(), options.spotter)
    save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    return 0


def _check_limit(options: argparse.Namespace) -> None:
    from texturevlm.check import check_count

    if options.limit is not None:
        check_count(options.command, "--limit", options.limit, 1)
