"""texturevlm ship-channels, ship-balance: write what a run has learned about relevance as the package holds it."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from texturevlm.commands import arguments

Save = Callable[[Path, Path], str]  # weights of a run, the file to write → what it holds, in words


def add_ship_relevance(commands: arguments.Commands) -> None:
    _add(commands, "ship-channels", ".safetensors", _channels, "pack the weights of channels")
    _add(commands, "ship-balance", ".json", _balance, "pack the learned balances of scorers")


def _add(commands: arguments.Commands, name: str, suffix: str, save: Save, help: str) -> None:
    parser = arguments.add_command(commands, name, partial(_ship, suffix, save), help)
    weights = f"weights.safetensors of a run of examples/train/{name.removeprefix('ship-')}.toml"
    parser.add_option("--weights", "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out(f"FILE{suffix}")


def _ship(suffix: str, save: Save, options: argparse.Namespace) -> int:
    arguments.check_out(options.out, suffix)
    print(f"{options.out}: {save(options.weights, options.out)}")
    return 0


def _channels(weights: Path, out: Path) -> str:
    from texturevlm.relevance.channel_logits import load_form, save_form

    save_form(load_form(weights), out)
    return f"{out.stat().st_size / 1e3:.1f} kB"


def _balance(weights: Path, out: Path) -> str:
    from texturevlm.relevance.maps import save_balances
    from texturevlm.scout.scout import load_module
    from texturevlm_lab.train.balance_task import TRAINED, Balances

    learned = load_module(Balances(TRAINED), weights).requires_grad_(False)
    save_balances({name: learned.of(index) for index, name in enumerate(TRAINED)}, out)
    return ", ".join(TRAINED)
