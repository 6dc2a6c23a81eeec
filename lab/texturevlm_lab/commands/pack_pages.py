"""texturevlm pack-pages: pack the pages that the scout is trained on."""

import argparse

from texturevlm.commands import arguments


def add_pack_pages(commands: arguments.Commands) -> None:
    help = "pack the pages that the scout is trained on"
    parser = arguments.add_command(commands, "pack-pages", _pack_pages, help)
    parser.add_page_data()
    parser.add_out("FOLDER")
    parser.add_option("--sets", "NAME", "data sets to pack (default: all of them)", nargs="+")


def _pack_pages(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.pages import SETS, pack

    count = pack(options.data, options.words, options.out, options.limit, sets=options.sets or SETS)
    print(f"{options.out}: {count} pages")
    return 0
