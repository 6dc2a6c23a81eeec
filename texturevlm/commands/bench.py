"""texturevlm bench: measure speed, with baselines measured in the same run."""

import argparse
import importlib
from pathlib import Path

from texturevlm.commands.options import Commands, device_of

BENCHMARKS = ("engine", "channels", "allocate", "vlm", "video", "scout")  # texturevlm/bench/NAME.py has bench_NAME


def add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure speed, with baselines measured in the same run")
    parser.add_argument("what", choices=BENCHMARKS)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="(default: cuda if there is one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller inputs, for a first try")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    if options.json is not None and not options.json.parent.is_dir():
        raise ValueError(f"--json must be in a folder that exists, got {options.json}")
    device = str(device_of(options))
    module = importlib.import_module(f"texturevlm.bench.{options.what}")
    report = getattr(module, f"bench_{options.what}")(device, quick=options.quick)
    print(report.table())
    if options.json is not None:
        report.save(options.json)
    return 0
