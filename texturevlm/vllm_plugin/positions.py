"""Positions of the language model (M-RoPE) for a prompt of vLLM, in which some pictures are chosen tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from texturevlm.vlm import Geometry
from texturevlm.vlm.places import PICTURE, mrope_positions

VISUAL = 1  # marks a visual token; vLLM says where they are, so that the ids of a prompt need not be trusted


def whole_grid(rows: int, columns: int) -> Geometry:
    """The tokens of an ordinary picture, as the model's own processor cuts it."""
    place = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns))).reshape(-1, 2)
    grid = torch.tensor([[float(rows), float(columns)]]).expand_as(place)
    begins = torch.zeros(len(place), 1)
    begins[0] = PICTURE
    return Geometry(patch=place, extent=grid, token=place, grid=grid, moment=torch.zeros_like(begins), begins=begins)


def prompt_positions(length: int, pictures: Iterable[tuple[int, Geometry]]) -> tuple[Tensor, int]:
    """Positions (3, length), and how much further than its length the text behind the prompt goes on.

    pictures: where the placeholders of each begin, and its tokens; in the order of the prompt

    vLLM reads rotary tables by whole numbers. A token that lies between rows or columns is given the nearest ones.
    """
    ids, parts = torch.zeros(1, length, dtype=torch.long), []
    for first, geometry in pictures:
        ids[0, first : first + len(geometry.token)] = VISUAL
        parts.append(geometry)
    place, further = mrope_positions(ids, None, {VISUAL: _joined(parts)} if parts else {})
    return nearest(place[:, 0]), int(further)


def nearest(place: Tensor) -> Tensor:
    """The nearest whole positions; of two that are as near, the greater."""
    return (place.double() + 0.5).floor().long()


def _joined(parts: Sequence[Geometry]) -> Geometry:
    return Geometry(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Geometry)))
