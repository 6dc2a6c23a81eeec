"""What a row holds beside its allocation, by name: a function of a batch that was chosen.

To add one, write a class like these, and add a line to PAYLOADS and to rows.DTYPES.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from texturevlm.corpus.choose import Chosen, Decoded
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.rows import Array

THUMBNAIL = 256  # pixels along the longer side, at most
QUALITY = 85  # of its JPEG


class Payload(Protocol):
    """keep_texture: whether it reads the texture of a batch"""

    keep_texture: bool

    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        """One array per image; used: (B, K), whether each slot of the allocation holds a token."""


class Patches:
    """The pixels of the chosen tokens."""

    keep_texture = False

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        pass

    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        assert chosen.pixels is not None
        pixels = chosen.pixels[: len(images)].cpu().numpy()
        return [pixels[image][used[image]] for image in range(len(images))]


class Features:
    """What a model's vision tower makes of the tokens, with what it passes to deeper layers (DeepStack)."""

    keep_texture = True

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        from texturevlm.ask import load_vlm

        self.adapter = load_vlm(recipe.model, device=device, captured=False).adapter
        if self.adapter.side != recipe.patch:
            raise ValueError(f"corpus: patch must be {self.adapter.side} for {recipe.model}, got {recipe.patch}")

    @torch.no_grad()
    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        assert chosen.texture is not None
        tokens = self.adapter.encode(chosen.texture, chosen.allocation)
        layers = torch.stack([tokens.embeds, *tokens.deepstack], 2).half().cpu().numpy()
        return [layers[image][used[image]] for image in range(len(images))]


def model_side(model: str) -> int:
    """The side of a model's tokens in samples, from its configuration alone."""
    from texturevlm.ask.processor import TextureProcessor

    return int(TextureProcessor.from_pretrained(model).adapter.side)


class Codes:
    """Numbers of a codebook. texturevlm.codebook has `load_codebook(model, device)`, whose `encode` takes patches
    (N, 3, P, P), values 0 to 1, and gives whole numbers (N, …)."""

    keep_texture = False

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        check_codebook()
        self.book: Any = import_module("texturevlm.codebook").load_codebook(recipe.model, device=device)

    @torch.no_grad()
    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        assert chosen.pixels is not None
        pixels = chosen.pixels[: len(images)]
        codes = self.book.encode(pixels.flatten(0, 1).float() / 255).reshape(*pixels.shape[:2], -1)
        table = codes.cpu().numpy().astype(np.int32)
        return [table[image][used[image]] for image in range(len(images))]


def check_codebook() -> None:
    """Codes need a room of the library that may be missing."""
    if find_spec("texturevlm.codebook") is None:
        raise ImportError(
            "corpus: write 'codes' needs texturevlm.codebook with load_codebook, which this version lacks"
        )
    if not hasattr(import_module("texturevlm.codebook"), "load_codebook"):
        raise ImportError("corpus: write 'codes' needs load_codebook of texturevlm.codebook, which this version lacks")


class Nothing:
    """The allocation is enough."""

    keep_texture = False

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        pass

    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        return [np.zeros(0, np.uint8) for _ in images]


class Thumbnails:
    """A small JPEG of the whole image."""

    keep_texture = False

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        pass

    def __call__(self, images: Sequence[Decoded], chosen: Chosen, used: Array) -> list[Array]:
        return [thumbnail(image) for image in images]


def thumbnail(image: Decoded) -> Array:
    """The bytes of a JPEG."""
    small = Image.fromarray(image.pixels)
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return np.frombuffer(file.getvalue(), np.uint8)


PAYLOADS: dict[str, Callable[[Recipe, torch.device], Payload]] = {
    "patches": Patches,
    "features": Features,
    "codes": Codes,
    "allocations": Nothing,
    "thumbnails": Thumbnails,
}
