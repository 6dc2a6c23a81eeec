"""Photographs to learn words from, packed into one file: captions of some, boxes of named objects of others.

    python -m texturevlm.train.captions DATA --out FOLDER [--limit N]

DATA holds flickr8k_small (photographs of 144×144 with captions) and coco (photographs with boxes, of which the `train`
ones are taken and no others, squashed to the same size). FOLDER gets photographs.zip, small enough to be carried to a
machine with a GPU.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from texturevlm.evaluate.data import load
from texturevlm.evaluate.study import MISTAKES, check_limit, command_parser, complain
from texturevlm.train.gist import SIDE

CAPTIONED, BOXED = "flickr8k_small", "coco"
PACKED, LISTING = "photographs.zip", "photographs.json"
QUALITY = 92  # of JPEG, where a photograph is squashed here
HELD_OUT = {CAPTIONED: 10, BOXED: 5}  # one photograph in so many is not learned from

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Photograph:
    """What is known of one photograph; boxes are shares of its width and height."""

    file: str
    captions: tuple[str, ...]
    objects: tuple[tuple[str, tuple[Box, ...]], ...]

    @property
    def held_out(self) -> bool:
        """Whether nothing is learned from it; known from its name alone."""
        number = int.from_bytes(hashlib.blake2b(self.file.encode(), digest_size=4).digest(), "big")
        return number % HELD_OUT[self.file.split("/")[0]] == 0


@dataclass(frozen=True, eq=False)
class Photographs:
    """pixels (M, 3, SIDE, SIDE) uint8, and a Photograph each."""

    pixels: Tensor
    listed: tuple[Photograph, ...]


def load_photographs(folder: Path) -> Photographs:
    """What `pack` wrote."""
    path = folder / PACKED
    if not path.is_file():
        raise FileNotFoundError(
            f"load_photographs: {path} must be there; make it with python -m texturevlm.train.captions DATA"
        )
    with zipfile.ZipFile(path) as file:
        listed = tuple(_photograph(row) for row in json.loads(file.read(LISTING)))
        packed = [file.read(one.file) for one in listed]
    with ThreadPoolExecutor() as readers:
        pixels = list(readers.map(_decoded, packed))
    return Photographs(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), listed)


def _photograph(row: dict[str, Any]) -> Photograph:
    objects = tuple((name, tuple(map(tuple, boxes))) for name, boxes in row["objects"])
    return Photograph(row["file"], tuple(row["captions"]), objects)


def _decoded(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(_squashed(image))


def _squashed(image: Image.Image) -> Image.Image:
    colour = image.convert("RGB")
    return colour if colour.size == (SIDE, SIDE) else colour.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def pack(data: Path, out: Path, limit: int | None = None) -> int:
    """Write the file; returns the number of photographs."""
    listing = data / CAPTIONED / "captions.jsonl"
    if not listing.is_file():
        raise FileNotFoundError(f"DATA must hold {CAPTIONED}/captions.jsonl, got {data}")
    captioned = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines() if line][:limit]
    boxed: dict[Path, list[Any]] = {}
    for sample in load(data / BOXED, split="train", located=True).samples:
        boxed.setdefault(sample.image, []).append(sample)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with zipfile.ZipFile(out / PACKED, "w") as file:  # stored: JPEG does not shrink any more
        for row in captioned:
            name = f"{CAPTIONED}/{Path(row['image']).name}"
            file.write(data / CAPTIONED / row["image"], name)
            rows.append({"file": name, "captions": row["captions"], "objects": []})
        for path, samples in list(boxed.items())[:limit]:
            name = f"{BOXED}/{path.stem}.jpg"
            with Image.open(path) as image:
                squashed = io.BytesIO()
                _squashed(image).save(squashed, "JPEG", quality=QUALITY)
            file.writestr(name, squashed.getvalue())
            objects = [[one.name, [_share(box, one.size) for box in one.boxes]] for one in samples]
            rows.append({"file": name, "captions": [], "objects": objects})
        file.writestr(LISTING, json.dumps(rows), compress_type=zipfile.ZIP_DEFLATED)
    return len(rows)


def _share(box: Sequence[float], size: tuple[int, int]) -> list[float]:
    height, width = size
    return [round(value / side, 4) for value, side in zip(box, (width, height, width, height))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("texturevlm.train.captions", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help=f"folder with {CAPTIONED} and {BOXED}")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N photographs of each set: to try it out")
    options = parser.parse_args(arguments)
    try:
        check_limit(options.limit)
        count = pack(options.data, options.out, options.limit)
    except MISTAKES as error:
        return complain(parser, error)
    size = (options.out / PACKED).stat().st_size
    print(f"{options.out / PACKED}: {count} photographs, {size / 1e6:.1f} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
