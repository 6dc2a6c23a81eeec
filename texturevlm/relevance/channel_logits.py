"""The logits of the channel scorer: the linear form of all features of each cell.

The specification is `form.logits(cell_features(…))`. On a GPU three kernels (channel_logits.cu) compute the same around
one call of the sampler, and the features never lie in memory.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import THREADS, WARP, launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops import backend as backends
from texturevlm.ops.lookup import lookup
from texturevlm.relevance.channel_features import (
    BLOCKS,
    CONTEXT,
    MOST_REGIONS,
    MOTION_KEY,
    OF_MAPS,
    REGION_KEY,
    cell_features,
    context_levels,
    feature_names,
    known_channels,
)
from texturevlm.relevance.channel_form import ChannelForm
from texturevlm.relevance.maps import ImageMaps
from texturevlm.types import Texture

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
