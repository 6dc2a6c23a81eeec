"""texturevlm fit-pca: fit the 16 embedding channels to the user's own images, and say how well they fit."""

import argparse

from texturevlm.commands import arguments
from texturevlm.paths import image_paths


def add_fit_pca(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "fit-pca", _fit_pca, "fit the 16 embedding channels to your own images")
    parser.add_images()
    parser.add_option("--model", "PATH_OR_ID", "a CLIP, SigLIP or SigLIP 2 model: hub id or folder", required=True)
    parser.add_out("FILE.safetensors")
    parser.add_device()


def _fit_pca(options: argparse.Namespace) -> int:
    arguments.check_out(options.out, ".safetensors", folder=False)
    paths = image_paths(options.images, options.limit)
    device = arguments.device_of(options)

    from texturevlm.channels.embedding import DenseEncoder
    from texturevlm.channels.pca import fit_pca

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
