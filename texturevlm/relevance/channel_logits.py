"""What the channels say of each cell: a linear form, per kind of image, of every channel fetched at the cell.

Channels are fetched by one call of the sampler. A block says where one is read: here (the cell), around and wide (the
same place, two and four mip levels coarser), region (the mean over the cell's region, which `cluster_id` names),
squared (here, squared). Motion counts as far as the rest of the image stands still: where the camera moves, it says
nothing about what matters.

The weights are trained, or stated where nothing can train. `texturevlm train examples/train/channels.toml` makes the
file in the package. Channels that no training image has (a gaze, a previous frame) keep the weights of PRIOR.

`form.logits(cell_features(…))` is the specification of `channel_logits`. On a GPU three kernels (channel_logits.cu)
compute the same around one call of the sampler, and the features never lie in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.channels import CHANNELS, build
from texturevlm.cuda import THREADS, WARP, Layout, constants, device_constant, launch
from texturevlm.ops import backend as backends
from texturevlm.ops import level_extents, lookup
from texturevlm.relevance.maps import ImageMaps
from texturevlm.scout import read_weights
from texturevlm.types import COLOURS, Texture

REGION_KEY = "cluster_id"  # labels: they say which cells belong together, and have no weight of their own
MOTION_KEY = "motion"
CONTEXT = {"here": 0, "around": 2, "wide": 4}  # block → levels above the cells'
BLOCKS = (*CONTEXT, "region", "squared")
WEIGHED = tuple(name for name in CHANNELS if name != REGION_KEY)
OF_MAPS = ("salience", "legible_scale", "ink")  # what is known of the cells without channels
MOST_CHANNEL_TEXELS = 1 << 20  # of the finest level that channels are built at: cells are coarser anyway
# A static number, so that a graph can capture the sums; superpixels are about 50, SAM's some 100.
(MOST_REGIONS,) = constants("channel_logits.cu", "MOST_REGIONS")
FLOOR = 0.01  # of a density, where the mean is 1: its logarithm stays finite
SCALES = (0.25, 64.0)  # of legible scales, pixels
MOVING = 0.05  # motion from which a cell counts as moving: 13 of 255 steps
ALL_MOVES = 0.25  # share of moving cells from which all of an image moves


def feature_names(channels: Sequence[str]) -> tuple[str, ...]:
    """Names of the features of these channels, in order: block.channel, then the cells' own."""
    return (*(f"{block}.{name}" for block in BLOCKS for name in channels), *OF_MAPS)


# Those that any image has, so that they can be trained.
CHANNEL_FEATURES = feature_names([name for name in WEIGHED if not CHANNELS[name].needs])


def channel_layers(texture: Texture, known: Texture | None = None, **given: Any) -> Texture:
    """The channels of images, with mips; those whose input was not given are left out.

    known: channels of the same images that are there already, with mips; the others are built
    given: as `build_channels` takes it. A texture that holds channels already is returned as it is
    """
    if not is_plain(texture):
        if maps := given.keys() - {"encoder", "projection"}:
            named = ", ".join(sorted(maps))
            raise ValueError(f"ChannelScorer: texture must hold colours alone where {named} is given, got {texture}")
        known_channels(texture)
        return texture.mipmapped()
    names = [name for name, channel in CHANNELS.items() if not channel.needs or channel.needs in given]
    extents = enumerate(level_extents(*texture.size))
    base = next(level for level, (height, width) in extents if height * width <= MOST_CHANNEL_TEXELS)
    if known is None:
        return build(texture, names, base=base, **given)
    base = max(base, level_extents(*texture.size).index((known.levels[0].shape[2], known.levels[0].shape[3])))
    extent = level_extents(*texture.size)[base]
    kept = [level for level in known.levels if level.shape[2] <= extent[0] and level.shape[3] <= extent[1]]
    missing = [name for name in names if name not in known.names]
    if not missing:
        return Texture(tuple(kept), known.names, texture.size, known.reduce)
    made = build(texture, missing, base=base, **given)
    levels = tuple(torch.cat(pair, 1) for pair in zip(kept, made.levels))
    return Texture(levels, (*known.names, *made.names), texture.size, (*known.reduce, *made.reduce))


def known_channels(layers: Texture) -> tuple[str, ...]:
    """The channels with weights that a texture holds; those that an image alone gives must be there."""
    held = set(layers.names)
    for name, channel in CHANNELS.items():
        if name not in held and not channel.needs:
            raise ValueError(
                f"ChannelScorer: texture must hold the colours alone, or every channel that needs no other input, "
                f"lacks {name!r}; build_channels(texture, 'all') makes them"
            )
    return tuple(name for name in WEIGHED if name in held)


def is_plain(texture: Texture) -> bool:
    """Whether a texture holds no channel but colours."""
    return not (set(texture.names) & set(CHANNELS)) - set(COLOURS)


def cell_features(layers: Texture, maps: ImageMaps) -> Tensor:
    """All features of all cells.

    layers: channels with mips, from any level on
    maps:   of the same images
    returns (B, h · w, F), in the order of `feature_names(known_channels(layers))`
    """
    names = known_channels(layers)
    rows, columns = maps.grid
    count = rows * columns
    height, width = layers.levels[0].shape[2:]
    down, across = (torch.arange(extent, device=layers.device) + 0.5 for extent in (rows, columns))
    y, x = torch.meshgrid(down * (height / rows), across * (width / columns), indexing="ij")
    points = torch.stack([x, y], -1).view(1, count, 2).repeat(layers.batch, len(CONTEXT), 1)
    lod = device_constant(context_levels(layers, maps), torch.float32, layers.device)
    lod = lod.repeat_interleave(count).expand(layers.batch, -1).contiguous()
    found = lookup([level.float() for level in layers.levels], points, lod, nearest=layers.nearest)
    regions = found[:, :count, layers.names.index(REGION_KEY)].round().long()
    picked = device_constant([layers.names.index(name) for name in names], torch.int64, layers.device)
    contexts = found.index_select(2, picked).view(layers.batch, len(CONTEXT), count, len(names)).unbind(1)
    here = contexts[0]
    blocks = [*contexts, _region_means(here, regions), here.square(), _of_maps(maps)]
    if MOTION_KEY in names:
        place = names.index(MOTION_KEY)
        own = _own_motion(here[..., place])[..., None]
        blocks[0] = torch.cat([here[..., :place], own, here[..., place + 1 :]], -1)
    return torch.cat(blocks, -1)


def context_levels(layers: Texture, maps: ImageMaps) -> list[float]:
    """The mip level of `layers` at which each block of CONTEXT is read."""
    level = max(0.0, float(round(math.log2(layers.levels[0].shape[3] / maps.grid[1]))))
    return [level + above for above in CONTEXT.values()]


def _own_motion(motion: Tensor) -> Tensor:
    """(B, N): motion, less the larger the share of cells that move."""
    moving = (motion > MOVING).to(motion).mean(1, keepdim=True)
    return motion * (1 - moving / ALL_MOVES).clamp(min=0)


def _region_means(values: Tensor, regions: Tensor) -> Tensor:
    """The mean of values (B, N, C) over the cells of each cell's region (B, N)."""
    index = regions.clamp(0, MOST_REGIONS - 1)[..., None].expand_as(values)
    sums = values.new_zeros(len(values), MOST_REGIONS, values.shape[2])
    counts = torch.zeros_like(sums).scatter_add_(1, index, torch.ones_like(values))
    return (sums.scatter_add_(1, index, values) / counts.clamp(min=1)).gather(1, index)


def _of_maps(maps: ImageMaps) -> Tensor:
    """(B, N, 3): logarithms of salience, whose mean is 1, and of the legible scale; ink."""
    count = maps.salience[0].numel()
    parts = [log_density(maps.salience * count), maps.legible_scale.clamp(*SCALES).log2(), maps.ink.float()]
    return torch.stack([part.flatten(1).float() for part in parts], -1)


def log_density(density: Tensor) -> Tensor:
    """The logarithm of a density whose mean is 1, finite at 0."""
    return (density + FLOOR).log()


IMAGE_KINDS = ("page", "photograph", "chart")
# Weights of the logarithm of relevance that no data taught: a channel of 1 makes a cell exp(weight) times as relevant.
PRIOR = {
    "gaze": 5.0,  # a person looked there: it outweighs what the image suggests
    "attention": 4.0,
    "previous_attention": 1.0,  # one pass old
    "previous_relevance": 2.0,
    "previous_saliency": 0.5,
    "motion": 3.0,
    "fixation_history": -1.0,  # what was seen needs no second look
}
_SHIPPED = "channels.safetensors"


class ChannelForm(nn.Module):
    """logit of a cell = Σ weight · (feature − mean) / spread, per kind of image, plus PRIOR.

    weight: (kinds, features); mean and spread: of the training cells; digest: of the names of channels and features
    """

    weight: Tensor
    mean: Tensor
    spread: Tensor
    digest: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = len(IMAGE_KINDS), len(CHANNEL_FEATURES)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("spread", torch.ones(shape))
        self.register_buffer("digest", registry_digest())
        with torch.no_grad():
            self.weight[:, CHANNEL_FEATURES.index("salience")] = 1.0  # untrained, it is salience

    def terms(self, features: Tensor, names: Sequence[str], kind: Tensor) -> dict[str, Tensor]:
        """What each channel adds to the logits: name → (B, N).

        features: (B, N, F), in the order of names; kind: (B,), indices of IMAGE_KINDS
        """
        parts = (self.weight / self.spread, self.weight * self.mean / self.spread)
        slope, shift = (part.to(features.device) for part in parts)  # the form itself stays where it is
        found: dict[str, Tensor] = {}
        for name, values in zip(names, features.unbind(-1)):
            block, _, channel = name.rpartition(".")
            if name in _INDEX:
                index = _INDEX[name]
                part = slope[kind, index, None] * values - shift[kind, index, None]
            elif block == "here" and channel in PRIOR:
                part = PRIOR[channel] * values
            else:
                continue
            found[channel] = found[channel] + part if channel in found else part
        return found

    def logits(self, features: Tensor, names: tuple[str, ...], kind: Tensor) -> Tensor:
        """(B, N): the sum of `terms`, by one product; nothing waits for a GPU, and a graph can capture it."""
        table = _product(self, names, features.device)[kind]  # (B, F + 1)
        return (features @ table[:, :-1, None])[..., 0] + table[:, -1:]

    def table(self, names: Sequence[str]) -> Tensor:
        """(kinds, F + 1) on the CPU: what each feature is multiplied by, and what is added at the end."""
        weight, mean, spread = (part.detach().cpu() for part in (self.weight, self.mean, self.spread))
        slope, shift = weight / spread, weight * mean / spread
        table = torch.zeros(len(IMAGE_KINDS), len(names) + 1)
        for column, name in enumerate(names):
            block, _, channel = name.rpartition(".")
            if name in _INDEX:
                table[:, column] = slope[:, _INDEX[name]]
                table[:, -1] -= shift[:, _INDEX[name]]
            elif block == "here" and channel in PRIOR:
                table[:, column] = PRIOR[channel]
        return table

    def forward(self, features: Tensor, kind: int) -> Tensor:
        """(…, F) → (…): the logits of cells of images of one kind, by the features that any image has."""
        return ((features - self.mean[kind]) / self.spread[kind]) @ self.weight[kind]


_INDEX = {name: index for index, name in enumerate(CHANNEL_FEATURES)}


@lru_cache(maxsize=None)  # never dropped: graphs read it at every replay
def _product(form: ChannelForm, names: tuple[str, ...], device: torch.device) -> Tensor:
    return form.table(names).to(device)


def registry_digest() -> Tensor:
    """16 numbers that change with the names, the number or the order of channels and features."""
    named = hashlib.blake2b("/".join((*IMAGE_KINDS, *CHANNELS, *CHANNEL_FEATURES)).encode(), digest_size=16).digest()
    return torch.tensor(list(named), dtype=torch.float32)


def load_form(path: Path | str | None = None) -> ChannelForm:
    """The weights in the package, or those of a file: of a run of `texturevlm train`, or of `ship-channels`."""
    return _loaded(str(path or files("texturevlm.relevance").joinpath(_SHIPPED)))


@lru_cache(maxsize=8)
def _loaded(path: str) -> ChannelForm:
    tensors = read_weights(path, function="ChannelScorer")
    form = ChannelForm()
    wanted = form.state_dict()
    digest = tensors.get("digest")
    if set(tensors) != set(wanted) or digest is None or not torch.equal(digest.float(), wanted["digest"]):
        raise ValueError(
            f"ChannelScorer: {path} must hold weights for this version's {len(CHANNEL_FEATURES)} features of channels, "
            "and holds others; train them with texturevlm train examples/train/channels.toml"
        )
    form.load_state_dict(tensors)
    return form.requires_grad_(False).eval()


_CELLS = Layout("channel_logits.cu", "Cells")
(COUNTERS,) = constants("channel_logits.cu", "COUNTERS")


def channel_logits(
    form: ChannelForm, layers: Texture, maps: ImageMaps, kind: Tensor, *, backend: str = "auto"
) -> Tensor:
    """(B, h · w): what `form` gives each cell.

    layers: channels with mips, as for `cell_features`
    kind:   (B,), indices of IMAGE_KINDS
    backend: auto, reference or cuda
    """
    names = known_channels(layers)
    if backends.choose("channel_logits", layers.levels[0], backend) == "cuda":
        return _logits_cuda(form, layers, maps, kind)
    return form.logits(cell_features(layers, maps), feature_names(names), kind)


def _logits_cuda(form: ChannelForm, layers: Texture, maps: ImageMaps, kind: Tensor) -> Tensor:
    rows, columns = maps.grid
    batch, count, device = layers.batch, rows * columns, layers.device
    height, width = layers.levels[0].shape[2:]
    points = torch.empty((batch, len(CONTEXT) * count, 2), device=device)
    lod, logits = torch.empty(points.shape[:2], device=device), torch.empty((batch, count), device=device)
    # Per region two for a sum and one for a count, and the counters of moving cells.
    zeros = torch.zeros(batch * (3 * MOST_REGIONS + COUNTERS), dtype=torch.int32, device=device)
    counts, moving = zeros[2 * batch * MOST_REGIONS :], zeros[3 * batch * MOST_REGIONS :]
    salience, legible_scale = maps.salience.float().contiguous(), maps.legible_scale.float().contiguous()
    ink, kind = maps.ink.contiguous(), kind.contiguous()
    fields = {
        "points": points, "lod": lod, "weights": _weights(form, tuple(layers.names), device), "salience": salience,
        "legible_scale": legible_scale, "ink": ink, "kind": kind, "logits": logits, "sums": zeros, "counts": counts,
        "regions": torch.empty((batch, count), dtype=torch.int16, device=device), "batch": batch, "rows": rows,
        "columns": columns, "channels": len(layers.names), "labels": layers.names.index(REGION_KEY),
        "moving": moving, "motion": layers.names.index(MOTION_KEY) if MOTION_KEY in layers.names else -1,
        "height": height, "width": width, "level": context_levels(layers, maps),
    }  # fmt: skip
    source, parameters = "channel_logits.cu", _CELLS.pack(values=None, **fields)
    launch(source, "channel_points", device, -(-lod.numel() // THREADS), parameters)
    values = lookup([level.float() for level in layers.levels], points, lod, nearest=layers.nearest)
    parameters = _CELLS.pack(values=values, **fields)
    launch(source, "channel_sums", device, -(-batch * count * WARP // THREADS), parameters)
    launch(source, "channel_means", device, -(-batch * count // THREADS), parameters)
    return logits


@lru_cache(maxsize=None)  # never dropped: graphs read it at every replay
def _weights(form: ChannelForm, layers: tuple[str, ...], device: torch.device) -> Tensor:
    """(kinds, F'): the weights of `form` for every layer of a texture, 0 where a layer has none."""
    weighed = [index for index, name in enumerate(layers) if name != REGION_KEY]
    table = form.table(feature_names([layers[index] for index in weighed]))
    of_blocks, rest = table[:, : -len(OF_MAPS) - 1], table[:, -len(OF_MAPS) - 1 :]
    blocks = table.new_zeros(len(table), len(BLOCKS), len(layers))
    blocks[..., weighed] = of_blocks.unflatten(1, (len(BLOCKS), -1))
    return torch.cat([blocks.flatten(1), rest], 1).to(device)
