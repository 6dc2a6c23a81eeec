"""Positions of the language model for chosen tokens: time, row and column (M-RoPE), computed inside the model.

Text counts upwards. A visual token stands at its row and column from the start of its picture, and the text behind a
picture resumes where it would resume behind the full image, so that it does not depend on the number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from texturevlm.vlm.packed import PICTURE, Geometry


def mrope_positions(input_ids: Tensor, mask: Tensor | None, tokens: Mapping[int, Geometry]) -> tuple[Tensor, Tensor]:
    """Positions (3, B, L), whole numbers where all of them are, and the offset (B, 1) of the text that will follow.

    mask:   (B, L), 0 for padding, on either side
    tokens: for each placeholder id, the geometry of its visual tokens, in the order of the placeholders
    """
    live = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    advance = live.float()
    place = advance.new_zeros(3, *input_ids.shape)
    for mark, geometry in tokens.items():
        where = (input_ids == mark) & live.bool()
        count = int(where.sum())
        if count != len(geometry.token):
            raise ValueError(
                f"input_ids must have one placeholder per visual token ({len(geometry.token)}), got {count}"
            )
        opens = (geometry.begins[:, 0] >= PICTURE).float()
        extent = geometry.grid.amax(1)
        advance[where] = opens * extent
        # Behind the first token of a picture the count has already gone on by the extent of the picture.
        offset = torch.cat([geometry.moment, geometry.token], 1) - ((1 - opens) * extent)[:, None]
        place[:, where] = offset.T
    place += advance.cumsum(1) - advance
    place *= live
    delta = (advance.sum(1) - live.sum(1)).round().long()[:, None]
    whole = place.round()
    return (whole.long() if torch.equal(place, whole) else place), delta
