"""texturevlm fit-words: train the word ranker of `--relevance words`."""

import argparse
import json

from texturevlm.commands import arguments


def add_fit_words(commands: arguments.Commands) -> None:
    help = "train the word ranker of `--relevance words`"
    parser = arguments.add_command(commands, "fit-words", _fit_words, help)
    parser.add_page_data()
    parser.add_out("FILE.json", "for the weights")


def _fit_words(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.word_ranking import fit_words

    arguments.check_out(options.out, ".json")
    record = fit_words(options.data, options.words, options.limit)
    common = options.out.with_name("commonness.json")  # belongs in texturevlm/text, the weights in texturevlm/relevance
    for path, content in ((common, record.pop("commonness")), (options.out, record)):
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
