"""Soft tokens on a raster of cells: how far each cell is covered, and by which tokens it is shown.

The share of a cell that lies in a footprint grows evenly as the footprint moves or widens over it, so that positions
and sizes have a gradient; a token that counts half covers half.
"""

import torch
from torch import Tensor

from texturevlm.check import check_count
from studies.soft import SoftTokens

NEARLY = 1 - 1e-4  # of a cell: a token that covers all of it still has a gradient for what would show without it
FAINT = 1e-9


def insides(tokens: SoftTokens, grid: tuple[int, int]) -> Tensor:
    """(B, N, h, w): the share of each cell that lies in each footprint, 0 to 1."""
    rows, columns = (check_count("insides", "grid", count, 1) for count in grid)
    boxes, (height, width) = tokens.boxes, tokens.tiles.size
    down = _overlap(boxes[..., 1], boxes[..., 3], rows, height)
    across = _overlap(boxes[..., 0], boxes[..., 2], columns, width)
    return down[..., :, None] * across[..., None, :]


def _overlap(low: Tensor, high: Tensor, cells: int, extent: int) -> Tensor:
    """(B, N, cells): the share of each of the equal cells of an axis between low and high (B, N)."""
    edge = torch.arange(cells + 1, device=low.device, dtype=low.dtype) * (extent / cells)
    upper = torch.minimum(high[..., None], edge[1:])
    lower = torch.maximum(low[..., None], edge[:-1])
    return (upper - lower).clamp(min=0) * (cells / extent)


def covered(tokens: SoftTokens, grid: tuple[int, int]) -> Tensor:
    """(B, h, w): how far each cell is in some footprint: the chance of it, were tokens chosen one by one."""
    rows, columns = (check_count("covered", "grid", count, 1) for count in grid)
    boxes, (height, width) = tokens.boxes, tokens.tiles.size
    row, down = _touched(boxes[..., 1], boxes[..., 3], rows, height)
    column, across = _touched(boxes[..., 0], boxes[..., 2], columns, width)
    inside = down[..., :, None] * across[..., None, :]
    left = _left(tokens.weight[..., None, None] * inside)
    cell = row[..., :, None] * columns + column[..., None, :]
    total = left.new_zeros(len(left), rows * columns).scatter_add(1, cell.flatten(1), left.flatten(1))
    return 1 - torch.exp(total.view(-1, rows, columns))


def _touched(low: Tensor, high: Tensor, cells: int, extent: int) -> tuple[Tensor, Tensor]:
    """(B, N, r) twice: the cells of an axis that each footprint touches, and the share of each that lies in it.

    As many as the longest touches, since most footprints touch few of all cells; where one touches fewer, the shares
    of the rest are zero.
    """
    size = extent / cells
    first = (low.detach() / size).floor().clamp(0, cells - 1)
    last = (high.detach() / size).ceil().clamp(1, cells)
    most = max(1, int((last - first).max()))
    cell = first[..., None] + torch.arange(most, device=low.device)
    upper, lower = torch.minimum(high[..., None], (cell + 1) * size), torch.maximum(low[..., None], cell * size)
    share = ((upper - lower).clamp(min=0) / size).where(cell < cells, 0.0)
    return cell.clamp(max=cells - 1).long(), share


def shown(tokens: SoftTokens, grid: tuple[int, int]) -> Tensor:
    """(B, N, h, w): how much of each cell each token shows; the finest on top, as in `rebuild`.

    Sums to 1 where tokens cover a cell as often as once or more, else to how often they do.
    """
    order = tokens.step.detach().prod(-1).sort(dim=1, stable=True).indices
    there = tokens.weight[..., None, None] * insides(tokens, grid)
    sorted_there = there.gather(1, order[..., None, None].expand_as(there))
    left = _left(sorted_there)
    share = sorted_there * torch.exp(left.cumsum(1) - left)
    enough = there.sum(1, keepdim=True).clamp(max=1)
    share = share / share.sum(1, keepdim=True).clamp(min=FAINT) * enough
    return torch.zeros_like(share).scatter(1, order[..., None, None].expand_as(share), share)


def _left(there: Tensor) -> Tensor:
    """The logarithm of what a token leaves of a cell."""
    return torch.log1p(-there * NEARLY)


def box_shares(boxes: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(h, w): the share of each cell that lies in some of the boxes (M, 4), xyxy in pixels; by 8 × 8 points a cell."""
    fine = 8
    rows, columns = grid[0] * fine, grid[1] * fine
    y = (torch.arange(rows, dtype=torch.float64) + 0.5) * (size[0] / rows)
    x = (torch.arange(columns, dtype=torch.float64) + 0.5) * (size[1] / columns)
    wide = boxes.double().reshape(-1, 4)
    down = (y >= wide[:, 1:2]) & (y < wide[:, 3:4])
    across = (x >= wide[:, 0:1]) & (x < wide[:, 2:3])
    inside = (down[:, :, None] & across[:, None, :]).any(0)
    return inside.view(grid[0], fine, grid[1], fine).float().mean((1, 3))
