"""texturevlm fit-pca: fit the 16 embedding channels to the user's own images, and say how well they fit."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from texturevlm.commands import arguments
from texturevlm.paths import image_paths

if TYPE_CHECKING:
    from torch import Tensor

    from texturevlm.channels.embedding import DenseEncoder


def add_fit_pca(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "fit-pca", _fit_pca, "fit the 16 embedding channels to your own images")
    images = "files, or folders searched for images"
    parser.add_argument("images", type=arguments.existing_path, nargs="+", metavar="IMAGES", help=images)
    parser.add_option("--model", "PATH_OR_ID", "a CLIP, SigLIP or SigLIP 2 model: hub id or folder", required=True)
    parser.add_out("FILE.safetensors")
    parser.add_count("--limit", "use N images, evenly spread (default: all)")
    parser.add_device()
    parser.add_argument("--skip-bad", action="store_true", help="report images that cannot be read, and continue")


def _fit_pca(options: argparse.Namespace) -> int:
    arguments.check_out(options.out, ".safetensors", folder=False)
    paths = image_paths(options.images, options.limit)
    device = arguments.device_of(options)

    from texturevlm.channels.embedding import DenseEncoder
    from texturevlm.channels.pca import fit_pca

    with arguments.announced(f"loading {options.model}"):
        encoder = DenseEncoder.load(options.model, device=device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    features = _features(encoder, paths, skip_bad=options.skip_bad)
    projection, report = fit_pca(features, model=encoder.model, digest=encoder.digest)
    projection.save(options.out)
    skipped = len(paths) - report.images
    print(f"{options.out}: {encoder.model} → 16 numbers" + (f", {skipped} images skipped" if skipped else ""))
    print(report)
    return 0


def _features(encoder: "DenseEncoder", paths: Sequence[Path], *, skip_bad: bool) -> "Iterator[Tensor]":
    """Features of one image after the other, with progress on stderr."""
    import sys

    from texturevlm.image import to_tensor
    from texturevlm.progress import Progress

    progress = Progress(len(paths), "images")
    for path in paths:
        try:
            image = to_tensor(path)
        except (ValueError, TypeError, OSError) as error:
            if not skip_bad:
                raise ValueError(f"{path}: {error} (--skip-bad continues without it)") from error
            print(f"skipped {path}: {error}", file=sys.stderr, flush=True)
        else:
            yield encoder.encode(image)
        progress.step()
