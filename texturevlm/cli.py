"""The command line: one subcommand per task. A mistake gets one line that says what was wrong, and exit status 2."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from texturevlm import __version__
from texturevlm.commands.allocate import add_allocate
from texturevlm.commands.ask import add_ask
from texturevlm.commands.bench import add_bench
from texturevlm.commands.channels import add_channels
from texturevlm.commands.doctor import add_doctor
from texturevlm.commands.eval import add_eval
from texturevlm.commands.fit_pca import add_fit_pca
from texturevlm.commands.fit_words import add_fit_words
from texturevlm.commands.look import add_look
from texturevlm.commands.pack_pages import add_pack_pages
from texturevlm.commands.render_pages import add_render_pages
from texturevlm.commands.ship_scout import add_ship_scout
from texturevlm.commands.train import add_train
from texturevlm.commands.video import add_video

COMMANDS = (
    add_doctor,
    add_look,
    add_allocate,
    add_ask,
    add_channels,
    add_fit_pca,
    add_eval,
    add_train,
    add_pack_pages,
    add_render_pages,
    add_fit_words,
    add_ship_scout,
    add_video,
    add_bench,
)


class _Parser(argparse.ArgumentParser):
    """Says what was wrong in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="texturevlm", description="Level of detail for vision-language models.")
    parser.add_argument("--version", action="version", version=f"texturevlm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    options, more = parser.parse_known_args(arguments)
    if more and options.command == "ask" and not any(one.startswith("-") for one in more):
        options.inputs += more  # images or the question behind an option
    elif more:
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(more)}")
    try:
        return int(options.run(options))
    except (ValueError, TypeError, OSError, ImportError) as error:
        message = " ".join(str(error).split()).removeprefix(f"{options.command}: ")
        print(f"texturevlm {options.command}: {message or type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
