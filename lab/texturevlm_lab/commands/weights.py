"""texturevlm fit-pca, fit-words and ship-…: weights as the package holds them, from the user's data or from runs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from texturevlm.commands import arguments
from texturevlm.defaults import BUDGET
from texturevlm.paths import image_paths
from texturevlm_lab.commands.pages import add_page_data

if TYPE_CHECKING:
    from torch import nn

    from texturevlm.relevance import Balance

WEIGHTS = "model.safetensors"
_MOST = 40e6  # bytes of the weights
Save = Callable[[Path, Path], str]  # weights of a run, the file to write → what it holds, in words


def add_weights(commands: arguments.Commands) -> None:
    help = "fit the 16 embedding channels to your own images"
    parser = arguments.add_command(commands, "fit-pca", _fit_pca, help)
    parser.add_images()
    parser.add_option("--model", "PATH_OR_ID", "a CLIP, SigLIP or SigLIP 2 model: hub id or folder", required=True)
    parser.add_out("FILE.safetensors")
    parser.add_device()

    help = "train the word ranker of `--relevance words`"
    parser = arguments.add_command(commands, "fit-words", _fit_words, help)
    add_page_data(parser)
    parser.add_out("FILE.json", "for the weights")

    help = "put the trained spotter and ranker into one file of weights"
    parser = arguments.add_command(commands, "ship-scout", _ship_scout, help)
    own = "weights.safetensors of a run"
    parser.add_option("--spotter", "WEIGHTS", f"{own} (default: that of the package)", type=arguments.existing_file)
    parser.add_option("--ranker", "WEIGHTS", own, type=arguments.existing_file, required=True)
    parser.add_out("FILE.npz")

    _add_ship(commands, "channels", ".safetensors", _channels, "pack the weights of channels")
    _add_ship(commands, "balance", ".json", _balance, "pack the learned balances of scorers")

    help = "put trained weights, tokenizer and settings into the folder of the reader"
    parser = arguments.add_command(commands, "ship-reader", _ship_reader, help)
    weights = "a run of `texturevlm train`, its weights.safetensors, or several files with parts of it"
    parser.add_argument("weights", type=arguments.existing_path, nargs="+", metavar="RUN_OR_WEIGHTS", help=weights)
    parser.add_option("--out", "FOLDER", "(default: the package's own texturevlm/reader)", type=Path)
    mean = "a folder of a reader: what is shipped is the mean of its weights and of RUN_OR_WEIGHTS"
    parser.add_option("--mean", "FOLDER", mean, type=arguments.existing_path)
    parser.add_count("--budget", "tokens where a user names none", BUDGET)


def _add_ship(commands: arguments.Commands, task: str, suffix: str, save: Save, help: str) -> None:
    parser = arguments.add_command(commands, f"ship-{task}", partial(_ship, suffix, save), help)
    weights = f"weights.safetensors of a run of examples/train/{task}.toml"
    parser.add_option("--weights", "WEIGHTS", weights, type=arguments.existing_file, required=True)
    parser.add_out(f"FILE{suffix}")


def _fit_pca(options: argparse.Namespace) -> int:
    arguments.check_out(options.out, ".safetensors", folder=False)
    paths = image_paths(options.images, options.limit)
    device = arguments.device_of(options)

    from texturevlm.channels.embedding import DenseEncoder
    from texturevlm_lab.train.pca import fit_pca

    with arguments.announced(f"loading {options.model}"):
        encoder = DenseEncoder.load(options.model, device=device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    features = map(encoder.encode, arguments.read_images(paths, skip_bad=options.skip_bad))
    projection, report = fit_pca(features, model=encoder.model, digest=encoder.digest)
    projection.save(options.out)
    skipped = len(paths) - report.images
    print(f"{options.out}: {encoder.model} → 16 numbers" + (f", {skipped} images skipped" if skipped else ""))
    print(report)
    return 0


def _fit_words(options: argparse.Namespace) -> int:
    from texturevlm_lab.train.word_ranking import fit_words

    arguments.check_out(options.out, ".json")
    record = fit_words(options.data, options.words, options.limit)
    common = options.out.with_name("commonness.json")  # belongs in texturevlm/text, the weights in texturevlm/relevance
    for path, content in ((common, record.pop("commonness")), (options.out, record)):
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


def save_modules(path: Path | str, **modules: nn.Module) -> None:
    """Write fp16 weights of several modules to one file; names start with the module's."""
    import numpy as np

    arrays = {}
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                half = value.cpu().half()
                if not half.isfinite().all():
                    raise ValueError(f"save_modules: {prefix}.{name} must be finite in half precision, and is not")
                arrays[f"{prefix}.{name}"] = half.numpy()
    np.savez(path, **arrays)


def _ship_scout(options: argparse.Namespace) -> int:
    from texturevlm.scout.scout import load_module, load_ranker, read_weights, shipped_parts
    from texturevlm.scout.spotter import Spotter

    arguments.check_out(options.out, ".npz")
    spotter = load_module(Spotter(), options.spotter) if options.spotter else shipped_parts()[0]
    # the task `answers` keeps more than a ranker
    prefix = "ranker." if any(name.startswith("ranker.") for name in read_weights(options.ranker)) else ""
    save_modules(options.out, spotter=spotter, ranker=load_ranker(options.ranker, prefix=prefix))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


def _ship(suffix: str, save: Save, options: argparse.Namespace) -> int:
    arguments.check_out(options.out, suffix)
    print(f"{options.out}: {save(options.weights, options.out)}")
    return 0


def save_form(form: nn.Module, path: Path) -> None:
    """Write weights as the package holds them."""
    from safetensors.torch import save_file

    save_file({name: value.cpu().contiguous() for name, value in form.state_dict().items()}, path)


def _channels(weights: Path, out: Path) -> str:
    from texturevlm.relevance.channel_logits import load_form

    save_form(load_form(weights), out)
    return f"{out.stat().st_size / 1e3:.1f} kB"


def save_balances(balances: dict[str, Balance], path: Path) -> None:
    """Write balances of plain numbers as the package holds them."""
    names = ("explore", "focus", "particularise")
    table = {scorer: {name: round(float(getattr(own, name)), 4) for name in names} for scorer, own in balances.items()}
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _balance(weights: Path, out: Path) -> str:
    from texturevlm.scout.scout import load_module
    from texturevlm_lab.train.balance_task import TRAINED, Balances

    learned = load_module(Balances(TRAINED), weights).requires_grad_(False)
    save_balances({name: learned.of(index) for index, name in enumerate(TRAINED)}, out)
    return ", ".join(TRAINED)


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
