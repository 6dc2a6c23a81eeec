"""The order of a prompt's visual tokens along the quadtree of their places, which are in the packed rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops import quadtree_order
from texturevlm.vlm import Geometry, is_packed, unpack
from texturevlm.vlm.places import PICTURE

# Methods of a model that take packed rows, by which argument; in the order of `visual_ids`.
ROW_INPUTS = {"get_image_features": "pixel_values", "get_video_features": "pixel_values_videos"}
MOMENTS = 4096  # most moments of a video


def visual_order(adapter: Any, ids: Tensor, visual: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
    """(B, n): the visual tokens of each prompt along the quadtree of their places, -1 for none.

    ids:    (B, L). `generate` repeats prompts for beams, so B may be a multiple of what the tower saw
    visual: (B, L), which of them are visual tokens
    rows:   by ROW_INPUTS, what the tower got. Tokens whose places are not in packed rows stay in the order in which
            they stand
    """
    length = ids.shape[1]
    place = torch.stack([torch.zeros_like(ids), torch.arange(length, device=ids.device).expand_as(ids)], -1).double()
    level, picture = torch.zeros(ids.shape, device=ids.device), torch.zeros_like(ids)
    for mark, name in zip(adapter.visual_ids, ROW_INPUTS):
        geometry, count = _geometry(adapter, rows.get(name)), int((ids == mark).sum())
        if geometry is None or not count or count % len(geometry.token):
            continue
        beams = count // len(geometry.token)
        slots = ids[::beams] == mark
        image = (geometry.begins[:, 0] >= PICTURE).long().cumsum(0)
        for values, own in (
            (place, geometry.token),
            (level, token_levels(adapter, rows[name])),
            (picture, image * MOMENTS + geometry.moment[:, 0].long()),
        ):
            for beam in range(beams):
                values[beam::beams][slots] = own.to(values)
    picture = picture.masked_fill(~visual, int(picture.max()) + 1)  # behind all others
    order = quadtree_order(place, level, picture=picture)
    count_of = visual.sum(1)
    order = torch.where(torch.arange(length, device=ids.device) < count_of[:, None], order, -1)
    return order[:, : int(count_of.max())].int()


def _geometry(adapter: Any, rows: Tensor | None) -> Geometry | None:
    """Of the tokens of packed rows; None if they are not packed."""
    if rows is None or not is_packed(rows, adapter.row_width):
        return None
    found = unpack(rows.flatten(0, -2), adapter.row_width)[1]
    live = found.extent[:, 0] > 0
    return Geometry(*(value[live] for value in vars(found).values())).of_tokens(adapter.merge)


def token_levels(adapter: Any, rows: Tensor) -> Tensor:
    """(n,): the level of each token, from the distance of its patches; 0 where a token is one patch."""
    found = unpack(rows.flatten(0, -2), adapter.row_width)[1]
    patch: Tensor = found.patch[found.extent[:, 0] > 0].unflatten(0, (-1, adapter.merge**2))
    if adapter.merge == 1:
        return patch.new_zeros(len(patch))
    return (patch[:, -1] - patch[:, 0]).amax(-1).div(adapter.merge - 1).clamp(min=1).log2()
