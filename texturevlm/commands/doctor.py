"""texturevlm doctor: say what runs on this machine, and why not something faster."""

import argparse

from texturevlm.commands import arguments


def add_doctor(commands: arguments.Commands) -> None:
    help = "versions, GPUs, and which backend runs each operation and why"
    arguments.add_command(commands, "doctor", _doctor, help)


def _doctor(options: argparse.Namespace) -> int:
    from texturevlm.doctor import report

    print(report())
    return 0
