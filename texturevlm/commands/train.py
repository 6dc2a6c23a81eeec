"""texturevlm train: train what a config describes."""

import argparse
from pathlib import Path

from texturevlm.commands.options import Commands, existing_file


def add_train(commands: Commands) -> None:
    parser = commands.add_parser("train", help="train what a config describes")
    parser.add_argument("config", type=existing_file, metavar="CONFIG", help="a TOML file (examples/train)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="for checkpoints and logs (default: runs/CONFIG's name)"
    )
    parser.add_argument("--resume", action="store_true", help="continue exactly from the last checkpoint in DIR")
    parser.set_defaults(run=_train)


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
