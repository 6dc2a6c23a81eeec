"""List the tables of results/ that today's code and weights did not make, and mark them.

    python -m texturevlm_lab.studies.results_check [RESULTS] [--mark]

A table names the module that made it, a digest of everything that module depends on, and a commit. If the digest is
not today's, or there is none, the table needs a line under its title that says so; --mark writes that line into such
tables and removes it from the others. Without --mark the status is 1 if a table says something else than is true.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from texturevlm_lab.evaluate.provenance import ROOT, code_digest, named_origin
from texturevlm_lab.studies.study import MISTAKES

_MARK = "> **Not today's code.**"
_ASK = "`make results-check` lists all such tables."


class Table(NamedTuple):
    """A table, the reason why it is not of today's code ("" if it is), and whether it says so."""

    path: Path
    reason: str
    marked: bool


def check(folder: Path, *, root: Path = ROOT) -> list[Table]:
    """All tables of a folder and its subfolders."""
    digest = cache(lambda module: code_digest(module, root=root))
    found = []
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        origin = named_origin(text)
        if origin is None:
            reason = "It names no digest of the code and weights that made it."
        else:
            try:
                today = digest(origin.module)
            except ValueError:
                today = ""  # the module is gone
            made = f"It was made by code and weights with digest {origin.digest} (commit {origin.commit})."
            reason = "" if origin.digest == today else made
        found.append(Table(path, reason, _line(reason) in text if reason else _MARK not in text))
    return found


def _line(reason: str) -> str:
    return f"{_MARK} {reason} {_ASK}"


def mark(table: Table) -> None:
    """Write the line under the title, or remove it."""
    lines = table.path.read_text(encoding="utf-8").splitlines()
    kept = [line for number, line in enumerate(lines) if not _generated(lines, number)]
    if table.reason:
        kept[1:1] = ["", _line(table.reason)]
    table.path.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _generated(lines: Sequence[str], number: int) -> bool:
    """Whether a line is the generated one, or the blank one before it."""
    return any(line.startswith(_MARK) for line in lines[number : number + (1 if lines[number] else 2)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.results_check", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("results", type=Path, nargs="?", default=ROOT / "results", metavar="RESULTS")
    parser.add_argument("--mark", action="store_true", help="write the line into the tables that need it")
    options = parser.parse_args(arguments)
    try:
        tables = check(options.results)
        for table in tables if options.mark else ():
            mark(table)
    except MISTAKES as error:
        print(f"texturevlm_lab.studies.results_check: {error}", file=sys.stderr)
        return 2
    for table in tables:
        if table.reason:
            print(f"{table.path.relative_to(options.results)}: {table.reason}")
    old, wrong = sum(bool(table.reason) for table in tables), [table for table in tables if not table.marked]
    print(f"{old} of {len(tables)} tables are not of today's code.")
    if wrong and not options.mark:
        names = ", ".join(str(table.path.relative_to(options.results)) for table in wrong)
        print(f"not marked rightly (make results-mark): {names}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
