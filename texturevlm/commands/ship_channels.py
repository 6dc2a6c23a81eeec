"""texturevlm ship-channels: write the trained weights of relevance="channels" as the package holds them."""

import argparse

from texturevlm.commands import arguments


def add_ship_channels(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "ship-channels", _ship_channels, "pack the weights of channels")
    weights = "weights.safetensors of a run"
    parser.add_option("--weights", "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out("FILE.npz")


def _ship_channels(options: argparse.Namespace) -> int:
    from texturevlm.relevance.channel_form import load_form, save_form

    arguments.check_out(options.out, ".npz")
    save_form(load_form(options.weights), options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.1f} kB")
    return 0
