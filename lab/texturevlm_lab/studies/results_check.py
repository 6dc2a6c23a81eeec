"""List the tables of results/ that today's code and weights did not make, and mark them.

    python -m texturevlm_lab.studies.results_check [RESULTS] [--mark] [--same WHY [--only A,B]]

A table names the module that made it, a digest of everything that module depends on, and a commit. If the digest is
not today's, or there is none, the table needs a line under its title that says so; --mark writes that line into such
tables and removes it from the others. Without --mark the status is 1 if a table says something else than is true.

Code that was only moved has the digest that it had. Where other code was shown to make the same (goldens, or the rows
made again), --same WHY says so in RESULTS/same.json, for the tables without a line under their title, or for some.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from texturevlm_lab.evaluate.provenance import ROOT, Origin, code_digest, module_now, named_origin
from texturevlm_lab.studies.study import MISTAKES

_MARK = "> **Not today's code.**"
_ASK = "`make results-check` lists all such tables."
_SAME = "same.json"  # digest of a table → that of later code which was shown to make the same, and how it was shown


class Table(NamedTuple):
    """A table, the reason why it is not of today's code ("" if it is), and whether it says so.

    made, today: the digest of the code that made it, and of that code today; "" if there is none
    """

    path: Path
    reason: str
    marked: bool
    made: str = ""
    today: str = ""


def check(folder: Path, *, root: Path = ROOT) -> list[Table]:
    """All tables of a folder and its subfolders."""
    same = _read_same(folder)

    @cache
    def digest(module: str) -> str:
        try:
            return code_digest(module_now(module, root=root), root=root)
        except ValueError:
            return ""  # the module is gone

    found = []
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        origin = named_origin(text) or Origin("", "", "")
        today = digest(origin.module) if origin.module else ""
        reason = f"It was made by code and weights with digest {origin.digest} (commit {origin.commit})."
        if not origin.module:
            reason = "It names no digest of the code and weights that made it."
        elif today in (origin.digest, same.get(origin.digest, {}).get("today")):
            reason = ""
        marked = _line(reason) in text if reason else _MARK not in text
        found.append(Table(path, reason, marked, origin.digest, today))
    return found


def _read_same(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / _SAME
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def call_same(folder: Path, tables: Sequence[Table], why: str, only: str | None = None) -> int:
    """Write that today's code makes the tables that have another digest and no mark; returns how many they are.

    only: names of these tables, with commas between them; None: all
    """
    found = [one for one in tables if one.reason and one.today and _MARK not in one.path.read_text(encoding="utf-8")]
    found = [one for one in found if only is None or one.path.stem in only.split(",")]
    same = _read_same(folder) | {one.made: {"today": one.today, "why": why} for one in found}
    (folder / _SAME).write_text(json.dumps(dict(sorted(same.items())), indent=1) + "\n", encoding="utf-8")
    return len(found)


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
    parser.add_argument("--same", metavar="WHY", help="say that today's code makes the tables that have no such line")
    parser.add_argument("--only", metavar="A,B", help="tables of --same (default: all)")
    options = parser.parse_args(arguments)
    try:
        tables = check(options.results)
        if options.same:
            print(
                f"{call_same(options.results, tables, options.same, options.only)} tables are the same by today's code."
            )
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
