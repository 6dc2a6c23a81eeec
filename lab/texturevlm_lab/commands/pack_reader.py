"""texturevlm pack-reader: pack the real pages that the reader is trained on."""

import argparse

from texturevlm.commands import arguments


def add_pack_reader(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "pack-reader", _pack_reader, "pack the pages that the reader is trained on"
    )
    parser.add_page_data()
    parser.add_out("FOLDER")


def _pack_reader(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.reader.packing import pack_reader

    count = pack_reader(options.data, options.words, options.out, options.limit)
    print(f"{options.out}: {count} pages")
    return 0
