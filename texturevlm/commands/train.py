"""texturevlm train: train what a config describes."""

import argparse
from pathlib import Path

from texturevlm.commands import arguments


def add_train(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "train", _train, "train what a config describes")
    config = "a TOML file (examples/train)"
    parser.add_argument("config", type=arguments.existing_file, metavar="CONFIG", help=config)
    parser.add_option("--out", "DIR", "for checkpoints and logs (default: runs/CONFIG's name)", type=Path)
    parser.add_argument("--resume", action="store_true", help="continue exactly from the last checkpoint in DIR")


def _train(options: argparse.Namespace) -> int:
    from texturevlm.train.config import read_config, task_of, to_json
    from texturevlm.train.fit import fit

    try:
        config = read_config(options.config)
    except UnicodeDecodeError:
        raise ValueError(f"CONFIG must be a TOML file, got {options.config}") from None
    out = options.out or Path("runs") / options.config.stem
    task, settings = task_of(config)
    found = fit(task, config.fit, out, resume=options.resume, settings=to_json(settings))
    for name, value in found.items():
        print(f"{name}: {value:.4f}")
    print(f"{out}: {config.fit.steps} steps of {config.task}")
    return 0
