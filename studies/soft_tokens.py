"""Soft tokens: a relaxed choice of K footprints that gradients pass through. Train soft, deploy hard.

Every candidate tile is a token with a weight from 0 to 1. The weights sum to the budget at every temperature, and at
temperature zero they are the 0 and 1 of the ordinary top K. Scores get their gradient through the weights, positions
and sizes through the area that the footprints cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_choice, check_count, check_floating, check_shapes, check_size
from texturevlm.types import Allocation

_BISECTIONS = 60  # more than a float64 has bits
SATURATED = 50.0  # temperatures from the threshold, where a sigmoid is 0 or 1
SINKHORN_STEPS = 2_000  # at most; tens are enough unless the temperature is near zero
SINKHORN_TOLERANCE = 1e-9  # relative error of the sum
TINY = 1e-20
NEARLY_FULL = 1 - 1e-4  # a token that covers a whole cell still leaves a gradient for the others
SUBCELLS = 8  # points along a cell's side in `box_shares`

Relaxation = Callable[[Tensor, float, float], Tensor]


# ---- relaxed top-K --------------------------------------------------------------------------------------------------


def relaxed_top_k(
    scores: Tensor,
    k: float,
    *,
    relaxation: str = "sigmoid",
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Membership of each candidate in the best k.

    scores:      (B, N); -inf excludes a candidate
    k:           between 0 and N, not necessarily whole
    relaxation:  sigmoid, sinkhorn, sparse, straight or gumbel
    temperature: above 0, in units of the scores
    generator:   for gumbel's noise
    returns      (B, N), 0 to 1, summing to k, differentiable in scores. With straight and gumbel the values are 0 and 1
                 (k rounded down) and the gradient is the sigmoid's
    """
    sizes = check_shapes("relaxed_top_k", scores=(scores, "B N"))
    check_floating("relaxed_top_k", scores=scores)
    check_choice("relaxed_top_k", "relaxation", relaxation, RELAXATIONS)
    if not 0 <= k <= sizes["N"]:
        raise ValueError(f"relaxed_top_k: k must be between 0 and {sizes['N']}, the candidates, got {k!r}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"relaxed_top_k: temperature must be a positive number, got {temperature!r}")
    wide = scores.double()  # near temperature zero small differences decide
    if relaxation == "gumbel":
        wide = wide + gumbel_noise(wide, generator) * temperature
    found = RELAXATIONS[relaxation](wide, float(k), temperature)
    return found if scores.dtype == torch.float64 else found.float()


def hard_top_k(scores: Tensor, k: int) -> Tensor:
    """(B, N) bool: the k best of each row; of equal scores the earlier one."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    first = torch.arange(scores.shape[1], device=scores.device) < k
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, first.expand_as(order))


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise: sorting scores plus noise samples without replacement in proportion to exp(score)."""
    uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    return -torch.log(-torch.log(uniform.clamp(TINY, 1 - torch.finfo(like.dtype).eps)))


def sigmoid(scores: Tensor, k: float, temperature: float) -> Tensor:
    """σ((score − t) / temperature), with t found by bisection so that the sum is k."""
    return _at_threshold(scores, _bisected(scores, k, temperature, torch.sigmoid, SATURATED), temperature)


def straight(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The hard choice of k, rounded down, with the gradient of `sigmoid`."""
    whole = math.floor(k + 1e-6)
    soft = sigmoid(scores, whole, temperature)
    return hard_top_k(scores, whole).to(soft) + (soft - soft.detach())


def sinkhorn(scores: Tensor, k: float, temperature: float) -> Tensor:
    """Entropic optimal transport from the candidates (mass 1 each) to "in" (mass k, cost −score) and "out" (N − k).

    With two bins the row scaling has a closed form, so only one number is iterated: the price of "in". It is the
    threshold of `sigmoid`. The two are one relaxation; only the way to the threshold differs.
    """
    count = float(scores.shape[1])
    if k <= 0 or k >= count:
        return sigmoid(scores, k, temperature)
    with torch.no_grad():
        finite = scores[scores.isfinite()]
        best = scores.topk(math.floor(k) + 1, 1).values.nan_to_num(neginf=float(finite.min()))
        price = best[:, -2:].mean(1, keepdim=True)  # between the last one in and the first one out
        for _ in range(SINKHORN_STEPS):
            inside = ((scores - price) / temperature).sigmoid().sum(1, keepdim=True)
            if ((inside - k).abs() <= SINKHORN_TOLERANCE * k).all():
                break
            outside = (count - inside).clamp(min=TINY)
            price = price + temperature * (torch.log(inside.clamp(min=TINY) / k) - torch.log(outside / (count - k)))
    return _at_threshold(scores, price, temperature)


def sparse(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The memberships summing to k nearest to score / temperature: (score − t) / temperature + ½, clipped to 0 … 1."""

    def line(x: Tensor) -> Tensor:
        return (x + 0.5).clamp(0, 1)

    threshold = _bisected(scores, k, temperature, line, 1.0)
    between = (line((scores - threshold) / temperature) - 0.5).abs() < 0.5
    share = between / between.sum(1, keepdim=True).clamp(min=1)
    return line((scores - _with_gradient(threshold, scores, share)) / temperature)


# gumbel is straight among noisy scores; `relaxed_top_k` adds the noise
RELAXATIONS: dict[str, Relaxation] = {
    "sigmoid": sigmoid,
    "sinkhorn": sinkhorn,
    "sparse": sparse,
    "straight": straight,
    "gumbel": straight,
}


def _bisected(scores: Tensor, k: float, temperature: float, curve: Callable[[Tensor], Tensor], reach: float) -> Tensor:
    """(B, 1): the threshold at which the memberships sum to k; without a gradient."""
    with torch.no_grad():
        finite = scores.isfinite()
        low = scores.where(finite, torch.inf).amin(1, keepdim=True) - reach * temperature
        high = scores.where(finite, -torch.inf).amax(1, keepdim=True) + reach * temperature
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            many = curve((scores - middle) / temperature).sum(1, keepdim=True) > k
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
        return (low + high) / 2


def _at_threshold(scores: Tensor, threshold: Tensor, temperature: float) -> Tensor:
    """The sigmoid about a threshold that moves with the scores, so that the sum stays."""
    with torch.no_grad():
        inside = ((scores - threshold) / temperature).sigmoid()
        slope = inside * (1 - inside)
        share = slope / slope.sum(1, keepdim=True).clamp(min=TINY)
    return ((scores - _with_gradient(threshold, scores, share)) / temperature).sigmoid()


def _with_gradient(threshold: Tensor, scores: Tensor, share: Tensor) -> Tensor:
    """The threshold with its exact gradient, dt/ds_i = slope_i / Σ slope, by the implicit function theorem."""
    known = scores.where(share > 0, 0.0)  # avoids 0 · inf for a candidate at -inf
    return threshold + (share * (known - known.detach())).sum(1, keepdim=True)


# ---- candidates and their weights -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lattice:
    """N candidate footprints of an image, coarse before fine.

    centre: (N, 2), x then y in level-0 pixels
    step:   (N, 2), pixels per sample, across and down
    """

    centre: Tensor
    step: Tensor
    size: tuple[int, int]
    patch: int

    @classmethod
    def of(cls, size: tuple[int, int], *, patch: int, sides: Sequence[float]) -> Lattice:
        """For each side, in pixels, a grid of about square tiles over the image."""
        height, width = check_size("Lattice.of", size)
        check_count("Lattice.of", "patch", patch, 1)
        if not sides or not all(0 < side < math.inf for side in sides):
            raise ValueError(f"Lattice.of: sides must be positive numbers of pixels, got {sides!r}")
        centres, steps = [], []
        for side in sorted(sides, reverse=True):
            rows, columns = max(1, round(height / side)), max(1, round(width / side))
            extent = torch.tensor([width / columns, height / rows])
            y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            centres.append((torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * extent)
            steps.append((extent / patch).expand(rows * columns, 2))
        return cls(torch.cat(centres), torch.cat(steps), (height, width), patch)

    def __len__(self) -> int:
        return self.centre.shape[0]

    def best(self, scores: Tensor, budget: int) -> Allocation:
        """The allocation of the best candidates by scores (B, N)."""
        centre, step = (part.to(scores).expand(len(scores), -1, -1) for part in (self.centre, self.step))
        return SoftTokens(torch.zeros_like(scores), scores, centre, step, self).harden(budget)

    def to(self, device: torch.device | str) -> Lattice:
        return Lattice(self.centre.to(device), self.step.to(device), self.size, self.patch)


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """N candidates per image, each with a weight.

    weight:  (B, N), 0 to 1, summing to the budget
    score:   (B, N), by which they are chosen
    centre:  (B, N, 2), x then y in level-0 pixels
    step:    (B, N, 2), pixels per sample, across and down
    lattice: the candidates they were made from
    """

    weight: Tensor
    score: Tensor
    centre: Tensor
    step: Tensor
    lattice: Lattice

    @property
    def boxes(self) -> Tensor:
        """(B, N, 4): the footprints, xyxy in level-0 pixels."""
        reach = self.step * (self.lattice.patch / 2)
        return torch.cat([self.centre - reach, self.centre + reach], -1)

    def harden(self, budget: int) -> Allocation:
        """The ordinary allocation: the best candidates, best first, in `budget` slots."""
        check_count("SoftTokens.harden", "budget", budget, 1)
        scores = self.score.detach().float()
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :budget]
        missing = budget - order.shape[1]
        pairs = order[..., None].expand(-1, -1, 2)
        centre, step = (
            functional.pad(part.detach().float().gather(1, pairs), (0, 0, 0, missing), value=1.0)
            for part in (self.centre, self.step)
        )
        zero = torch.zeros_like(step[..., 0])
        return Allocation(
            centre=centre,
            ddx=torch.stack([step[..., 0], zero], -1),
            ddy=torch.stack([zero, step[..., 1]], -1),
            score=functional.pad(scores.gather(1, order), (0, missing)),
            valid=functional.pad(torch.ones_like(order, dtype=torch.bool), (0, missing), value=False),
            source=torch.zeros_like(zero, dtype=torch.int64),
            size=self.lattice.size,
            patch=self.lattice.patch,
        )


def soften(
    lattice: Lattice,
    scores: Tensor,
    budget: float,
    *,
    relaxation: str = "sigmoid",
    temperature: float = 1.0,
    zoom: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> SoftTokens:
    """Candidates with weights that sum to the budget.

    scores:  (B, N), one per candidate
    budget:  expected number of tokens; more than there are candidates: all of them
    relaxation, temperature, generator: as in `relaxed_top_k`
    zoom:    (B, N), by how many levels each footprint is coarser than its candidate
    returns  SoftTokens, differentiable in scores and zoom
    """
    sizes = check_shapes("soften", scores=(scores, "B N"))
    if sizes["N"] != len(lattice):
        raise ValueError(f"soften: scores must be (B, {len(lattice)}), one per candidate, got {tuple(scores.shape)}")
    if not budget >= 1:
        raise ValueError(f"soften: budget must be at least 1, got {budget!r}")
    k = min(budget, len(lattice))
    weight = relaxed_top_k(scores, k, relaxation=relaxation, temperature=temperature, generator=generator)
    centre, step = (part.to(weight).expand(len(scores), -1, -1) for part in (lattice.centre, lattice.step))
    if zoom is not None:
        check_shapes("soften", scores=(scores, "B N"), zoom=(zoom, "B N"))
        step = step * torch.exp2(zoom)[..., None]
    return SoftTokens(weight, scores, centre, step, lattice)


# ---- what they cover ------------------------------------------------------------------------------------------------


def covered(tokens: SoftTokens, grid: tuple[int, int]) -> Tensor:
    """(B, h, w): the chance that a cell lies in some footprint, were tokens chosen independently.

    The share of a cell inside a footprint grows linearly as the footprint moves over it, so positions and sizes have a
    gradient.
    """
    rows, columns = (check_count("covered", "grid", count, 1) for count in grid)
    boxes, (height, width) = tokens.boxes, tokens.lattice.size
    row, down = _touched(boxes[..., 1], boxes[..., 3], rows, height)
    column, across = _touched(boxes[..., 0], boxes[..., 2], columns, width)
    inside = down[..., :, None] * across[..., None, :]
    left = torch.log1p(-tokens.weight[..., None, None] * inside * NEARLY_FULL)
    cell = row[..., :, None] * columns + column[..., None, :]
    total = left.new_zeros(len(left), rows * columns).scatter_add(1, cell.flatten(1), left.flatten(1))
    return 1 - torch.exp(total.view(-1, rows, columns))


def _touched(low: Tensor, high: Tensor, cells: int, extent: int) -> tuple[Tensor, Tensor]:
    """(B, N, r) twice: the cells of an axis that each footprint touches, and the share of each cell inside it.

    r is what the longest footprint touches: most touch few of all cells. Where one touches fewer, the other shares are
    zero.
    """
    size = extent / cells
    first = (low.detach() / size).floor().clamp(0, cells - 1)
    last = (high.detach() / size).ceil().clamp(1, cells)
    most = max(1, int((last - first).max()))
    cell = first[..., None] + torch.arange(most, device=low.device)
    upper, lower = torch.minimum(high[..., None], (cell + 1) * size), torch.maximum(low[..., None], cell * size)
    share = ((upper - lower).clamp(min=0) / size).where(cell < cells, 0.0)
    return cell.clamp(max=cells - 1).long(), share


def box_shares(boxes: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(h, w): the share of each cell inside the union of boxes (M, 4), xyxy in pixels; by 8 × 8 points per cell."""
    rows, columns = grid[0] * SUBCELLS, grid[1] * SUBCELLS
    y = (torch.arange(rows, dtype=torch.float64) + 0.5) * (size[0] / rows)
    x = (torch.arange(columns, dtype=torch.float64) + 0.5) * (size[1] / columns)
    wide = boxes.double().reshape(-1, 4)
    down = (y >= wide[:, 1:2]) & (y < wide[:, 3:4])
    across = (x >= wide[:, 0:1]) & (x < wide[:, 2:3])
    inside = (down[:, :, None] & across[:, None, :]).any(0)
    return inside.view(grid[0], SUBCELLS, grid[1], SUBCELLS).float().mean((1, 3))


def soft_iou(cover: Tensor, objects: Tensor) -> Tensor:
    """(B,): intersection over union of two maps of shares (B, h, w), taken as independent within a cell."""
    both = (cover * objects).sum((1, 2))
    return both / (cover.sum((1, 2)) + objects.sum((1, 2)) - both).clamp(min=1e-9)
