"""The command line: one subcommand per task. A mistake gets one line that says what was wrong, and exit status 2.

Only the command that was named is imported. Other packages, such as the lab, add commands by entry points of the group
`texturevlm.commands`: the name is the command's, the value a function that adds its parser.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

from texturevlm import __version__
from texturevlm.commands.arguments import Commands, Parser
from texturevlm.registry import near_miss

# texturevlm/commands/NAME.py has add_NAME.
COMMANDS = ("ask", "look", "allocate", "channels", "video", "pyramid", "corpus", "fit-codebook", "serve", "doctor")
GROUP = "texturevlm.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    traced = "--traceback" in given
    given = [word for word in given if word != "--traceback"]
    parser, commands = _parser(next((word for word in given if not word.startswith("-")), None))
    options, more = parser.parse_known_args(given)
    if more and options.command == "ask" and not any(word.startswith("-") for word in more):
        options.inputs += more  # images or the question behind an option
    elif more:
        parser = commands.choices[options.command]
        meant = near_miss(more[0].split("=")[0], parser._option_string_actions)
        parser.error(f"unrecognized arguments: {' '.join(more)}{meant}")
    try:
        return int(options.run(options))
    except BrokenPipeError:  # who reads the output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 141  # as a shell says of a program that ends by it
    except (ValueError, OSError, ImportError) as error:  # a TypeError would be a fault of ours
        if traced:
            raise
        message = " ".join(str(error).split()).removeprefix(f"{options.command}: ")
        print(f"texturevlm {options.command}: {message or type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser(named: str | None) -> tuple[Parser, Commands]:
    """The parser of the named command; of all commands if none is named, or one that does not exist."""
    others = entry_points(group=GROUP)
    lab = Parser(usage=argparse.SUPPRESS, add_help=False)
    added = lab.add_subparsers(title="commands of other installed packages", metavar="COMMAND")
    if named is None:  # only the help is wanted
        for add in {entry.value: entry.load() for entry in others}.values():
            add(added)
    parser = Parser(
        prog="texturevlm",
        description="Level of detail for vision-language models.",
        epilog=lab.format_help()
        if others and named is None
        else "Training, evaluation, benchmarks and published rivals are commands of the lab: pip install ./lab",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"texturevlm {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    commands: Commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name in (named,) if named in COMMANDS else () if named in others.names else COMMANDS:
        module = name.replace("-", "_")
        getattr(import_module(f"texturevlm.commands.{module}"), f"add_{module}")(commands)
    if named is not None and named not in COMMANDS:  # all of them if nobody has the named one, for the message
        named_ones = others.select(name=named) or others
        for add in {entry.value: entry.load() for entry in named_ones}.values():
            add(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
