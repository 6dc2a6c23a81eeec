"""What all studies share: the command line, one-line errors, and results written as JSON and as a report.

An error of the caller is one line on stderr and status 2. Each result says by which command, which code and with which
versions it was made.
"""

import json
import math
import platform
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from texturevlm.check import check_count
from texturevlm_lab.evaluate.provenance import origin

MISTAKES = (ValueError, TypeError, OSError, ImportError)  # the caller's: no traceback
RUN = "python -m "
Record = TypeVar("Record")
Item = TypeVar("Item")
Option = tuple[str, dict[str, Any]]


def option(name: str, **settings: Any) -> Option:
    """An option of a study, as `add_argument` takes it."""
    return name, settings


PAGES = option("--pages", type=Path, metavar="CACHE", help="cache of the pages' words")
READINGS = option("--readings", type=Path, metavar="DIR", help="cache of what OCR read, one file per engine")
MODEL = option("--model", default="reader", metavar="PATH_OR_ID", help="(default: reader)")
DEVICE = option("--device", default=None, metavar="D", help="(default: cuda if there is one)")
SPLIT = option("--split", default="train", choices=("train", "eval"), help="(default: train)")
SECONDS = option("--seconds", type=float, metavar="S", help="after which nothing new begins (default: no limit)")
OCR = option("--ocr", default="auto", metavar="E,E", help="tesseract, rapidocr (default: those installed)")
AT_ONCE = option("--at-once", type=int, default=1, metavar="N", help="processes (default: 1)")


def study_parser(name: str, docstring: str | None, *options: Option) -> ArgumentParser:
    """A parser for `python -m texturevlm_lab.studies.NAME DATA --out DIR [--limit N]`; the docstring's first line
    describes it."""
    parser = ArgumentParser(prog=f"{RUN}texturevlm_lab.studies.{name}", description=(docstring or "").split("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of a data set, or of several (see the module)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the report and its numbers")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N questions or pages (default: all)")
    for flag, settings in options:
        parser.add_argument(flag, **settings)
    return parser


def run_study(parser: ArgumentParser, arguments: Sequence[str] | None, work: Callable[[Namespace], object]) -> int:
    """Parse, check --limit, and do the work with the options, which get the command line; returns the status."""
    options = parser.parse_args(arguments)
    try:
        check_limit(options.limit)
        options.command = command_line(parser, options)
        work(options)
    except MISTAKES as error:
        print(f"{parser.prog.removeprefix(RUN)}: {error}", file=sys.stderr)
        return 2
    return 0


def study_main(
    module: str,
    docstring: str | None,
    measure: Callable[[Namespace], Any],
    report: Callable[[dict[str, Any]], str] | None,
    *options: Option,
) -> Callable[..., int]:
    """The `main` of a study that measures a record and reports it: writes NAME.json and NAME.md, prints the report.

    module: its `__name__`; a study that is run by `python -m` starts here
    report: None if `measure` writes its own files
    """
    spec = sys.modules[module].__spec__ if module == "__main__" else None
    name = (spec.name if spec else module).rpartition(".")[2]

    def work(options: Namespace) -> None:
        found = measure(options)
        if report is not None:
            record = {
                "command": options.command,
                **versions(),
                "code": str(origin(f"texturevlm_lab.studies.{name}")),
                **found,
            }
            print(write_study(options.out, name.replace("_", "-"), record, report))

    def main(arguments: Sequence[str] | None = None) -> int:
        return run_study(study_parser(name, docstring, *options), arguments, work)

    if module == "__main__":
        sys.exit(main())
    return main


def report_from_files(
    parser: ArgumentParser, arguments: Sequence[str] | None, made: Callable[[Namespace], str], file: str
) -> int:
    """The rest of a `main` that makes its report from files alone: prints it, and writes FILE where --out says."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"for {file}")
    options = parser.parse_args(arguments)
    try:
        text = made(options)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / file).write_text(text, encoding="utf-8")
    except MISTAKES as error:
        print(f"{parser.prog.removeprefix(RUN)}: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


def device_of(options: Namespace) -> str:
    """The device that --device names, or a GPU if there is one."""
    return options.device or ("cuda" if torch.cuda.is_available() else "cpu")


def deadline(options: Namespace) -> float:
    """When --seconds are over, by `time.monotonic`."""
    return time.monotonic() + (math.inf if options.seconds is None else options.seconds)


def check_limit(limit: int | None, least: int = 1) -> None:
    """--limit N, if given, must leave something to measure."""
    if limit is not None:
        check_count("--limit", "N", limit, least)


def command_line(parser: ArgumentParser, options: Namespace) -> str:
    """The command that makes the table again: positional arguments first, no defaults, paths as placeholders."""
    words = [parser.prog]
    for action in sorted(parser._actions, key=lambda action: bool(action.option_strings)):
        value = getattr(options, action.dest, None)
        if value is not None and value != action.default:
            words += [*action.option_strings[-1:], *([] if value is True else [_shown(value, str(action.metavar))])]
    return " ".join(words)


def _shown(value: Any, placeholder: str) -> str:
    """The value of an option: numbers as they are typed, paths by their placeholder."""
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return ",".join(map(str, value))
    return placeholder if isinstance(value, (Path, list)) else str(value)


def evenly(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` of them, evenly spread."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def boxes_by_image(listing: Path, split: str, limit: int | None) -> dict[str, list[list[float]]]:
    """image → all its boxes, for the first `limit` images of a split in a file of JSON lines."""
    if not listing.is_file():
        raise FileNotFoundError(f"DATA must hold {listing.parent.name}/{listing.name}, got {listing.parents[1]}")
    found: dict[str, list[list[float]]] = {}
    for line in listing.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["split"] == split:
            found.setdefault(row["image"], []).extend(row["boxes"])
    return dict(list(found.items())[:limit])


def versions() -> dict[str, str]:
    """The versions of the software, as a record keeps them."""
    return {"torch": torch.__version__, "python": platform.python_version()}


def provenance(record: dict[str, Any], *details: str) -> str:
    """The line of a report that says how to make it again, from a record with its command, code and `versions`."""
    made_with = f"torch {record['torch']}, Python {record['python']}"
    code = [record["code"]] if "code" in record else []
    return "; ".join([f"Command: `{record['command']}`", *code, *details, made_with]) + "."


def write_study(out: Path, name: str, record: Record, report: Callable[[Record], str]) -> str:
    """Write NAME.json and NAME.md into a folder; returns the report. JSON first: the numbers took the time."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(record, indent=1, ensure_ascii=False)
    (out / f"{name}.json").write_text(numbers + "\n", encoding="utf-8")
    text = report(record)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    return text
