"""texturevlm bench: measure speed, with baselines measured in the same run."""

import argparse
from pathlib import Path

from texturevlm.commands import arguments

# lab/texturevlm_lab/bench/NAME.py has TITLE and bench(report).
BENCHMARKS = (
    "engine",
    "channels",
    "allocate",
    "attention",
    "vlm",
    "reduce",
    "reader",
    "video",
    "live",
    "scout",
    "corpus",
    "serve",
)


def add_bench(commands: arguments.Commands) -> None:
    help = "measure speed, with baselines measured in the same run"
    parser = arguments.add_command(commands, "bench", _bench, help)
    parser.add_argument("what", choices=BENCHMARKS)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="(default: cuda if there is one)")
    saved = "write the measurements to this file too, as they come, and the table beside it (.md)"
    parser.add_option("--json", "FILE", saved, type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller inputs, for a first try")


def _bench(options: argparse.Namespace) -> int:
    if options.json is not None and not options.json.parent.is_dir():
        raise ValueError(f"--json must be in a folder that exists, got {options.json}")
    if options.json is not None and options.json.suffix == ".md":
        raise ValueError(f"--json must not end in .md, which is the table's name, got {options.json}")
    from texturevlm_lab.bench.report import measure

    report = measure(options.what, str(arguments.device_of(options)), quick=options.quick, path=options.json)
    print(report.table())
    if options.json is not None:
        report.save(options.json)
    return 0
