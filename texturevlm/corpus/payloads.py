"""What a row holds beside its allocation, by name: a function of the tokens of a batch.

To add a payload, write a class like these, and add a line to PAYLOADS and to formats.DTYPES.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from texturevlm.corpus.choose import BatchTokens, DecodedImage
from texturevlm.corpus.formats import Array
from texturevlm.corpus.recipe import Recipe

THUMBNAIL = 256  # pixels along the longer side, at most
QUALITY = 85  # of its JPEG


class Payload:
    """Makes what the rows of a batch hold: nothing, the allocation is enough.

    keep_texture: whether it reads the texture of the batch
    """

    keep_texture = False

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        """Load what all batches need."""

    def __call__(self, images: Sequence[DecodedImage], chosen: BatchTokens, used: Array) -> list[Array]:
        """One array per image; used: (B, K), whether each slot of the allocation holds a token."""
        return [np.zeros(0, np.uint8) for _ in images]


class Patches(Payload):
    """The pixels of the chosen tokens."""

    def __call__(self, images: Sequence[DecodedImage], chosen: BatchTokens, used: Array) -> list[Array]:
        assert chosen.pixels is not None
        pixels = on_host(chosen.pixels[: len(images)])
        # A mask copies, and most images use all their tokens.
        return [pixels[image] if used[image].all() else pixels[image][used[image]] for image in range(len(images))]


def on_host(tensor: Tensor) -> Array:
    """The values of a tensor; from a GPU through pinned memory, which torch keeps for the next batch."""
    if not tensor.is_cuda:
        return tensor.numpy()
    found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    found.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return found.numpy()


class Features(Payload):
    """What a model's vision tower makes of the tokens, with what it passes to deeper layers (DeepStack)."""

    keep_texture = True

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        from texturevlm.ask import load_vlm

        self.adapter = load_vlm(recipe.model, device=device, captured=False).adapter
        if self.adapter.side != recipe.patch:
            raise ValueError(f"corpus: patch must be {self.adapter.side} for {recipe.model}, got {recipe.patch}")

    @torch.no_grad()
    def parts(self, chosen: BatchTokens) -> list[Tensor]:
        """The embeddings of the tokens (B, K, D), then those of each layer of DeepStack."""
        assert chosen.texture is not None
        tokens = self.adapter.encode(chosen.texture, chosen.allocation)
        return [tokens.embeds, *tokens.deepstack]

    def __call__(self, images: Sequence[DecodedImage], chosen: BatchTokens, used: Array) -> list[Array]:
        layers = torch.stack(self.parts(chosen), 2).half().cpu().numpy()
        return [layers[image][used[image]] for image in range(len(images))]


def model_side(model: str) -> int:
    """The side of a model's tokens in samples, from its configuration alone."""
    from texturevlm.ask.processor import TextureProcessor

    return int(TextureProcessor.from_pretrained(model).adapter.side)


class Codes(Features):
    """Features as numbers of a codebook that was fitted to the model."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        from texturevlm.codebook import Codebook

        super().__init__(recipe, device)
        self.book = Codebook.load(recipe.codebook, device=device)
        self.book.check_model("corpus", self.adapter)

    def __call__(self, images: Sequence[DecodedImage], chosen: BatchTokens, used: Array) -> list[Array]:
        from texturevlm.codebook import TokenFeatures

        parts, tokens = self.parts(chosen), chosen.allocation
        rows, level = torch.cat(parts, 2)[tokens.valid].float(), tokens.level[tokens.valid]
        codes = self.book.encode(TokenFeatures(rows, level, len(parts)))
        return np.split(codes.cpu().numpy(), np.cumsum(used.sum(1))[:-1])


class Thumbnails(Payload):
    """A small JPEG of the whole image."""

    def __call__(self, images: Sequence[DecodedImage], chosen: BatchTokens, used: Array) -> list[Array]:
        found = []
        for image in images:
            small, file = Image.fromarray(image.pixels), io.BytesIO()
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            small.save(file, "JPEG", quality=QUALITY)
            found.append(np.frombuffer(file.getvalue(), np.uint8))
        return found


PAYLOADS: dict[str, type[Payload]] = {
    "patches": Patches,
    "features": Features,
    "codes": Codes,
    "allocations": Payload,
    "thumbnails": Thumbnails,
}
