"""Soft selection: every candidate tile is a token that counts a little; train with it, then `harden`.

The weights sum to the budget at every temperature, so that what is learned never relies on tokens that will not be
there. Scores get their gradient through the weights, positions and levels through what is sampled there; as the
temperature goes to zero the weights become the 0 and 1 of the hard choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm.check import check_shapes
from texturevlm.sampling import sample
from texturevlm.train.relax import gumbel_noise, relaxed_top_k
from texturevlm.train.tiles import Tiles
from texturevlm.types import Allocation, Patches, Texture

IN_USE = 1e-6  # a token that counts less is not sent to a model


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """N candidates an image, each counting as much as its weight.

    weight: (B, N), 0 to 1, summing to the budget
    score:  (B, N), what they are chosen by
    centre: (B, N, 2), x then y in level-0 pixels
    step:   (B, N, 2), pixels a sample, across and down
    tiles:  what they were made from
    """

    weight: Tensor
    score: Tensor
    centre: Tensor
    step: Tensor
    tiles: Tiles

    @property
    def expected(self) -> Tensor:
        """(B,): the expected number of tokens."""
        return self.weight.sum(1)

    @property
    def boxes(self) -> Tensor:
        """(B, N, 4): the footprints, xyxy in level-0 pixels."""
        half = self.step * (self.tiles.patch / 2)
        return torch.cat([self.centre - half, self.centre + half], -1)

    def allocation(self) -> Allocation:
        """All candidates as footprints; those that count for nothing are not valid."""
        zero = torch.zeros_like(self.step[..., 0])
        return Allocation(
            centre=self.centre,
            ddx=torch.stack([self.step[..., 0], zero], -1),
            ddy=torch.stack([zero, self.step[..., 1]], -1),
            score=self.score,
            valid=self.weight.detach() > IN_USE,
            source=torch.zeros_like(zero, dtype=torch.int64),
            size=self.tiles.size,
            patch=self.tiles.patch,
        )

    def sample(self, texture: Texture) -> Patches:
        """What each candidate shows, (B, N, C, P, P), differentiable in centre and step."""
        return sample(texture, self.allocation())

    def harden(self, budget: int) -> Allocation:
        """The ordinary allocation: the best candidates that the budget pays for, no weights."""
        found = self.tiles.chosen(self.score.detach(), budget)
        columns = (part.detach().float() for part in (self.centre, self.step))
        return self.tiles.allocation(found, self.score.detach().float(), budget, *columns)


def soften(
    tiles: Tiles,
    scores: Tensor,
    budget: float,
    *,
    way: str = "sigmoid",
    temperature: float = 1.0,
    shift: Tensor | None = None,
    zoom: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SoftTokens:
    """Candidates with weights that sum to the budget.

    scores:  (B, N), one a tile: how much it is wanted, or, where tiles are nested, how much it wants to be cut
    budget:  tokens expected; nested tiles need at least those of the coarsest scale. More than there can be: all.
             Where the ways of 0 and 1 (straight, gumbel) cannot pay for another cut, what is left is not spent
    way, temperature, generator: as in `relaxed_top_k`
    shift:   (B, N, 2), how far each tile's centre is moved, in its own width and height
    zoom:    (B, N), by how many levels each is coarser than the tile
    returns  SoftTokens; differentiable in scores, shift and zoom
    """
    sizes = check_shapes("soften", scores=(scores, "B N"))
    if sizes["N"] != len(tiles):
        raise ValueError(f"soften: scores must be (B, {len(tiles)}), one a tile, got {tuple(scores.shape)}")
    if not budget >= max(tiles.least, 1):
        raise ValueError(f"soften: budget must be at least {max(tiles.least, 1)}, got {budget!r}")
    if tiles.nested:
        weight = tiles.leaves(_cut(tiles, scores, budget, way, temperature, generator))
    else:
        weight = relaxed_top_k(scores, min(budget, len(tiles)), way=way, temperature=temperature, generator=generator)
    centre, step = (part.to(weight).expand(len(scores), -1, -1) for part in (tiles.centre, tiles.step))
    if shift is not None:
        check_shapes("soften", scores=(scores, "B N"), shift=(shift, "B N 2"))
        centre = centre + shift * step * tiles.patch
    if zoom is not None:
        check_shapes("soften", scores=(scores, "B N"), zoom=(zoom, "B N"))
        step = step * torch.exp2(zoom)[..., None]
    return SoftTokens(weight, scores, centre, step, tiles)


def _cut(
    tiles: Tiles, scores: Tensor, budget: float, way: str, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """How far each tile is cut, never further than the one it lies in: a relaxed top-K of the least scores."""
    assert tiles.cut is not None
    if way == "gumbel":  # noise comes before the least is taken, or a tile could be cut whose parent is not
        scores = scores + gumbel_noise(scores, generator) * temperature
        way = "straight"
    able = tiles.cut > 0
    least = tiles.cut_scores(scores)[:, able]
    cut = relaxed_top_k(least, tiles.cuts_for(budget), way=way, temperature=temperature)
    found = cut.new_zeros(scores.shape)
    found[:, able] = cut
    return found
