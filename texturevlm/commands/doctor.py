"""texturevlm doctor: say what runs on this machine, and why not something faster."""

import argparse

from texturevlm.commands.options import Commands


def add_doctor(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="versions, GPUs, and which backend runs each operation and why")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from texturevlm.doctor import report

    print(report())
    return 0
