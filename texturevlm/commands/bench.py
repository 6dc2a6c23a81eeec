"""texturevlm bench: speed, beside baselines measured in the same run."""

import argparse
import importlib
from pathlib import Path

from texturevlm.commands.options import Commands

WHAT = ("engine", "channels", "allocate", "vlm", "video", "scout")  # modules of texturevlm.bench


def add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="speed, beside baselines measured in the same run")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="(default: cuda if there is one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements here too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller work: to try it out")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    bench = importlib.import_module(f"texturevlm.bench.{options.what}")
    report = bench.run(options.device, quick=options.quick)
    print(report.table())
    if options.json is not None:
        report.save(options.json)
    return 0
