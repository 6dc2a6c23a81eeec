"""Batches of images of one size → the chosen tokens and their pixels; on a GPU by one captured graph per bucket.

Images are stretched up to the size of their bucket, by at most one step of its ladder; footprints are given back in the
pixels of the image. With exact buckets nothing is stretched, and the tokens are those of `choose_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.share import as_batch
from texturevlm.corpus.decode import Pixels
from texturevlm.corpus.formats import Array
from texturevlm.corpus.recipe import Recipe
from texturevlm.cuda import BranchingReplay, KeptReplays, Replay, can_capture
from texturevlm.frame import Frame
from texturevlm.ops import bytes_of, planes_of
from texturevlm.placement import choose, place_together, prepare
from texturevlm.placement.captured import no_graph_because, sampled_pixels
from texturevlm.relevance import (
    ImageMaps,
    Prepared,
    Scorer,
    declares,
    find_scorer,
    image_maps,
    reads_question,
)
from texturevlm.scout import Question, encode
from texturevlm.text import terms
from texturevlm.types import COLUMNS, Allocation, Texture

SMALLEST = 32  # side of the lowest step of the ladder
BATCH_PIXELS = 1 << 26  # of a batch: 64 images of 1024²
GRAPHS = 32


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image with what is known of it; pixels: (H, W, 3)."""

    key: str
    digest: str
    pixels: Pixels
    question: str
    more: dict[str, Any]

    @property
    def size(self) -> tuple[int, int]:
        return int(self.pixels.shape[0]), int(self.pixels.shape[1])


class Bucket(NamedTuple):
    """What the images of one batch have in common.

    size:     to which they are stretched
    scorer:   the name of what finds relevance
    question: what is asked of all of them; "" where each may have its own, since the scorer takes them encoded
    """

    size: tuple[int, int]
    scorer: str
    question: str


class BatchTokens(NamedTuple):
    """The tokens of a batch.

    texture:    of the stretched images, if kept
    allocation: in its pixels
    pixels:     (B, K, 3, P, P) uint8, if patches are wanted
    sizes:      of the images themselves, in their order; the batch may be longer
    """

    texture: Texture | None
    allocation: Allocation
    pixels: Tensor | None
    sizes: list[tuple[int, int]]

    def table(self) -> tuple[Array, Array]:
        """Footprints (B, K, 7) in the pixels of each image, and whether each slot is used (B, K)."""
        tokens, count = self.allocation, len(self.sizes)
        frames = [Frame.stretch(tokens.size, size) for size in self.sizes]
        scale = torch.tensor([[frame.across[0], frame.down[1]] for frame in frames])[:, None, None]
        vectors = torch.stack([tokens.centre, tokens.ddx, tokens.ddy], 2)[:count].float().cpu() * scale
        score = tokens.score[:count, :, None].float().cpu()
        return torch.cat([vectors.flatten(2), score], 2).numpy(), tokens.valid[:count].cpu().numpy()


def ladder(side: int, steps: int) -> int:
    """The lowest step of a ladder with so many per octave that is at least `side`; itself without a ladder."""
    if steps == 0 or side <= SMALLEST:
        return side if steps == 0 else SMALLEST
    rung = math.ceil(math.log2(side / SMALLEST) * steps - 1e-9)
    return max(side, round(SMALLEST * 2 ** (rung / steps)))


class Chooser:
    """Chooses and samples the tokens of batches.

    keep_texture: whether the texture is returned as well, for a model or a thumbnail; then nothing is captured
    reason:       why the last batch was not a replay; None if it was
    """

    def __init__(self, recipe: Recipe, device: torch.device, *, keep_texture: bool = False) -> None:
        self.recipe, self.how, self.device, self.keep_texture = recipe, recipe.tokens, device, keep_texture
        self.sampled = recipe.write in ("patches", "codes")
        self.reason: str | None = None
        self._real = 0  # images of a batch, without what fills it up
        self._graphs = can_capture(device) and not keep_texture
        self._kept = KeptReplays(GRAPHS)
        self._staged: dict[Any, Tensor] = {}

    def bucket(self, image: DecodedImage) -> Bucket:
        """What an image has in common with those that share a batch with it."""
        asked = bool(terms(image.question))
        relevance = self.recipe.asked if asked and self.recipe.asked else self.recipe.relevance
        scorer = find_scorer("corpus", relevance, image.question if asked else "")
        if not asked and not declares(scorer, "grades"):
            relevance, scorer = "none", find_scorer("corpus", "none")  # what each scorer does without a question
        height, width = (ladder(side, self.recipe.buckets) for side in image.size)
        named = scorer.name if relevance == "auto" else relevance
        own = not reads_question(scorer) or scorer.name == "scout"
        return Bucket((height, width), named, "" if own else image.question)

    def most(self, size: tuple[int, int]) -> int:
        """How many images of a size a batch has at most."""
        return max(1, min(self.recipe.batch, BATCH_PIXELS // (size[0] * size[1])))

    def __call__(self, bucket: Bucket, images: Sequence[DecodedImage]) -> BatchTokens:
        """The tokens of at most `most` images of one bucket."""
        # A graph is for full batches: more than half of one is filled up, less is not worth it.
        full = self.most(bucket.size)
        count = full if self._graphs and 2 * len(images) >= full else len(images)
        raw, sizes = self._brought(bucket, images, count)
        asked = [image.question for image in images] + [""] * (count - len(images))
        return self.choose(bucket, raw, sizes, asked, [image.size for image in images])

    def choose(
        self, bucket: Bucket, raw: Tensor, sizes: Tensor | None, asked: Sequence[str], own_sizes: list[tuple[int, int]]
    ) -> BatchTokens:
        """The tokens of images that are on the device: bytes (B, H, W, 3).

        sizes: (B, 2), the extents of images that are to be stretched, all of which begin at the upper left
        asked: the question about each
        """
        scorer = find_scorer("corpus", bucket.scorer)
        question = _encoded(asked) if scorer.name == "scout" else []
        inputs = [raw, *([sizes] if sizes is not None else []), *question]
        texture = None
        with torch.no_grad():
            self.reason = self._no_graph_because(raw, scorer, bucket)
            if self.reason is None:
                self._real = len(own_sizes)
                replay = self._replay(scorer, bucket, sizes is not None, inputs)
                made = tuple(part.clone() for part in replay(*inputs))
                self.reason = replay.reason
            else:
                texture, others = self._texels(sizes is not None, inputs)
                made = self._chosen(scorer, bucket, texture, others)
        *columns, pixels = made
        named: Any = dict(zip(COLUMNS, columns, strict=True))
        allocation = Allocation(**named, size=bucket.size, patch=self.how.patch)
        kept = texture if self.keep_texture else None
        return BatchTokens(kept, allocation, pixels if self.sampled else None, own_sizes)

    def _replay(self, scorer: Scorer, bucket: Bucket, stretched: bool, inputs: Sequence[Tensor]) -> Replay:
        """The graph for batches like this. A scorer for pages alone is not run for a batch of photographs."""
        key = (bucket.size, bucket.scorer, len(inputs[0]), stretched)
        if not declares(scorer, "pages_only"):
            return self._kept.find(key, partial(self.parts, scorer, bucket, stretched), inputs)
        then: Any = {"which": self._only_photographs, "then": partial(self._chosen_by_maps, scorer, bucket)}
        return self._kept.find(key, partial(self._maps, stretched), inputs, partial(BranchingReplay, **then))

    def parts(self, scorer: Scorer, bucket: Bucket, stretched: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What a graph captures: bytes of images → the columns of their allocation and the bytes of their patches."""
        return self._chosen(scorer, bucket, *self._texels(stretched, inputs))

    def _maps(self, stretched: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Bytes of images → the levels of their texture, and their maps."""
        texture, _ = self._texels(stretched, inputs)
        return *texture.levels, *(part for part in image_maps(texture, patch=self.how.patch) if part is not None)

    def _only_photographs(self, *made: Tensor) -> bool:
        """Whether all images are photographs; what only fills the batch up does not count."""
        return bool(made[-1][: self._real].all())

    def _chosen_by_maps(self, scorer: Scorer, bucket: Bucket, photographs: bool, *made: Tensor) -> tuple[Tensor, ...]:
        """The same as `_chosen` from what `_maps` made."""
        texture, maps = Texture(made[: -len(ImageMaps._fields)]), ImageMaps(*made[-len(ImageMaps._fields) :])
        memo = Prepared(texture, patch=self.how.patch, scorer="none" if photographs else scorer)
        memo.maps = maps
        return self._sampled(texture, choose(texture, bucket.question, self.how, memo)[1])

    def _chosen(self, scorer: Scorer, bucket: Bucket, texture: Texture, asked: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The columns of the allocation and the bytes of the patches; asked: the questions, encoded, if there are."""
        if self.how.turn == 0:
            question = Question(*asked) if asked else bucket.question
            return self._sampled(texture, choose(texture, question, self.how, scorer)[1])
        how, found = self.how.given(relevance=scorer), []
        for number, image in enumerate(texture.split()):  # each in an upright picture of its own
            own = Question(*(part[number : number + 1] for part in asked)) if asked else bucket.question
            found.append(place_together([prepare(image, how)], own, how)[0].given)
        return self._sampled(texture, as_batch(found))

    def _sampled(self, texture: Texture, allocation: Allocation) -> tuple[Tensor, ...]:
        """The columns of an allocation, and the bytes of its patches, if they are wanted."""
        pixels = (
            bytes_of(sampled_pixels(texture, allocation)) if self.sampled else torch.empty(0, device=texture.device)
        )
        return *(getattr(allocation, name) for name in COLUMNS), pixels

    def _texels(self, stretched: bool, inputs: Sequence[Tensor]) -> tuple[Texture, Sequence[Tensor]]:
        """Bytes (B, H, W, 3) → a texture with its levels; and the other inputs."""
        raw, *others = inputs
        image = planes_of(raw)
        if stretched:
            image, others = stretch(image, others[0]), others[1:]
        return Texture((image,)).mipmapped(), others

    def _brought(self, bucket: Bucket, images: Sequence[DecodedImage], count: int) -> tuple[Tensor, Tensor | None]:
        """The images as one batch of bytes on the device, and their sizes (B, 2) where they are to be stretched."""
        height, width = bucket.size
        cuda = self.device.type == "cuda"
        # Pinned memory is used again when the GPU has read it: the caller waits for the results of a batch before it
        # brings the next one.
        key = (height, width, count)
        staged = self._staged.get(key)
        if staged is None:
            if len(self._staged) >= GRAPHS:
                self._staged.clear()
            staged = torch.zeros(count, height, width, 3, dtype=torch.uint8, pin_memory=cuda)
            if cuda:
                self._staged[key] = staged
        for place, image in enumerate(images):
            staged[place, : image.size[0], : image.size[1]] = torch.from_numpy(image.pixels)
        raw = staged.to(self.device, non_blocking=True)
        if all(image.size == bucket.size for image in images) and self.recipe.buckets == 0:
            return raw, None
        sizes = [image.size for image in images] + [bucket.size] * (count - len(images))
        return raw, torch.tensor(sizes, dtype=torch.float32).to(self.device)

    def _no_graph_because(self, raw: Tensor, scorer: Scorer, bucket: Bucket) -> str | None:
        """Why a batch is not chosen by a graph; None if it is."""
        if self.keep_texture:
            return "a model or a thumbnail reads the texture"
        if can_capture(raw.device) and len(raw) < self.most(bucket.size):
            return "less than half a batch"
        if bucket.question:
            return "the question is read on the CPU, and a graph would go on answering the first one"
        like = torch.empty((1, 1, 1, 1), device=raw.device).expand(1, 3, *raw.shape[1:3])
        return no_graph_because(like, scorer, self.how)


def _encoded(asked: Sequence[str]) -> list[Tensor]:
    """Questions as the scout takes them, on the host; the same question about many images is encoded once."""
    places = {question: place for place, question in enumerate(dict.fromkeys(asked))}
    found = encode(list(places))
    return (
        list(found) if len(places) == len(asked) else [part[[places[question] for question in asked]] for part in found]
    )


def stretch(image: Tensor, sizes: Tensor) -> Tensor:
    """Stretch the upper left part of each image (B, C, H, W) to all of it, bilinearly; sizes: (B, 2), its extent."""
    height, width = image.shape[2:]
    grid = []
    for side, own in ((width, sizes[:, 1]), (height, sizes[:, 0])):
        centres = (torch.arange(side, device=image.device) + 0.5) / side
        place = (centres[None] * own[:, None]).clamp(min=0.5).minimum(own[:, None] - 0.5)
        grid.append(place * (2 / side) - 1)
    x, y = grid[0][:, None, :].expand(-1, height, -1), grid[1][:, :, None].expand(-1, -1, width)
    return functional.grid_sample(image, torch.stack([x, y], -1), align_corners=False, padding_mode="border")


def allocation_from(footprints: Tensor, size: tuple[int, int], patch: int) -> Allocation:
    """The allocation of one image from a row's footprints (n, 7), with as many slots."""
    centre, ddx, ddy, score = footprints[None].split([2, 2, 2, 1], -1)
    valid = torch.ones(score.shape[:2], dtype=torch.bool)
    return Allocation(centre, ddx, ddy, score[..., 0], valid, valid.long() * 0, size=size, patch=patch)
