"""texturevlm ship-reader: make the folder of the reader, which any program that loads Qwen3-VL can load."""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from texturevlm.commands import arguments
from texturevlm.defaults import BUDGET

WEIGHTS = "model.safetensors"
_MOST = 40e6  # bytes of the weights


def add_ship_reader(commands: arguments.Commands) -> None:
    help = "put trained weights, tokenizer and settings into the folder of the reader"
    parser = arguments.add_command(commands, "ship-reader", _ship_reader, help)
    weights = "a run of `texturevlm train`, its weights.safetensors, or several files with parts of it"
    parser.add_argument("weights", type=arguments.existing_path, nargs="+", metavar="RUN_OR_WEIGHTS", help=weights)
    parser.add_option("--out", "FOLDER", "(default: the package's own texturevlm/reader)", type=Path)
    mean = "a folder of a reader: what is shipped is the mean of its weights and of RUN_OR_WEIGHTS"
    parser.add_option("--mean", "FOLDER", mean, type=arguments.existing_path)
    parser.add_count("--budget", "tokens where a user names none", BUDGET)


def _ship_reader(options: argparse.Namespace) -> int:
    import torch

    from texturevlm.ask.pretrained import SHIPPED
    from texturevlm_lab.train.reader.network import load_weights, make_network, save_folder

    out = options.out or SHIPPED["reader"]
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}")
    if not out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that exists, got {out}")
    network = make_network()
    load_weights(network, *[file for given in options.weights for file in _files(given)])
    if options.mean is not None:
        other = make_network()
        load_weights(other, options.mean / WEIGHTS)
        with torch.no_grad():
            for ours, theirs in zip(network.parameters(), other.parameters()):
                ours.lerp_(theirs, 0.5)
    with TemporaryDirectory(dir=out.parent) as whole:  # so that `out` never has a part of the files
        save_folder(network, Path(whole), budget=options.budget)
        size = (Path(whole) / WEIGHTS).stat().st_size
        if size > _MOST:
            raise ValueError(f"RUN_OR_WEIGHTS must be at most {_MOST / 1e6:.0f} MB in bfloat16, got {size / 1e6:.1f}")
        out.mkdir(exist_ok=True)
        for file in sorted(Path(whole).iterdir()):
            file.chmod(0o644)
            os.replace(file, out / file.name)
    print(f"{out}: {size / 1e6:.1f} MB of weights")
    return 0


def _files(given: Path) -> list[Path]:
    """The weights that an argument names: those of a run's last checkpoint, or a file."""
    from texturevlm_lab.train.run_files import checkpoints, final_weights

    if not given.is_dir():
        return [given]
    if not (found := checkpoints(given)):
        raise ValueError(f"RUN_OR_WEIGHTS must be a run with a checkpoint, or a file of weights, got {given}")
    return [final_weights(found[-1])]
