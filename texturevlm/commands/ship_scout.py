"""texturevlm ship-scout: put the trained spotter and ranker into one file of weights."""

import argparse

from texturevlm.commands import arguments


def add_ship_scout(commands: arguments.Commands) -> None:
    help = "put the trained spotter and ranker into one file of weights"
    parser = arguments.add_command(commands, "ship-scout", _ship_scout, help)
    for name in ("--spotter", "--ranker"):
        weights = "weights.safetensors of a run"
        parser.add_option(name, "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out("FILE.npz")


def _ship_scout(options: argparse.Namespace) -> int:
    from texturevlm.scout.spotter import Spotter
    from texturevlm.scout.weights import load_module, load_ranker, save_modules

    arguments.check_out(options.out, ".npz")
    spotter = load_module(Spotter(), options.spotter)
    save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0
