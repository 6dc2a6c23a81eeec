"""Whether a vision tower reads each of the arguments that are precomputed for it.

Towers take them through `**kwargs`, so one that transformers renames would be ignored without a word, and positions
would come from the pseudo-grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.override import Override
from texturevlm.vlm.packed import PICTURE, SEGMENT, Geometry, pack

# Columns of four tokens: all in one place; or apart, the third far from its neighbours, so that it is in another window
TOGETHER, APART = (0.0, 0.0, 0.0, 0.0), (0.0, 0.25, 18.25, 0.5)


def ignored_argument(adapter: Any) -> str | None:
    """The first argument that does not move the output of the tower by itself; None if all of them do.

    adapter: of a tower with precomputed arguments (`tower_arguments`), bound
    """
    together = _geometry(adapter, TOGETHER, segments=1)
    apart = _geometry(adapter, APART, segments=2)
    # Noise of large contrast: smooth pixels differ so little that half precision would hide a change.
    noise = torch.Generator().manual_seed(0)
    pixels = 3 * torch.randn(len(apart.patch), adapter.row_width, generator=noise)
    rows = pack(pixels, apart, torch.ones(len(pixels), 1)).to(adapter.device, adapter.tower.dtype)
    columns = (one.to(adapter.device) for one in (together.patch, together.extent, together.begins[:, 0] > 0))
    right = partial(_output, adapter, rows)
    with torch.no_grad():
        expected = right()
        for name, value in adapter.tower_arguments(*columns).items():
            wrong = partial(right, **{name: value})
            if torch.equal(wrong(), expected) and not moves(adapter, right, wrong):
                return str(name)
    return None


def moves(adapter: Any, one: Callable[[], Tensor], other: Callable[[], Tensor]) -> bool:
    """Whether two runs of the vision tower differ; in float32 if half precision hides a difference."""
    with torch.no_grad():
        if not torch.equal(one(), other()):
            return True
        with _in_float32(adapter.model):
            return not torch.equal(one(), other())


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """The vision side of a model in float32 for a while."""
    halves = {
        weight: weight.data
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and "language_model" not in name and "lm_head" not in name
    }
    try:
        for weight in halves:
            weight.data = weight.data.float()
        yield
    finally:
        for weight, data in halves.items():
            weight.data = data


def _geometry(adapter: Any, columns: tuple[float, ...], *, segments: int) -> Geometry:
    """Tokens in a row of a large picture; the first one is a segment by itself if there are two."""
    merge = adapter.merge
    corner = torch.tensor([[0.0, column * merge] for column in columns])
    inner = torch.cartesian_prod(torch.arange(float(merge)), torch.arange(float(merge)))
    patch = (corner[:, None] + inner).flatten(0, 1)
    begins = torch.zeros(len(patch), 1)
    begins[merge**2 * (segments - 1)], begins[0] = SEGMENT, PICTURE
    grid = torch.full_like(patch, 20.0)
    return Geometry(patch, grid * merge, patch / merge, grid, torch.zeros_like(begins), begins)


def _output(adapter: Any, rows: Tensor, **instead: Tensor) -> Tensor:
    """What the tower makes of packed rows if some of its arguments are replaced."""
    given = adapter.tower_arguments
    override = Override(adapter, "tower_arguments", lambda *columns: given(*columns) | instead)
    try:
        grid = torch.tensor([[1, adapter.merge, len(rows) // adapter.merge]], device=rows.device)
        output: Tensor = adapter.tower(rows, grid_thw=grid).pooler_output
        return output
    finally:
        override.remove()
