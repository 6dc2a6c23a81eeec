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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.legibility import legibility_score
from texturevlm_lab.evaluate.markdown import format_interval
from texturevlm_lab.evaluate.ocr import LineCrop, OcrEngine, cached_engines, open_engines
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.evaluate.statistics import paired_difference

MISTAKES = (ValueError, TypeError, OSError, ImportError)  # the caller's: no traceback
Record = TypeVar("Record")
Item = TypeVar("Item")
Key = TypeVar("Key")
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
DATA = option("data", type=Path, metavar="DATA", help="folder of a data set, or of several (see the module)")
OUT = option("--out", type=Path, required=True, metavar="DIR", help="for the report and its numbers")
LIMIT = option("--limit", type=int, metavar="N", help="at most N questions or pages (default: all)")
ROW_FILE, ROW_FILES = (option("rows", type=Path, nargs=count, metavar="ROWS", help="of results/") for count in (1, "+"))


def command(
    module: str, docstring: str | None, work: Callable[[str, Namespace], object], *options: Option
) -> Callable[..., int]:
    """The `main` of a module that is run by `python -m`, and starts here then; the docstring's first line describes it.

    module: its `__name__`
    work:   gets the last part of that name and the options, among them `command`, which makes the result again
    """
    spec = sys.modules[module].__spec__ if module == "__main__" else None
    name = (spec.name if spec else module).rpartition(".")[2]

    def main(arguments: Sequence[str] | None = None) -> int:
        run = f"{__package__}.{name}"
        parser = ArgumentParser(prog=f"python -m {run}", description=(docstring or "").split("\n")[0])
        for flag, settings in options:
            parser.add_argument(flag, **settings)
        given = parser.parse_args(arguments)
        try:
            check_limit(getattr(given, "limit", None))
            given.command = command_line(parser, given)
            work(name, given)
        except MISTAKES as error:
            print(f"{run}: {error}", file=sys.stderr)
            return 2
        return 0

    if module == "__main__":
        sys.exit(main())
    return main


def study_main(
    module: str,
    docstring: str | None,
    measure: Callable[[Namespace], Any],
    report: Callable[[dict[str, Any]], str] | None,
    *options: Option,
    given: Sequence[Option] = (DATA, OUT, LIMIT),
) -> Callable[..., int]:
    """The `main` of a study that measures a record and reports it: writes NAME.json and NAME.md, prints the report.

    report: None if `measure` writes its own files
    """

    def work(name: str, options: Namespace) -> None:
        found = measure(options)
        if report is not None:
            record = {"command": options.command, **versions(), "code": code_of(name), **found}
            print(write_study(options.out, name.replace("_", "-"), record, report))

    return command(module, docstring, work, *given, *options)


def table_main(
    module: str, docstring: str | None, made: Callable[[Namespace], str], file: str, *options: Option
) -> Callable[..., int]:
    """The `main` of a study that makes its table from files alone: prints it, and writes FILE where --out says.

    made: gets `made_by` among the options, the paragraph that says how the table is made again
    """

    def work(name: str, options: Namespace) -> None:
        options.made_by = f"Command: `{options.command}`; {code_of(name)}."
        text = made(options)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / file).write_text(text, encoding="utf-8")
        print(text)

    return command(module, docstring, work, *options, option("--out", type=Path, metavar="DIR", help=f"for {file}"))


def code_of(name: str) -> str:
    """The code that a study depends on, as its table says it."""
    return str(origin(f"{__package__}.{name}"))


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
    """The value of an option: numbers as they are typed, paths by their placeholder, rows where results/ has them."""
    if placeholder == "ROWS":
        below = (path.as_posix().partition("results/")[2] or path.name for path in value)
        return " ".join(f"results/{name}" for name in below)
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
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


def by_page(samples: Iterable[Sample]) -> dict[Path, list[Sample]]:
    """The questions about each image."""
    found: dict[Path, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.image, []).append(sample)
    return found


def each(items: Collection[Item], unit: str) -> Iterator[Item]:
    """The items, with a progress bar that moves when the next one is wanted."""
    progress = Progress(len(items), unit)
    for item in items:
        yield item
        progress.step()


def ocr_engines(options: Namespace) -> dict[str, OcrEngine]:
    """The engines of --ocr, which keep what they read in --readings; none for `none` or nothing."""
    names = [name for name in options.ocr.split(",") if name not in ("", "none")]
    return cached_engines(open_engines(names), options.readings) if names else {}


def read_scores(engine: OcrEngine, crops: Mapping[Key, Sequence[LineCrop]], answers: Sequence[str]) -> dict[Key, float]:
    """The legibility of an answer in each of several pictures of its lines."""
    texts = iter(engine.read([crop for some in crops.values() for crop in some]))
    return {key: legibility_score([next(texts) for _ in some], answers) for key, some in crops.items()}


def lead(ours: Sequence[float], theirs: Sequence[float] | None, pages: Sequence[Any] | None = None) -> str:
    """The paired difference as a cell; a dash where something would be compared with itself, or with nothing."""
    if theirs is None or ours is theirs:
        return "–"
    return format_interval(paired_difference(ours, theirs, groups=pages))


def mean_by_page(scores: Sequence[float], pages: Sequence[str]) -> str:
    """The mean with its interval from resampling pages, and how many scores there are; a dash if there are none."""
    if not scores:
        return "–"
    found = paired_difference(scores, [0.0] * len(scores), groups=pages)
    return f"{format_interval(found, '.3f')}, n = {len(scores)}"


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
