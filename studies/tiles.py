"""The tokens that could be chosen: tiles of an image at several scales, apart from one another or nested.

Apart, any K of them may be chosen (a lattice a scale, no overview). Nested, they are a tree: coarse tiles over
everything, each of which may be cut into finer ones that may be cut in turn, as in the `cascade` allocator; what is
chosen are the tiles that are not cut, which always cover the image exactly. A tile can only be cut if those it lies in
are, so what counts is the least score along the way down, smoothly: then the best n cuts always make a tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from texturevlm.check import check_count, check_shapes, check_size
from studies.relax import hard_top_k
from texturevlm.types import Allocation


@dataclass(frozen=True, eq=False)
class Tiles:
    """N tiles of an image, coarse before fine.

    centre:  (N, 2), x then y in level-0 pixels
    step:    (N, 2), pixels a sample, across and down
    parent:  (N,), the tile that each lies in; -1 for none. None: the tiles are apart
    cut:     (N,), into how many a tile can be cut; 0 on the finest scale. None: the tiles are apart
    """

    centre: Tensor
    step: Tensor
    size: tuple[int, int]
    patch: int
    parent: Tensor | None = None
    cut: Tensor | None = None

    @classmethod
    def lattice(cls, size: tuple[int, int], *, patch: int, sides: Sequence[float]) -> Tiles:
        """Tiles that are apart: for each side, in pixels, a grid of about square tiles over the image."""
        height, width = check_size("Tiles.lattice", size)
        check_count("Tiles.lattice", "patch", patch, 1)
        if not sides or not all(0 < side < math.inf for side in sides):
            raise ValueError(f"Tiles.lattice: sides must be positive numbers of pixels, got {sides!r}")
        grids = [
            _grid((height, width), (max(1, round(height / side)), max(1, round(width / side))), patch)
            for side in sorted(sides, reverse=True)
        ]
        centre, step = (torch.cat(parts) for parts in zip(*grids))
        return cls(centre, step, (height, width), patch)

    @classmethod
    def tree(cls, size: tuple[int, int], *, patch: int, first: tuple[int, int], factors: Sequence[int]) -> Tiles:
        """Nested tiles.

        first:   rows and columns of the coarsest tiling
        factors: into how many, across and down, a tile of each scale is cut
        """
        height, width = check_size("Tiles.tree", size)
        check_count("Tiles.tree", "patch", patch, 1)
        rows, columns = (check_count("Tiles.tree", "first", count, 1) for count in first)
        centre, step = _grid((height, width), (rows, columns), patch)
        grids, parents, cuts = [(centre, step)], [torch.full((rows * columns,), -1)], []
        start = 0
        for factor in factors:
            check_count("Tiles.tree", "factors", factor, 2, 16)
            y, x = torch.meshgrid(torch.arange(rows * factor), torch.arange(columns * factor), indexing="ij")
            parents.append((start + (y // factor) * columns + x // factor).flatten())
            cuts.append(torch.full((rows * columns,), factor**2))
            start += rows * columns
            rows, columns = rows * factor, columns * factor
            grids.append(_grid((height, width), (rows, columns), patch))
        cuts.append(torch.zeros(rows * columns, dtype=torch.int64))
        centre, step = (torch.cat(parts) for parts in zip(*grids))
        return cls(centre, step, (height, width), patch, torch.cat(parents), torch.cat(cuts))

    def __len__(self) -> int:
        return self.centre.shape[0]

    @property
    def nested(self) -> bool:
        return self.parent is not None

    @property
    def least(self) -> int:
        """The tokens that are always there: the coarsest tiling, or none."""
        return 0 if self.parent is None else int((self.parent < 0).sum())

    def cut_scores(self, scores: Tensor) -> Tensor:
        """(B, N) → (B, N): about the least score on the way down to each tile, below its parent's.

        exp(-score) adds up on the way down. A plain minimum would give children that are wanted more than their parent
        the parent's score, all the same one, and no temperature could tell equal ones apart.
        """
        assert self.parent is not None
        depth, parent = self._depth, self.parent.clamp(min=0)
        for below in range(1, int(depth.max()) + 1):
            above = scores.gather(1, parent.expand_as(scores))
            scores = torch.where(depth == below, -torch.logaddexp(-scores, -above), scores)
        return scores

    def cuts_for(self, budget: float) -> float:
        """How many cuts a budget allows, where all of them cost the same; never more than there are."""
        assert self.cut is not None
        able = self.cut[self.cut > 0]
        if able.numel() == 0:
            return 0.0
        if not bool((able == able[0]).all()):
            raise ValueError(f"Tiles: factors must be equal for a soft budget, got cuts into {able.unique().tolist()}")
        return min((budget - self.least) / (int(able[0]) - 1), float(able.numel()))

    def chosen(self, scores: Tensor, budget: int) -> Tensor:
        """(B, N) bool: the tiles that a budget pays for, the best ones first."""
        check_shapes("Tiles.chosen", scores=(scores, "B N"))
        check_count("Tiles.chosen", "budget", budget, max(1, self.least))
        if self.parent is None:
            return hard_top_k(scores, min(budget, len(self)))
        assert self.cut is not None
        wanted = self.cut_scores(scores).masked_fill(self.cut == 0, -torch.inf)
        cut = hard_top_k(wanted, math.floor(self.cuts_for(budget) + 1e-6))
        return self.leaves(cut.to(scores)) > 0.5

    def allocation_of_best(self, scores: Tensor, budget: int) -> Allocation:
        """The hard choice of scores (B, N)."""
        centre, step = (part.to(scores).expand(len(scores), -1, -1) for part in (self.centre, self.step))
        return self.allocation(self.chosen(scores, budget), scores, budget, centre, step)

    def leaves(self, cut: Tensor) -> Tensor:
        """How far each tile (B, N) is cut → how far it is a token: as far as its parent is cut and itself is not."""
        assert self.parent is not None
        above = cut.gather(1, self.parent.clamp(min=0).expand_as(cut)).where(self.parent >= 0, 1.0)
        return above - cut

    def allocation(self, chosen: Tensor, scores: Tensor, budget: int, centre: Tensor, step: Tensor) -> Allocation:
        """The chosen tiles (B, N), best first, in `budget` slots; centre and step (B, N, 2) as they were moved."""
        order = scores.masked_fill(~chosen, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        order = order[:, : min(budget, order.shape[1])]
        missing = budget - order.shape[1]
        pairs = order[..., None].expand(-1, -1, 2)
        valid, score = chosen.gather(1, order), scores.gather(1, order)
        where, wide = (_filled(part.gather(1, pairs), missing) for part in (centre, step))
        zero = torch.zeros_like(wide[..., 0])
        return Allocation(
            centre=where,
            ddx=torch.stack([wide[..., 0], zero], -1),
            ddy=torch.stack([zero, wide[..., 1]], -1),
            score=torch.nn.functional.pad(score.where(valid, 0.0), (0, missing)),
            valid=torch.nn.functional.pad(valid, (0, missing), value=False),
            source=torch.zeros_like(zero, dtype=torch.int64),
            size=self.size,
            patch=self.patch,
        )

    @cached_property
    def _depth(self) -> Tensor:
        """(N,): how many tiles each lies in."""
        assert self.parent is not None
        depth = torch.zeros_like(self.parent)
        above = self.parent
        while bool((above >= 0).any()):
            depth = depth + (above >= 0)
            above = self.parent[above.clamp(min=0)].where(above >= 0, -1)
        return depth

    def to(self, device: torch.device | str) -> Tiles:
        """On another device."""
        parent = None if self.parent is None else self.parent.to(device)
        cut = None if self.cut is None else self.cut.to(device)
        return Tiles(self.centre.to(device), self.step.to(device), self.size, self.patch, parent, cut)


def _grid(size: tuple[int, int], counts: tuple[int, int], patch: int) -> tuple[Tensor, Tensor]:
    """Centres and steps of rows × columns tiles, row by row."""
    side = torch.tensor([size[1] / counts[1], size[0] / counts[0]])
    y, x = torch.meshgrid(torch.arange(counts[0]), torch.arange(counts[1]), indexing="ij")
    centre = (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * side
    return centre, (side / patch).expand(len(centre), 2)


def _filled(pairs: Tensor, missing: int) -> Tensor:
    return torch.nn.functional.pad(pairs, (0, 0, 0, missing), value=1.0)
