"""texturevlm ship-scout: put the trained spotter and ranker into one file of weights."""

import argparse
from pathlib import Path

from texturevlm.commands.options import Commands, check_out, existing_file


def add_ship_scout(commands: Commands) -> None:
    parser = commands.add_parser("ship-scout", help="put the trained spotter and ranker into one file of weights")
    for name in ("--spotter", "--ranker"):
        parser.add_argument(
            name, type=existing_file, required=True, metavar="WEIGHTS", help="weights.safetensors of a run"
        )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    parser.set_defaults(run=_ship_scout)


def _ship_scout(options: argparse.Namespace) -> int:
    from texturevlm.scout.spotter import Spotter
    from texturevlm.scout.weights import load_module, load_ranker, save_modules

    check_out(options.out, ".npz")
    spotter = load_module(Spotter(), options.spotter)
    save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0
