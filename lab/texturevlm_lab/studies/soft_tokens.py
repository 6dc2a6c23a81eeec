"""Soft tokens: a relaxed choice of K footprints that gradients pass through. Train soft, deploy hard.

Every candidate tile is a token with a weight from 0 to 1. The weights sum to the budget at every temperature, and at
temperature zero they are the 0 and 1 of the ordinary top K. Scores get their gradient through the weights, positions
and sizes through the area that the footprints cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_choice, check_floating, check_shapes
from texturevlm_lab.evaluate.objects import painted

_BISECTIONS = 60  # more than a float64 has bits
SATURATED = 50.0  # temperatures from the threshold, where a sigmoid is 0 or 1
SINKHORN_STEPS = 2_000  # at most; tens are enough unless the temperature is near zero
SINKHORN_TOLERANCE = 1e-9  # relative error of the sum
TINY = 1e-20
NEARLY_FULL = 1 - 1e-4  # a token that covers a whole cell still leaves a gradient for the others
SUBCELLS = 8  # points along a cell's side in `box_shares`


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
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, True)


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
RELAXATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
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


class SoftTokens(NamedTuple):
    """N candidate footprints per image, each with a weight.

    weight: (B, N), 0 to 1, summing to the budget
    boxes:  (B, N, 4), xyxy in level-0 pixels
    size:   (height, width) of the images
    """

    weight: Tensor
    boxes: Tensor
    size: tuple[int, int]


class Lattice(NamedTuple):
    """N candidate footprints of an image, coarse before fine.

    centre: (N, 2), x then y in level-0 pixels
    reach:  (N, 2), half of the extent, across and down
    """

    centre: Tensor
    reach: Tensor
    size: tuple[int, int]

    @classmethod
    def of(cls, size: tuple[int, int], sides: Sequence[float]) -> Lattice:
        """For each side, in pixels, a grid of about square tiles over the image."""
        height, width = size
        centres, reaches = [], []
        for side in sorted(sides, reverse=True):
            rows, columns = max(1, round(height / side)), max(1, round(width / side))
            extent = torch.tensor([width / columns, height / rows])
            y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            centres.append((torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * extent)
            reaches.append((extent / 2).expand(rows * columns, 2))
        return cls(torch.cat(centres), torch.cat(reaches), size)

    def boxes(self, zoom: Tensor) -> Tensor:
        """(B, N, 4) from zoom (B, N), by how many levels each footprint is coarser than its candidate."""
        centre, reach = self.centre.to(zoom), self.reach.to(zoom) * torch.exp2(zoom)[..., None]
        return torch.cat([centre - reach, centre + reach], -1)

    def best(self, scores: Tensor, k: int, zoom: Tensor | None = None) -> Tensor:
        """(B, k, 4): the footprints of the best candidates by scores (B, N), best first: what is deployed."""
        boxes = self.boxes(torch.zeros_like(scores) if zoom is None else zoom)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
        return boxes.gather(1, order[..., None].expand(-1, -1, 4))


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
    budget:  expected number of tokens
    relaxation, temperature, generator: as in `relaxed_top_k`
    zoom:    (B, N), as in `Lattice.boxes`
    returns  SoftTokens, differentiable in scores and zoom
    """
    zoom = torch.zeros_like(scores) if zoom is None else zoom
    check_shapes("soften", centre=(lattice.centre, "N 2"), scores=(scores, "B N"), zoom=(zoom, "B N"))
    weight = relaxed_top_k(scores, budget, relaxation=relaxation, temperature=temperature, generator=generator)
    return SoftTokens(weight, lattice.boxes(zoom), lattice.size)


# ---- what they cover ------------------------------------------------------------------------------------------------


def covered(tokens: SoftTokens, grid: tuple[int, int]) -> Tensor:
    """(B, h, w): the chance that a cell lies in some footprint, were tokens chosen independently.

    The share of a cell inside a footprint grows linearly as the footprint moves over it, so positions and sizes have a
    gradient.
    """
    (rows, columns), (height, width) = grid, tokens.size
    row, down = _touched(tokens.boxes[..., 1], tokens.boxes[..., 3], rows, height)
    column, across = _touched(tokens.boxes[..., 0], tokens.boxes[..., 2], columns, width)
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


def box_shares(boxes: Sequence[Sequence[float]], size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(h, w): the share of each cell inside the union of boxes, xyxy in pixels; by 8 × 8 points per cell."""
    across, down = grid[1] * SUBCELLS / size[1], grid[0] * SUBCELLS / size[0]
    points = painted(
        [(x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes],
        (grid[0] * SUBCELLS, grid[1] * SUBCELLS),
    )
    return functional.avg_pool2d(points.float()[None], SUBCELLS)[0]


def soft_iou(cover: Tensor, objects: Tensor) -> Tensor:
    """(B,): intersection over union of two maps of shares (B, h, w), taken as independent within a cell."""
    both = (cover * objects).sum((1, 2))
    return both / (cover.sum((1, 2)) + objects.sum((1, 2)) - both).clamp(min=1e-9)
