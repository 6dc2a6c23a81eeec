"""What a machine with a GPU can say about the code: `make gpu`, or `python3 tests/gpu_check.py --out FOLDER PART ...`.

    suite      the tests that need a GPU, in several processes at once
    vlm, engine, corpus   that benchmark, each median beside the committed one of results/NAME-h200.json
    sanitize   every kernel under compute-sanitizer

Any Python with the package's dependencies and pytest will do; nothing is installed. Logs and tables go to the folder.
The answer is 0 if all parts ran and no test failed; times are for people to judge.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BENCHES = ("vlm", "engine", "corpus")
SLOWER = 1.1  # times the committed median: the row is shown
SHARE = "TEXTUREVLM_SHARE"  # "2/6": the third of six parts of the tests; "6/6": those that must run alone
ALONE = "leave_no_memory_behind"  # in the name of a test that measures the memory of the GPU


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """As a plugin of pytest: keep one share of the tests, the same in every run."""
    number, count = map(int, os.environ[SHARE].split("/"))
    mine = [item for item in items if (ALONE in item.nodeid) == (number == count)]
    if number < count:
        mine = [item for item in mine if zlib.crc32(item.nodeid.encode()) % count == number]
    others = [item for item in items if item not in set(mine)]
    config.hook.pytest_deselected(items=others)
    items[:] = mine


def main() -> int:
    """Run the parts that were asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="of suite, vlm, engine, corpus, sanitize (default: all but sanitize)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/gpu", help="folder of logs and tables")
    parser.add_argument("--processes", type=int, default=6, help="of the suite")
    parser.add_argument("--full", action="store_true", help="benchmarks with all their repetitions")
    given = parser.parse_args()
    parts = given.parts or ["suite", *BENCHES]
    if unknown := set(parts) - {"suite", "sanitize", *BENCHES}:
        parser.error(f"no part {', '.join(sorted(unknown))}")
    given.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in parts:
        started = time.perf_counter()
        if part == "suite":
            good = suite(given.out, given.processes)
        elif part == "sanitize":
            good = sanitize(given.out)
        else:
            good = bench(part, given.out, quick=not given.full)
        print(f"{part}: {'done' if good else 'FAILED'} in {time.perf_counter() - started:.0f} s", flush=True)
        failed += [] if good else [part]
    return 1 if failed else 0


def started(command: list[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
    """A process of this interpreter, or another program, that writes to a log and imports this checkout."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "lab"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)


def suite(out: Path, count: int) -> bool:
    """The tests that need a GPU; each process has its share."""
    command = [
        sys.executable,
        *["-m", "pytest", "-m", "gpu", "-p", "tests.gpu_check", "-p", "no:cacheprovider", "--durations=10"],
    ]
    command.append("--continue-on-collection-errors")
    logs = [out / f"suite-{number}.log" for number in range(count + 1)]
    running = [started(command, log, **{SHARE: f"{number}/{count}"}) for number, log in enumerate(logs[:count])]
    codes = [process.wait() for process in running]
    codes.append(started(command, logs[count], **{SHARE: f"{count}/{count}"}).wait())
    for log, code in zip(logs, codes):
        lines = log.read_text(errors="replace").splitlines()
        shown = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print(*shown, f"{log.name}: {lines[-1] if lines else 'nothing'} (exit status {code})", sep="\n", flush=True)
    return all(code in (0, 5) for code in codes)  # 5: no tests in this share


def sanitize(out: Path) -> bool:
    """Wrong accesses, races and barriers in every kernel."""
    log = out / "sanitize.log"
    code = started(["make", "sanitize", f"SANITIZE_PYTHON={sys.executable}"], log).wait()
    print(f"{log.name}: exit status {code}", *log.read_text(errors="replace").splitlines()[-3:], sep="\n", flush=True)
    return code == 0


def bench(name: str, out: Path, *, quick: bool) -> bool:
    """A benchmark, beside the committed one."""
    table, log = out / f"{name}-h200.json", out / f"bench-{name}.log"
    options = ["--device", "cuda", "--json", str(table), *(["--quick"] if quick else [])]
    code = started([sys.executable, "-m", "texturevlm.cli", "bench", name, *options], log).wait()
    if code:
        print(*log.read_text(errors="replace").splitlines()[-5:], sep="\n", flush=True)
    if table.exists():
        print(*beside(json.loads(table.read_text()), json.loads((ROOT / "results" / table.name).read_text())), sep="\n")
    return code == 0


def beside(ours: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """The rows of two tables that took longer in ours, or have no number there, and how all of them compare."""
    before, now = (
        {(row["work"], row["by"], row["state"]): row["timing"]["median"] for row in table["rows"] if row["timing"]}
        for table in (committed, ours)
    )
    ratios = {key: now[key] / before[key] for key in now if key in before}
    lines = [f"  {ratio:5.2f} × {', '.join(key)}" for key, ratio in ratios.items() if ratio > SLOWER]
    lines += [f"  {row['work']}, {row['by']}: {row['state']}" for row in ours["rows"] if not row["timing"]]
    middle = sorted(ratios.values())[len(ratios) // 2] if ratios else float("nan")
    said = f"{len(now)} rows, {len(ratios)} of them committed: {middle:.2f} × as long (median)"
    return [f"{ours['title']}: {said}, {sum(one > SLOWER for one in ratios.values())} above {SLOWER} ×", *lines]


if __name__ == "__main__":
    sys.exit(main())
