"""What the commands of the form `python -m texturevlm.…` share, so that each of them holds only what is its own.

A mistake of the caller's gets one line on stderr and status 2. What was measured is kept twice, as numbers for programs
and as a report for people, and both say by which command and with which versions it was made.
"""

import json
import platform
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from texturevlm.check import check_count

MISTAKES = (ValueError, TypeError, OSError, ImportError)  # the caller's: no traceback
RUN = "python -m "
Record = TypeVar("Record")


def command_parser(module: str, docstring: str | None) -> ArgumentParser:
    """The options of a module that is run by its name; the first line of its docstring says what it is for."""
    return ArgumentParser(prog=RUN + module, description=(docstring or "").split("\n")[0])


def complain(parser: ArgumentParser, error: Exception) -> int:
    """Say on stderr what was wrong; returns the status to end with."""
    print(f"{parser.prog.removeprefix(RUN)}: {error}", file=sys.stderr)
    return 2


def check_limit(limit: int | None, least: int = 1) -> None:
    """--limit N, where it was given, must leave something to measure."""
    if limit is not None:
        check_count("--limit", "N", limit, least)


def versions() -> dict[str, str]:
    """What a record says of the software that it was made with."""
    return {"torch": torch.__version__, "python": platform.python_version()}


def provenance(record: dict[str, Any], *details: str) -> str:
    """The line of a report that says how to make it again, from a record with its command and `versions`."""
    made_with = f"torch {record['torch']}, Python {record['python']}"
    return "; ".join([f"Command: `{record['command']}`", *details, made_with]) + "."


def write_study(out: Path, name: str, record: Record, report: Callable[[Record], str]) -> str:
    """Write NAME.json and NAME.md into a folder; returns the report. The numbers come first: they took the time."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(record, indent=1, ensure_ascii=False)
    (out / f"{name}.json").write_text(numbers + "\n", encoding="utf-8")
    text = report(record)
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    return text
