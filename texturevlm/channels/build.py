"""image → a Texture of named layers, built once per image and used for every question."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from texturevlm.channels.embedding import DenseEncoder, Projection, embed
from texturevlm.channels.fused import CLUSTERS, REGIONS, build_layers
from texturevlm.channels.registry import CHANNELS, EDGE_DISTANCE_LIMIT, EMBEDDING_LAYERS, resolve
from texturevlm.channels.segments import Segmenter, sam_regions
from texturevlm.channels.structure import centre_surround
from texturevlm.channels.text import text_map, text_map_ocr
from texturevlm.check import check_choice, check_count
from texturevlm.ops import backend as backends
from texturevlm.ops import distance_field, level_extents, mipmap, region_statistics, seed_grid, superpixels
from texturevlm.types import COLOURS, Texture, check_texture

MOST_TEXELS = 1 << 22  # of the base level by default: 40 float layers of it take 670 MB, 890 with mips
EDGE_THRESHOLD = 0.3  # finds strokes that differ by ten grey steps from their background
_GIVEN = ("relevance", "fixations", "attention", "gaze")
_MAPS = {name: row.needs for name, row in CHANNELS.items() if row.needs in _GIVEN}


def build(
    texture: Texture,
    channels: str | Sequence[str] = "fast",
    *,
    previous: Texture | None = None,
    relevance: Tensor | None = None,
    fixations: Tensor | None = None,
    attention: Tensor | None = None,
    gaze: Tensor | None = None,
    encoder: DenseEncoder | None = None,
    projection: Projection | None = None,
    segmenter: Segmenter | None = None,
    text: str = "strokes",
    base: int | None = None,
    backend: str = "auto",
) -> Texture:
    """Build the named layers of an image, with mips.

    texture:    red, green and blue, or grey; one image or a batch
    channels:   a preset (mvp, fast, all) or a list of names (`texturevlm.channels.CHANNELS`)
    previous:   the last frame's texture from `build`: for motion its red, green and blue, for previous_saliency and
                previous_attention its saliency and attention. They are not warped: a caller that knows the motion warps
                them first
    relevance, fixations, attention, gaze: (B, h, w) maps of any extent, 0 to 1; NaN counts as 0
    encoder, projection: a DenseEncoder and what `texturevlm fit-pca` saved, for the embedding layers
    segmenter:  a SAM model to make regions with, instead of superpixels
    text:       strokes (no model) or ocr (RapidOCR's detector, extra `ocr`)
    base:       the image level that the layers start at; by default the finest with at most 4 million texels
    backend:    cuda (our kernels, without gradients) or reference (PyTorch)
    returns     a Texture of exactly those layers, in order. A layer whose input was not given is zero. An embedding
                layer that is asked for by name needs a model
    """
    names = resolve(channels)
    check_choice("build", "text", text, ("strokes", "ocr"))
    reduce, deepest, embeddings = _declared(names)
    missing = embeddings if encoder is None or projection is None else ()
    if missing and channels != "all":
        raise ValueError(
            f"build: channels asks for {missing[0]}, which needs encoder=DenseEncoder.load(model) and "
            "projection=Projection.load(file); `texturevlm fit-pca` makes the file"
        )
    if missing:
        warnings.warn("build: the embedding layers are zero, since no encoder and projection were given", stacklevel=2)
    levels = _colour(texture, base, deepest, backend)
    given = {"relevance": relevance, "fixations": fixations, "attention": attention, "gaze": gaze}
    operations = "reference" if backend == "reference" else "auto"
    before = _checked_previous(previous, levels[0])
    source = Source(levels, before, given, encoder, projection, segmenter, text, operations)
    if backends.choose("build", levels[0], backend, _no_kernel_because(levels[0])) == "cuda":
        layers = build_layers(
            levels,
            names,
            previous=previous,
            unknown=source.unknown,
            elsewhere=(CLUSTERS if segmenter is not None else ()) + (("text",) if text == "ocr" else ()),
            layer=source.layer,
        )
    else:
        layers = torch.stack([source.layer(name) for name in names], 1)
    return Texture(tuple(mipmap(layers, reduce=reduce, backend=source.backend)), names, texture.size, reduce)


@lru_cache(maxsize=64)
def _declared(names: tuple[str, ...]) -> tuple[tuple[str, ...], int, tuple[str, ...]]:
    """The layers' reductions, the coarsest level of colour that one of them needs, and which are embeddings."""
    rows = [CHANNELS[name] for name in names]
    embeddings = tuple(name for name in names if name in EMBEDDING_LAYERS)
    return tuple(row.reduce for row in rows), max(row.deepest for row in rows), embeddings


def _no_kernel_because(image: Tensor) -> str | None:
    if torch.is_grad_enabled() and image.requires_grad:
        return "the kernels have no gradients"
    height, width = image.shape[2:]
    return f"the kernels take fewer than 2³¹ texels, not {height} × {width}" if height * width >= 1 << 31 else None


def _colour(texture: Texture, base: int | None, deepest: int, backend: str) -> list[Tensor]:
    """Red, green and blue from the base level on, down to `deepest` levels above it, float32."""
    check_texture("build", texture)
    if not set(COLOURS) <= set(texture.names) and texture.names != ("grey",):
        raise ValueError(f"build: texture must hold red, green and blue, or grey, got {', '.join(texture.names)}")
    extents = level_extents(*texture.levels[0].shape[2:])
    if base is None:
        base = next(i for i, (height, width) in enumerate(extents) if height * width <= MOST_TEXELS)
    check_count("build", "base", base, 0, len(extents) - 1)
    count = min(base + deepest + 1, len(extents))
    image = texture.levels[0]
    if texture.names == COLOURS and set(texture.reduce) == {"mean"} and image.dtype == torch.float32:
        if len(texture.levels) >= count:
            return list(texture.levels[base:count])
    else:
        names = COLOURS if texture.names != ("grey",) else ("grey",) * 3
        image = torch.stack([texture.channel(name).float() for name in names], 1)
    return mipmap(image, levels=count, backend="reference" if backend == "reference" else "auto")[base:]


def _checked_previous(previous: Texture | None, image: Tensor) -> Texture | None:
    if previous is None:
        return None
    if not isinstance(previous, Texture):
        raise TypeError(f"build: previous must be a Texture from build, got {type(previous).__name__}")
    wanted, got = tuple(image.shape[2:]), tuple(previous.levels[0].shape[2:])
    if got != wanted:
        raise ValueError(f"build: previous must start at {wanted} like this image, got {got}")
    if previous.batch != len(image):
        raise ValueError(f"build: previous must hold {len(image)} images like texture, got {previous.batch}")
    return previous


@dataclass(eq=False)
class Source:
    """The inputs of one build, and intermediate results that several layers share."""

    levels: Sequence[Tensor]
    previous: Texture | None
    given: dict[str, Tensor | None]
    encoder: DenseEncoder | None
    projection: Projection | None
    segmenter: Segmenter | None
    text: str
    backend: str  # of the operations

    def __post_init__(self) -> None:
        self.image = self.levels[0]
        self.batch, _, self.height, self.width = self.image.shape

    @property
    def unknown(self) -> frozenset[str]:
        """The layers whose input was not given."""
        before = None if self.previous is None else self.previous.names
        maps = tuple([name for name, argument in _MAPS.items() if self.given[argument] is None])
        return _unknown(maps, before, self.encoder is None or self.projection is None)

    def layer(self, name: str) -> Tensor:
        """(B, H, W), within the channel's range."""
        return CHANNELS[name].make(self)

    @property
    def nothing(self) -> Tensor:
        return self.image.new_zeros(self.batch, self.height, self.width)

    def map(self, name: str) -> Tensor:
        """A map that the caller gave, at this extent."""
        given = self.given[name]
        if given is None:
            return self.nothing
        if not isinstance(given, Tensor):
            raise TypeError(f"build: {name} must be a tensor ({self.batch}, h, w), got {type(given).__name__}")
        if given.dim() != 3 or given.shape[0] != self.batch or given.numel() == 0:
            raise ValueError(f"build: {name} must be ({self.batch}, h, w), got {tuple(given.shape)}")
        known = given.to(self.image).nan_to_num(0.0)[:, None]
        resized = F.interpolate(known, (self.height, self.width), mode="bilinear")
        return resized[:, 0].clamp(0, 1)

    def before(self, name: str) -> Tensor:
        """A layer of the previous texture; zero if there is none."""
        if self.previous is None or name not in self.previous.names:
            return self.nothing
        return self.previous.channel(name).to(self.image)

    @cached_property
    def polarity(self) -> Tensor:
        """Dark on light above 0, light on dark below."""
        return centre_surround(self.image)

    def motion(self) -> Tensor:
        if "motion" in self.unknown:
            return self.nothing
        before = torch.stack([self.before(name) for name in COLOURS], 1)
        return (self.image - before).abs().amax(1).clamp(max=1)

    def eccentricity(self) -> Tensor:
        x, y = self.position(-1) * 2 - 1, self.position(-2) * 2 - 1
        return torch.hypot(x * self.width, y * self.height) / math.hypot(self.width, self.height)

    def position(self, axis: int) -> Tensor:
        extent = self.width if axis == -1 else self.height
        at = (torch.arange(extent, device=self.image.device, dtype=self.image.dtype) + 0.5) / extent
        return (at if axis == -1 else at[:, None]).expand(self.batch, self.height, self.width)

    def edge_distance(self) -> Tensor:
        field = distance_field(self.polarity.abs() > EDGE_THRESHOLD, backend=self.backend)
        return field.clamp(max=EDGE_DISTANCE_LIMIT) / EDGE_DISTANCE_LIMIT

    @cached_property
    def regions(self) -> Tensor:
        """(B, H, W) int32."""
        if self.segmenter is not None:
            return sam_regions(self.image, self.segmenter)
        return superpixels(self.image, count=REGIONS, backend=self.backend)

    @cached_property
    def region_facts(self) -> tuple[Tensor, Tensor]:
        """Each pixel's region's share (B, H, W), and its distance from the region's centroid in longer sides."""
        rows, columns = seed_grid(self.height, self.width, REGIONS)
        count = rows * columns if self.segmenter is None else int(self.regions.max()) + 1
        share, centroid = region_statistics(self.regions, count, backend=self.backend)
        index = self.regions.flatten(1).long()
        shares = share.gather(1, index).view_as(self.regions)
        at = centroid.gather(1, index[..., None].expand(-1, -1, 2)).view(*self.regions.shape, 2)
        x, y = self.position(-1) * self.width - at[..., 0], self.position(-2) * self.height - at[..., 1]
        return shares, (torch.hypot(x, y) / max(self.height, self.width)).clamp(max=1)

    def text_layer(self) -> Tensor:
        return text_map_ocr(self.image) if self.text == "ocr" else text_map(self.image, self.levels)

    @cached_property
    def embedding(self) -> Tensor:
        """(B, 16, H, W)."""
        if self.encoder is None or self.projection is None:
            return self.image.new_zeros(self.batch, len(EMBEDDING_LAYERS), self.height, self.width)
        return embed(self.image, self.encoder, self.projection, size=(self.height, self.width)).to(self.image)


@lru_cache(maxsize=64)
def _unknown(maps: tuple[str, ...], before: tuple[str, ...] | None, no_model: bool) -> frozenset[str]:
    """maps: the layers whose map was not given; before: the names of the last frame's layers, if it was given."""
    needed = {"motion": COLOURS, "previous_saliency": ("saliency",), "previous_attention": ("attention",)}
    temporal = [name for name, wanted in needed.items() if not set(wanted) <= set(before or ())]
    return frozenset({*maps, *(EMBEDDING_LAYERS if no_model else ()), *temporal})
