"""The command line: one subcommand per task. A mistake gets one line that says what was wrong, and exit status 2.

Only the command that was named is imported. Other packages, such as the lab, add commands by entry points of the group
`texturevlm.commands`: the name is the command's, the value a function that adds its parser.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from texturevlm import __version__
from texturevlm.commands.arguments import AddCommand, Commands, Parser
from texturevlm.registry import Registry, near_miss

# texturevlm/commands/NAME.py has add_NAME.
COMMANDS = ("ask", "look", "allocate", "channels", "video", "pyramid", "corpus", "fit-codebook", "serve", "doctor")
REGISTRY: Registry[AddCommand] = Registry(
    "command",
    "texturevlm.commands",
    {name: "texturevlm.commands.{0}:add_{0}".format(name.replace("-", "_")) for name in COMMANDS},
    lab=("eval", "train", "bench", "pack-pages", "pack-reader", "render-pages", "ship-scout", "ship-reader"),
)


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
    """The parser of the named command; of all commands if none is named, because only the help is wanted."""
    epilog = "Training, evaluation, benchmarks and published rivals are commands of the lab: pip install ./lab"
    if named is None and (others := _others()):
        lab = Parser(usage=argparse.SUPPRESS, add_help=False)
        added = lab.add_subparsers(title="commands of other installed packages", metavar="COMMAND")
        for add in others:
            add(added)
        epilog = lab.format_help()
    described, form = "Level of detail for vision-language models.", argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="texturevlm", description=described, epilog=epilog, formatter_class=form)
    parser.add_argument("--version", action="version", version=f"texturevlm {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    commands: Commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    try:
        for name in COMMANDS if named is None else (named,):
            REGISTRY.find("texturevlm", name)(commands)
    except (ValueError, ImportError) as error:
        parser.error(str(error).removeprefix("texturevlm: "))
    return parser, commands


def _others() -> list[AddCommand]:
    """What adds the commands of other packages; one that fails to load is named and left out."""
    found: dict[AddCommand, None] = {}
    for name in REGISTRY:
        try:
            found |= {} if name in COMMANDS else {REGISTRY[name]: None}
        except ImportError as error:
            print(f"note: {error}", file=sys.stderr)
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
