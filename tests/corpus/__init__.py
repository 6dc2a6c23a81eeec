"""Small sources of every kind, and what a corpus made of them holds."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from texturevlm import corpus

PATCH, BUDGET = 8, 12
FAST = {"budget": BUDGET, "patch": PATCH, "relevance": "none", "batch": 3, "device": "cpu"}


def picture(seed: int, height: int = 48, width: int = 64) -> Image.Image:
    """Coarse blocks, so that JPEG keeps them."""
    blocks = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3))
    return Image.fromarray(np.kron(blocks, np.ones((8, 8, 1))).astype(np.uint8)[:height, :width].copy())


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def fill(folder: Path, count: int = 10) -> Path:
    """Images of two sizes, PNG and JPEG, in two folders."""
    for index in range(count):
        path = folder / f"part{index % 2}" / f"{index:03}.{'png' if index % 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(index, *((48, 64) if index % 4 else (64, 40))).save(path)
    return folder


def write_tar(path: Path, samples) -> Path:
    """samples: (name, {suffix: bytes})"""
    with tarfile.open(path, "w") as tar:
        for name, parts in samples:
            for suffix, content in parts.items():
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def made(source, out, *, workers: int = 0, **options) -> corpus.Summary:
    return corpus.build(source, out, workers=workers, **{**FAST, "unit": 4, **options})


def content(out: Path) -> dict[str, bytes]:
    """All files of a corpus, manifests without the times."""
    found = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    for name in [name for name in found if name.startswith("done/")]:
        fields = json.loads(found[name])
        found[name] = json.dumps({key: fields[key] for key in fields if key not in ("seconds", "wall")}).encode()
    return found


def keys(out: Path) -> list[str]:
    opened = corpus.open(out, partial=True)
    return [opened.row(number).key for number in range(len(opened))]


def faults(out: Path) -> dict[str, str]:
    return {fault.key: fault.error for fault in corpus.open(out, partial=True).faults()}
