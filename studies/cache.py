"""What is made of an image once and read at every step: textures with their channels, kept on disk.

The key is what the result depends on: the bytes of the image, the channels, and the code that makes them; so nothing
that is found is ever out of date, and a folder may be shared by any number of runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from texturevlm.channels import build
from texturevlm.channels.pretrained import optional
from texturevlm.channels.registry import CHANNELS, resolve
from texturevlm.types import Texture

MADE_BY = ("channels", "ops")  # the stages whose code makes channels


def cached(folder: Path, key: Sequence[str], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a key, made if they were not before; written whole or not at all."""
    name = hashlib.blake2b("\n".join(key).encode(), digest_size=16).hexdigest()
    path = folder / name[:2] / f"{name}.safetensors"
    safetensors = optional("cached", "safetensors.torch")
    if path.is_file():
        return safetensors.load(path.read_bytes())
    tensors = {name: tensor.contiguous() for name, tensor in make().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(safetensors.save(tensors))
    os.replace(partial, path)
    return tensors


def channel_texture(
    image: Path, channels: str | Sequence[str], folder: Path, *, first: int = 0, half: bool = True
) -> Texture:
    """An image's texture of channels, from the cache if it is there.

    first: the finest level that is kept; the layers are made at full size all the same
    half:  kept in half precision
    """
    names = resolve(channels)
    key = [file_digest(image), ",".join(names), f"first={first}", f"half={half}", code_digest()]

    def make() -> dict[str, Tensor]:
        built = build(Texture.open(image), names, base=0)
        levels = built.levels[min(first, len(built.levels) - 1) :]
        kept = {f"level_{index:02}": level.half() if half else level for index, level in enumerate(levels)}
        return {**kept, "size": torch.tensor(built.size)}

    found = cached(folder, key, make)
    height, width = found.pop("size").tolist()
    levels = tuple(found[name].float() for name in sorted(found))
    return Texture(levels, names, (height, width), tuple(CHANNELS[name].reduce for name in names))


def file_digest(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Of the sources that make channels."""
    package = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for stage in MADE_BY:
        for path in sorted((package / stage).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
