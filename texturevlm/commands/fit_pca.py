"""texturevlm fit-pca: fit the 16 embedding layers to one's own images, and say how well they fit."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from texturevlm.channels.embedding import DenseEncoder

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif"}  # what a folder is searched for


def add_fit_pca(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("fit-pca", help="fit the 16 embedding layers to images of your own")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGES", help="files, or folders searched for images")
    parser.add_argument(
        "--model", required=True, metavar="PATH_OR_ID", help="a CLIP, SigLIP or SigLIP 2 model: hub id or folder"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors")
    parser.add_argument("--limit", type=int, metavar="N", help="use N images, evenly spread (default: all)")
    parser.add_argument("--device", metavar="D", help="(default: cuda if there is one)")
    parser.add_argument("--skip-bad", action="store_true", help="name images that cannot be read, and go on")
    parser.set_defaults(run=_fit_pca)


def _fit_pca(options: argparse.Namespace) -> int:
    import torch

    from texturevlm.channels.embedding import DenseEncoder
    from texturevlm.channels.pca import fit_pca

    if options.out.suffix.lower() != ".safetensors":
        raise ValueError(f"--out must end in .safetensors, got {options.out}")
    paths = image_paths(options.images, options.limit)
    options.out.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    encoder = DenseEncoder.load(options.model, device=device)
    stream = _features(encoder, paths, skip_bad=options.skip_bad)
    projection, report = fit_pca(stream, model=encoder.model, digest=encoder.digest)
    projection.save(options.out)
    skipped = len(paths) - report.images
    print(f"{options.out}: {encoder.model} → 16 numbers" + (f", {skipped} images skipped" if skipped else ""))
    print(report)
    return 0


def image_paths(given: Sequence[Path], limit: int | None = None) -> list[Path]:
    """The files given and the images in the folders given; at most `limit`, evenly spread."""
    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not found:
                raise ValueError(f"IMAGES must hold images ({' '.join(sorted(SUFFIXES))}), got none in {path}")
            paths += found
        else:
            paths.append(path)
    if limit is None or limit >= len(paths):
        return paths
    if limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}")
    return [paths[index * len(paths) // limit] for index in range(limit)]


def _features(encoder: "DenseEncoder", paths: Sequence[Path], *, skip_bad: bool) -> Iterator[Tensor]:
    """Features of one image after the other; what happens is told on stderr."""
    from texturevlm.image import to_tensor

    for done, path in enumerate(paths, 1):
        try:
            image = to_tensor(path)
        except (ValueError, TypeError, OSError) as error:
            if not skip_bad:
                raise ValueError(f"{path}: {error} (--skip-bad goes on without it)") from error
            _tell(f"skipped {path}: {error}")
        else:
            yield encoder.encode(image)
        if sys.stderr.isatty():
            print(f"\r{done}/{len(paths)} images", end="\n" if done == len(paths) else "", file=sys.stderr, flush=True)
        elif done == len(paths) or done % max(1, len(paths) // 10) == 0:
            _tell(f"{done}/{len(paths)} images")


def _tell(line: str) -> None:
    print("\r" * sys.stderr.isatty() + line, file=sys.stderr, flush=True)
