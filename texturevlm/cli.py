"""The command line: one subcommand per task. A mistake gets one line that says what was wrong, and exit status 2."""

import sys
from collections.abc import Sequence
from importlib import import_module

from texturevlm import __version__
from texturevlm.commands.arguments import Parser

# texturevlm/commands/NAME.py has add_NAME.
COMMANDS = (
    *("doctor", "look", "allocate", "ask", "pyramid", "channels", "fit_pca", "fit_codebook", "eval", "train"),
    *("pack_pages", "pack_reader", "render_pages", "fit_words"),
    *("ship_scout", "ship_relevance", "ship_reader"),
    *("video", "corpus", "serve", "bench"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="texturevlm", description="Level of detail for vision-language models.")
    parser.add_argument("--version", action="version", version=f"texturevlm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        getattr(import_module(f"texturevlm.commands.{name}"), f"add_{name}")(commands)
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
