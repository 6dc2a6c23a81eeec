"""texturevlm ship-scout: put the trained spotter and ranker into one file of weights."""

import argparse

from texturevlm.commands import arguments


def add_ship_scout(commands: arguments.Commands) -> None:
    help = "put the trained spotter and ranker into one file of weights"
    parser = arguments.add_command(commands, "ship-scout", _ship_scout, help)
    weights = "weights.safetensors of a run"
    own = f"{weights} (default: that of the package)"
    parser.add_option("--spotter", "WEIGHTS", own, type=arguments.existing_file)
    parser.add_option("--ranker", "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out("FILE.npz")


def _ship_scout(options: argparse.Namespace) -> int:
    from texturevlm.scout.scout import load_module, load_ranker, read_weights, save_modules, shipped_parts
    from texturevlm.scout.spotter import Spotter

    arguments.check_out(options.out, ".npz")
    spotter = load_module(Spotter(), options.spotter) if options.spotter else shipped_parts()[0]
    # the task `answers` keeps more than a ranker
    prefix = "ranker." if any(name.startswith("ranker.") for name in read_weights(options.ranker)) else ""
    save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker, prefix=prefix))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0
