"""Options that several subcommands share, and how they are checked before any work is done for them."""

import argparse
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def check_png(out: Path) -> None:
    """What a picture is written to."""
    if out.suffix.lower() != ".png":
        raise ValueError(f"--out must end in .png, got {out}")
    if not out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that exists, got {out}")


def point(text: str) -> tuple[float, float]:
    """X,Y."""
    try:
        x, y = (float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be two numbers X,Y, got {text!r}") from None
    return x, y


def add_choice_of_tokens(parser: argparse.ArgumentParser, *, default: str | None = "auto") -> None:
    """--allocator and --relevance, names that the function they go to checks, since its complaint lists the others."""
    parser.add_argument("--allocator", default=default, metavar="NAME", help="how tokens are given out (default: auto)")
    parser.add_argument(
        "--relevance", default=default, metavar="NAME", help="auto, words, scout, none: what they go by (default: auto)"
    )
