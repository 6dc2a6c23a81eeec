"""texturevlm fit-words: train the word ranker of `--relevance words`."""

import argparse
import json
from pathlib import Path

from texturevlm.commands.options import Commands, add_page_data, check_out


def add_fit_words(commands: Commands) -> None:
    parser = commands.add_parser("fit-words", help="train the word ranker of `--relevance words`")
    add_page_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="for the weights")
    parser.set_defaults(run=_fit_words)


def _fit_words(options: argparse.Namespace) -> int:
    from texturevlm.train.word_ranking import fit_words

    check_out(options.out, ".json")
    record = fit_words(options.data, options.words, options.limit)
    common = options.out.with_name("commonness.json")  # belongs in texturevlm/text, the weights in texturevlm/relevance
    for path, content in ((common, record.pop("commonness")), (options.out, record)):
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
