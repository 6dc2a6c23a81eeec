"""texturevlm pack-pages: pack the pages that the scout is trained on."""

import argparse
from pathlib import Path

from texturevlm.commands.options import Commands, add_page_data


def add_pack_pages(commands: Commands) -> None:
    parser = commands.add_parser("pack-pages", help="pack the pages that the scout is trained on")
    add_page_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="data sets to pack (default: all of them)")
    parser.set_defaults(run=_pack_pages)


def _pack_pages(options: argparse.Namespace) -> int:
    from texturevlm.train.pages import SETS, pack

    count = pack(options.data, options.words, options.out, options.limit, sets=options.sets or SETS)
    print(f"{options.out}: {count} pages")
    return 0
