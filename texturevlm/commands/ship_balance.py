"""texturevlm ship-balance: write the learned balances of scorers as the package holds them."""

import argparse

from texturevlm.commands import arguments


def add_ship_balance(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "ship-balance", _ship_balance, "pack the learned balances of scorers")
    weights = "weights.safetensors of a run of examples/train/balance.toml"
    parser.add_option("--weights", "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out("FILE.json")


def _ship_balance(options: argparse.Namespace) -> int:
    from texturevlm.relevance.balances import save_balances
    from texturevlm.scout.weights import load_module
    from texturevlm.train.balance_task import TRAINED, Balances

    arguments.check_out(options.out, ".json")
    learned = load_module(Balances(TRAINED), options.weights).requires_grad_(False)
    save_balances({name: learned.of(index) for index, name in enumerate(TRAINED)}, options.out)
    print(f"{options.out}: {', '.join(TRAINED)}")
    return 0
