"""Options that several commands share, and their checks, which run before slow work begins."""

import argparse
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE
from texturevlm.paths import is_url

if TYPE_CHECKING:
    import torch

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def existing_file(text: str) -> Path:
    """The type of an argument that names a file to read."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"must be a file on this machine, got the URL {text}; download it first")
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, got the folder {text}")
    if not path.exists():
        raise argparse.ArgumentTypeError(f"no such file: {text}")
    return path


def existing_path(text: str) -> Path:
    """The type of an argument that names a file or a folder to read."""
    if not is_url(text) and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"no such file or folder: {text}")
    return Path(text) if Path(text).is_dir() else existing_file(text)


def count(text: str) -> int:
    """The type of an option that takes a whole number from 1."""
    try:
        if (number := int(text)) >= 1:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")


def point(text: str) -> tuple[float, float]:
    """The type of an option that takes X,Y."""
    try:
        x, y = (float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be two numbers X,Y, got {text!r}") from None
    return x, y


def add_tokens(parser: argparse.ArgumentParser, *, budget: str = "tokens", patch: bool = True) -> None:
    """--budget, --patch, --allocator and --relevance."""
    parser.add_argument("--budget", type=count, default=BUDGET, metavar="N", help=f"{budget} (default: {BUDGET})")
    if patch:
        parser.add_argument(
            "--patch", type=count, default=PATCH, metavar="P", help=f"side of a token in pixels (default: {PATCH})"
        )
    parser.add_argument("--allocator", metavar="NAME", help=f"how tokens are placed (default: {ALLOCATOR})")
    parser.add_argument(
        "--relevance",
        metavar="NAME",
        help=f"what finds the answer's place: auto, words, scout or none (default: {RELEVANCE})",
    )


def add_page_data(parser: argparse.ArgumentParser) -> None:
    """DATA, --words and --limit of the commands that learn from pages."""
    parser.add_argument("data", type=existing_path, metavar="DATA", help="folder of data sets with questions.jsonl")
    parser.add_argument("--words", type=Path, required=True, metavar="CACHE", help="folder of the words read by OCR")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N pages per data set (default: all)")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1 … (default: cuda if there is one)")


def add_png(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--out", type=Path, default=Path(default), metavar="PNG", help=f"(default: {default})")


def check_out(out: Path, suffix: str, *, folder: bool = True) -> None:
    """A file to write: its name, and its folder, which must exist if `folder`."""
    if out.suffix.lower() != suffix:
        raise ValueError(f"--out must end in {suffix}, got {out}")
    if folder and not out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that exists, got {out}")
    if out.is_dir():
        raise ValueError(f"--out must be a file, got the folder {out}")


def device_of(options: argparse.Namespace) -> "torch.device":
    """The device that --device names, if it works on this machine."""
    import torch

    from texturevlm.channels.pretrained import torch_device

    return torch_device(options.command, options.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def names_of(options: argparse.Namespace, *, unusable: Container[str] = ("embedding", "attention")) -> tuple[str, str]:
    """The allocator and the relevance, both known names.

    unusable: scorers that the command cannot make, since they need a model or a map
    """
    from texturevlm.allocate import ALLOCATORS
    from texturevlm.check import check_choice
    from texturevlm.relevance import SCORERS

    allocator, relevance = options.allocator or ALLOCATOR, options.relevance or RELEVANCE
    check_choice(options.command, "--allocator", allocator, ALLOCATORS)
    check_choice(
        options.command, "--relevance", relevance, ("auto", *(name for name in SCORERS if name not in unusable))
    )
    return allocator, relevance


@contextmanager
def announced(what: str, *, only: bool = True) -> Iterator[None]:
    """Say on stderr what goes on and how long it took, if `only`."""
    start = time.perf_counter()
    if only:
        print(f"{what} …", file=sys.stderr, flush=True)
    yield
    if only:
        print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def reads_pages(relevance: str, question: str) -> bool:
    """Whether tokens are chosen by OCR, which takes seconds."""
    from texturevlm.relevance import find_scorer

    return find_scorer("choose_tokens", relevance, question).name == "words"
