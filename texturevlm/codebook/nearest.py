"""Nearest-neighbour search and k-means, in bounded memory."""

import torch
from torch import Tensor

_AT_ONCE = 1 << 24  # distances that are computed together
ROUNDS = 8  # of Lloyd's algorithm that begin a book


def nearest(rows: Tensor, entries: Tensor) -> Tensor:
    """(N,): the index of the nearest entry of each row, the first of equal ones.

    rows:    (N, D)
    entries: (K, D), on the same device
    """
    half = 0.5 * entries.square().sum(1)  # the row's own length does not change the order
    step = max(1, _AT_ONCE // len(entries))
    parts = [torch.addmm(half, part, entries.T, alpha=-1).argmin(1) for part in rows.split(step)]
    return torch.cat(parts or [rows.new_zeros(0).long()])


def totals(rows: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Per entry, how many rows chose it (count,), and their sum (count, D)."""
    chosen = torch.bincount(index, minlength=count).to(rows)
    return chosen, rows.new_zeros(count, rows.shape[1]).index_add(0, index, rows)


def far_rows(rows: Tensor, entries: Tensor, index: Tensor, count: int, random: torch.Generator) -> Tensor:
    """(count, D): rows drawn where entries serve badly: by squared distance from their nearest (as k-means++ does)."""
    distance = (rows - entries[index]).square().sum(1).clamp(min=1e-12)
    few = torch.multinomial(distance.cpu(), min(count, len(rows)), generator=random)
    drawn = few[torch.arange(count) % len(few)]
    return rows[drawn.to(rows.device)]


def kmeans(rows: Tensor, count: int, *, random: torch.Generator, rounds: int = ROUNDS) -> Tensor:
    """(count, D): Lloyd's algorithm from random rows (N, D); an entry that no row chose begins anew at a far row."""
    order = torch.randperm(len(rows), generator=random)[torch.arange(count) % len(rows)]
    entries = rows[order.to(rows.device)].clone()
    for _ in range(rounds):
        index = nearest(rows, entries)
        chosen, sums = totals(rows, index, count)
        dead = chosen == 0
        revived = far_rows(rows, entries, index, int(dead.sum()), random) if bool(dead.any()) else None
        entries = sums / chosen.clamp(min=1)[:, None]
        if revived is not None:
            entries[dead] = revived
    return entries
