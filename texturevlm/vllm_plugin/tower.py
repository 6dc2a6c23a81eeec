"""What the vision tower of vLLM's Qwen3-VL needs to know of chosen patches: places, and segments of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.vlm import Geometry
from texturevlm.vlm.places import bilinear_taps


def tower_metadata(tower: Any, geometry: Geometry) -> dict[str, Any]:
    """The argument `encoder_metadata` of the tower.

    The tower makes it for grids of the lengths of our segments, so that lengths are as its attention kernel wants them.
    The positions of those grids are replaced by ours.
    """
    merge = tower.spatial_merge_size
    begins = (geometry.begins[:, 0] > 0.5).nonzero()[:, 0].tolist()
    lengths = [end - first for first, end in zip(begins, [*begins[1:], len(geometry.begins)])]
    found: dict[str, Any] = tower.prepare_encoder_metadata([[1, merge, length // merge] for length in lengths])
    cos, sin = rotary_tables(tower.rotary_pos_emb, geometry.patch)
    places = {"pos_embeds": learned_positions(tower, geometry), "rotary_pos_emb_cos": cos, "rotary_pos_emb_sin": sin}
    return found | {name: value.to(found[name]) for name, value in places.items()}


def learned_positions(tower: Any, geometry: Geometry) -> Tensor:
    """(N, D), read between the entries of the tower's table."""
    indices, weights = bilinear_taps(geometry.patch, geometry.extent, tower.num_grid_per_side)
    return functional.embedding_bag(indices, tower.pos_embed.weight.float(), per_sample_weights=weights, mode="sum")


def rotary_tables(rotary: Any, patch: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (N, d) at rows and columns (N, 2) that need not be whole: vLLM's own table has whole ones."""
    frequency: Tensor = rotary._compute_inv_freq(rotary.base).to(patch)
    angle = (patch[:, :, None] * frequency).flatten(1)
    return torch.cos(angle), torch.sin(angle)
