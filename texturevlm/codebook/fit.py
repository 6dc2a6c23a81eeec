"""Fit a codebook: k-means begins each stage, then moving averages follow the stream of features.

An entry is the moving average of the rows that chose it. An entry that too few rows choose is dead: it begins anew at a
row that the others serve badly. Stages are fitted one after the other, each to what the stages before it left. A few
entries of its own may refine an image (`refine`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from texturevlm.check import check_count, check_finite
from texturevlm.codebook.codebook import FEATURE_BYTES, MOST_ENTRIES, Codebook, nearest
from texturevlm.codebook.features import TokenFeatures, joined_features

HELD = 8  # one view in so many is measured on
LEAST_ENTRIES = 16
GROUPS = 16  # with few groups answers suffer most (results/codebook.md); a divisor of common widths
PER_ENTRY = 4  # tokens per entry, at least, that a fit needs
ROUNDS = 8  # of Lloyd's algorithm that begin a book
MOST_OWN = 256  # entries of an image's own, whose code is a byte
_START = 32  # tokens per entry that k-means begins with, at most
_BATCH = 4096  # rows of a step of moving averages, at least; as many as there are entries
_EPOCHS = 4  # of moving averages
_DECAY = 0.9  # of a moving average, per batch
_DEAD = 0.02  # of the mean number of rows per entry: an entry that fewer choose is dead
_TOKENS = 1 << 19  # that are kept to fit on


@dataclass(frozen=True)
class CodebookReport:
    """How much codes lose, on views that were left out of the fit; shares of the features' variance.

    by_stage: what is left after each stage
    used:     the share of the entries that held-out and fitted tokens use, by stage
    """

    tokens: int
    held_out: int
    books: int
    by_stage: tuple[float, ...]
    used: tuple[float, ...]
    smaller: float

    def __str__(self) -> str:
        stages = ", ".join(f"{share:.1%}" for share in self.by_stage)
        return (
            f"fitted on {self.tokens} tokens, measured on {self.held_out} other tokens; books: {self.books}\n"
            f"{'variance lost, stage after stage':42} {stages}\n"
            f"{'entries in use, by stage':42} {', '.join(f'{share:.0%}' for share in self.used)}\n"
            f"{'smaller than features of 16 bits':42} {self.smaller:.0f} ×"
        )


def fit_codebook(
    views: Iterable[TokenFeatures],
    *,
    entries: int = 1024,
    stages: int = 4,
    groups: int = GROUPS,
    per_level: bool = True,
    model: str = "",
    digest: str = "",
    seed: int = 0,
) -> tuple[Codebook, CodebookReport]:
    """Fit a codebook to the features of views; every eighth view is left out and measured on.

    entries:   of each stage, 16 to 65,536; a book needs four tokens per entry
    stages:    codes that are summed, per group
    groups:    equal slices of a feature that are quantised apart; must divide its width
    per_level: one book per level of detail, where there are enough tokens; otherwise one for all
    model, digest: of the model; `Codebook.check_model` refuses another one
    """
    check_count("fit_codebook", "entries", entries, LEAST_ENTRIES, MOST_ENTRIES)
    check_count("fit_codebook", "stages", stages, 1)
    check_count("fit_codebook", "groups", groups, 1)
    fitted, held = _gathered(views, groups)
    width, parts = fitted.rows.shape[1], fitted.parts
    if len(fitted) < PER_ENTRY * entries:
        raise ValueError(
            f"fit_codebook: views must have {PER_ENTRY} tokens for each of {entries} entries, got {len(fitted)} in all"
        )
    edges = _edges(fitted.level, PER_ENTRY * entries) if per_level else fitted.level.new_zeros(0)
    random = torch.Generator().manual_seed(seed)
    book = torch.bucketize(fitted.level.float(), edges, right=True)
    means, spreads, tables = [], [], []
    for number in range(len(edges) + 1):
        own = fitted.rows[book == number].float()
        mean = own.mean(0)
        spread = (own - mean).unflatten(1, (parts, -1)).square().mean((0, 2)).sqrt().clamp(min=1e-6)
        spread = spread.repeat_interleave(width // parts)
        slices = ((own - mean) / spread).unflatten(1, (groups, -1)).unbind(1)
        tables.append(torch.stack([_stages(part, entries, stages, random) for part in slices]))
        means.append(mean)
        spreads.append(spread)
    found = Codebook(torch.stack(tables), torch.stack(means), torch.stack(spreads), edges, model, digest)
    return found, _report(found, fitted, held)


def _gathered(views: Iterable[TokenFeatures], groups: int) -> tuple[TokenFeatures, TokenFeatures]:
    """Tokens to fit on, and to measure on; at most _TOKENS, evenly from all views, whatever their number."""
    own: list[TokenFeatures] = []
    other: list[TokenFeatures] = []
    kept, every = 0, 1
    for number, view in enumerate(views):
        check_finite("fit_codebook", rows=view.rows)
        if (width := view.rows.shape[1]) % groups:  # told at the first view: all of them may take hours
            raise ValueError(f"fit_codebook: groups must divide the {width} numbers of a feature, got {groups}")
        thin = replace(view, rows=view.rows.bfloat16()).part(slice(None, None, every))
        if number % HELD == HELD - 1:
            other.append(thin)
            continue
        own.append(thin)
        kept += len(thin)
        if kept > _TOKENS:  # every other token of each view leaves, and of those to come
            every *= 2
            own = [view.part(slice(None, None, 2)) for view in own]
            other = [view.part(slice(None, None, 2)) for view in other]
            kept = sum(map(len, own))
    if not other:
        raise ValueError(f"fit_codebook: views must be at least {HELD}, got {len(own)}")
    return joined_features(own), joined_features(other)


def _edges(level: Tensor, least: int) -> Tensor:
    """Levels, half-way between whole ones, that part the tokens into books of at least `least` tokens."""
    whole = level.round().long()
    edges: list[float] = []
    waiting, left = 0, len(whole)
    for number in range(int(whole.min()), int(whole.max())):
        here = int((whole == number).sum())
        waiting, left = waiting + here, left - here
        if waiting >= least and left >= least:
            edges.append(number + 0.5)
            waiting = 0
    return torch.tensor(edges, device=level.device)


def _stages(rows: Tensor, entries: int, stages: int, random: torch.Generator) -> Tensor:
    """(S, K, d): the entries of all stages for rows (N, d), in float16, in which they are saved."""
    found = []
    for _ in range(stages):
        start = rows[torch.randperm(len(rows), generator=random)[: _START * entries].to(rows.device)]
        table = _followed(rows, kmeans(start, entries, random=random), random).half()
        found.append(table)
        rows = rows - table.float()[nearest(rows, table.float())]
    return torch.stack(found)


def _followed(rows: Tensor, entries: Tensor, random: torch.Generator) -> Tensor:
    """Entries after _EPOCHS of moving averages over rows in random order; dead ones are revived on the way."""
    count = torch.ones(len(entries), device=rows.device)
    total = entries.clone()
    size = max(_BATCH, len(entries))  # with fewer rows most entries would fade between the rows that choose them
    lowest = _DEAD * min(size, len(rows)) / len(entries)
    for _ in range(_EPOCHS):
        for some in torch.randperm(len(rows), generator=random).split(size):
            batch = rows[some.to(rows.device)]
            index = nearest(batch, entries)
            chosen, sums = totals(batch, index, len(entries))
            count = _DECAY * count + (1 - _DECAY) * chosen
            total = _DECAY * total + (1 - _DECAY) * sums
            entries = total / count.clamp(min=1e-6)[:, None]
            dead = count < lowest
            if bool(dead.any()):
                entries[dead] = far_rows(batch, entries, index, int(dead.sum()), random)
                count[dead] = 1.0
                total[dead] = entries[dead]
    return entries


def _report(found: Codebook, fitted: TokenFeatures, held: TokenFeatures) -> CodebookReport:
    stages, count = found.entries.shape[2:4]
    errors, used = [], []
    codes = torch.cat([found.encode(fitted), found.encode(held)]).long()
    book = torch.cat([found.book(fitted.level), found.book(held.level)])
    for stage in range(stages):
        errors.append(found.first(stage + 1).error(held))
        places = found.entries.shape[0] * found.entries.shape[1]
        group = torch.arange(codes.shape[1], device=codes.device)
        number = ((book[:, None] * codes.shape[1] + group) * count + codes[:, :, stage]).unique()
        used.append(len(number) / (places * count))
    return CodebookReport(len(fitted), len(held), len(found.edges) + 1, tuple(errors), tuple(used), found.smaller)


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


@dataclass(frozen=True, eq=False)
class Refinement:
    """What one image adds to its codes.

    entries: (R, W), in bfloat16, as the features are
    codes:   (N,) uint8
    """

    entries: Tensor
    codes: Tensor

    @property
    def bytes(self) -> int:
        """The bytes of entries and codes."""
        return FEATURE_BYTES * self.entries.numel() + self.codes.numel()

    def apply(self, rows: Tensor) -> Tensor:
        """Decoded rows (N, W), refined."""
        return rows + self.entries[self.codes.long()].to(rows)


def refine(codebook: Codebook, features: TokenFeatures, codes: Tensor, *, count: int, seed: int = 0) -> Refinement:
    """Fit `count` entries to what codes leave of an image's features, by k-means, all parts of a feature alike."""
    check_count("refine", "count", count, 1, MOST_OWN)
    spread = codebook.spread[codebook.book(features.level)]
    left = (features.rows.float() - codebook.decode(codes, features.level)) / spread
    random = torch.Generator().manual_seed(seed)
    count = min(count, len(features))
    index = nearest(left, kmeans(left, count, random=random))
    chosen, sums = totals(left * spread, index, count)
    return Refinement((sums / chosen.clamp(min=1)[:, None]).bfloat16(), index.to(torch.uint8))
