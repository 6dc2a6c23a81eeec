"""Heat maps beside each other, and nothing of the images they are of: how much each spot is wanted, the best framed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.draw import HEAT, INK, MARGIN, PAPER, ramp_colour

SIDE = 320  # of a map, in pixels
HEADING = 30


def heat_maps(images: Sequence[Mapping[str, Tensor]], tokens: int) -> Image.Image:
    """A row an image, a column a map (h, w), its spots shaded by their rank; the best `tokens` are framed.

    By rank, since two maps may choose alike and differ in how sure they are by orders of magnitude.
    """
    names = list(images[0])
    size = (MARGIN + len(names) * (SIDE + MARGIN), HEADING + len(images) * (SIDE + MARGIN) + MARGIN)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    for column, name in enumerate(names):
        left = MARGIN + column * (SIDE + MARGIN)
        draw.text((left, 8), name, fill=INK, font=ImageFont.load_default(16))
        for row, maps in enumerate(images):
            _draw_map(draw, maps[name], tokens, left, HEADING + row * (SIDE + MARGIN))
    return picture


def _draw_map(draw: ImageDraw.ImageDraw, heat: Tensor, tokens: int, left: int, top: int) -> None:
    rows, columns = heat.shape
    order = heat.flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    for cell, place in enumerate(rank.tolist()):
        y, x = divmod(cell, columns)
        box = [left + SIDE * x // columns, top + SIDE * y // rows]
        box += [left + SIDE * (x + 1) // columns - 1, top + SIDE * (y + 1) // rows - 1]
        colour = ramp_colour(1 - place / max(1, len(order) - 1), HEAT)
        draw.rectangle(box, fill=colour, outline=INK if place < tokens else colour)
