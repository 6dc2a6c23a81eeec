"""Which tokens form a block, which queries share a choice of blocks, and which blocks each of them sees.

All of it follows from places and lengths alone, so one layout serves all layers of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count, check_shapes
from texturevlm_lab.attention.key_value_texture import check_block, whole_table

UNSEEN, WHOLE, FINE = 0, 1, 2  # by no query of a group; by every one, all of it; in part, or near: read token by token


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Blocks of keys and groups of queries, for B samples of L keys and Q queries, which are the last Q of the keys.

    keys:    (B, T, block), the key of each slot, -1 for none: V visual blocks, then blocks of text, always read
    visual:  V
    count:   (B, V), keys of each visual block
    queries: (B, G, group), the query of each slot, -1 for none
    state:   (B, G, T), UNSEEN, WHOLE (only visual blocks: they may be chosen or summarised) or FINE
    causal:  whether a query sees the keys up to its own alone
    length:  L
    plain:   whether all keys are visual and stand in their order
    grown:   tokens that `next_token` has added
    padded:  whether some queries are padding: they are in no group, and their output is zero
    """

    keys: Tensor
    visual: int
    count: Tensor
    queries: Tensor
    state: Tensor
    causal: bool
    length: int
    plain: bool = False
    grown: int = 0
    padded: bool = False

    @property
    def block(self) -> int:
        return self.keys.shape[2]

    @property
    def table(self) -> Tensor:
        """(B, V · block), the visual keys in their order."""
        return self.keys[:, : self.visual].flatten(1)

    def most(self, fine: float) -> int:
        """The most blocks that any group may choose."""
        return math.ceil(fine * self.visual)

    def allowed(self, fine: float) -> Tensor:
        """(B, G): how many blocks each group chooses."""
        if fine not in self._allowed:
            whole = (self.state[..., : self.visual] == WHOLE).sum(-1)
            self._allowed[fine] = (whole * fine).ceil().int()
        return self._allowed[fine]

    @cached_property
    def _allowed(self) -> dict[float, Tensor]:
        return {}

    @cached_property
    def memory(self) -> dict[str, Any]:
        """What a backend keeps from one call to the next: memory for its kernels, and the last choice."""
        return {}

    @cached_property
    def always(self) -> tuple[Tensor, Tensor]:
        """The blocks that each group always reads, (B, G, A), and how many they are, (B, G)."""
        fine = self.state == FINE
        count = fine.sum(-1, dtype=torch.int32)
        most = max(1, int(count.max()))
        return (~fine).sort(dim=-1, stable=True).indices[..., :most].int().contiguous(), count

    @cached_property
    def limit(self) -> Tensor:
        """(B, G): behind the last visual block that a summary may stand for."""
        number = torch.arange(1, self.visual + 1, device=self.state.device, dtype=torch.int32)
        whole = self.state[..., : self.visual] == WHOLE
        return torch.where(whole, number, 0).amax(-1)

    @cached_property
    def marks(self) -> tuple[Tensor, Tensor]:
        """(B, 1, G, T + 1) each: blocks of the state WHOLE, and of the state FINE; the last is that of no key."""
        state = functional.pad(self.state, (0, 1))[:, None]  # UNSEEN
        return state == WHOLE, state == FINE

    @cached_property
    def key_blocks(self) -> Tensor:
        """(B, L): the block that each key is in; T for a key that is in none."""
        batch, blocks, block = self.keys.shape
        found = torch.full((batch, self.length + 1), blocks, device=self.keys.device)
        index = torch.where(self.keys >= 0, self.keys, self.length).flatten(1).long()
        number = torch.arange(blocks, device=self.keys.device).repeat_interleave(block).expand(batch, -1)
        return found.scatter(1, index, number)[:, :-1]

    @staticmethod
    def of(
        batch: int,
        queries: int,
        keys: int,
        *,
        visual: Tensor | None = None,
        live: Tensor | None = None,
        padded: bool = False,
        causal: bool = False,
        block: int = 64,
        group: int = 64,
        neighbours: int | None = 1,
        device: torch.device | str = "cpu",
    ) -> BlockLayout:
        """Lay out B samples.

        visual:     (B, n) or (n,), the visual keys in the order of the quadtree, -1 for none; by default all keys are
                    visual, as they stand
        live:       (B, L), which keys are attended to; all by default
        padded:     whether the others are padding, where nothing asks either: the output there is zero, and which
                    queries share a choice does not depend on it
        block:      keys of a block, a power of two
        group:      queries that share a choice
        neighbours: blocks on either side of a query's own, along the order, that are always read; None: not its own
        """
        check_block("BlockLayout.of", block)
        check_count("BlockLayout.of", "group", group, 1)
        check_count("BlockLayout.of", "neighbours", neighbours or 0, 0)
        check_count("BlockLayout.of", "queries", queries, 1, keys)
        if visual is None:
            order = whole_table(batch, keys, block, torch.device(device))
        else:
            order = _padded(_checked(visual, batch, keys).to(device, torch.int32), block)
        if live is not None:
            check_shapes("BlockLayout.of", live=(live, f"{batch} {keys}"))
            order = torch.where(live.to(device).gather(1, order.clamp(min=0).long()), order, -1)
        is_visual = _marked(order, keys)
        if visual is not None and bool(is_visual.sum() != (order >= 0).sum()):
            raise ValueError("BlockLayout.of: visual must name each key once, got one that is named again")
        text = ~is_visual if live is None else ~is_visual & live.to(device)
        others = _padded(_listed(text), block) if visual is not None or live is not None else order[:, :0]
        table = torch.cat([order, others], 1)
        table = table.unflatten(1, (table.shape[1] // block, block))
        asking = _query_order(order, is_visual, queries, live if padded else None)
        grouped = _padded(asking, group).unflatten(1, (-1, group))
        own = BlockLayout(
            keys=table.contiguous(),
            visual=order.shape[1] // block,
            count=(order >= 0).unflatten(1, (order.shape[1] // block, block)).sum(-1, dtype=torch.int32),
            queries=grouped.contiguous(),
            state=torch.empty(0, device=device),
            causal=causal,
            length=keys,
            plain=visual is None and live is None,
            padded=padded and live is not None,
        )
        return own._with_state(queries, neighbours)

    def next_token(self) -> BlockLayout:
        """For one query behind one more key, which is text; this layout, also of one query, must not be used again.

        Made without waiting for the GPU, and in a fraction of the time that `of` takes.
        """
        if self.queries.shape[1] != 1:
            raise ValueError(f"BlockLayout.next_token: layout must be of one query, got {self.queries.shape[1]} groups")
        keys, state, (always, count) = self.keys, self.state, self.always
        slot = self.grown % self.block
        if slot == 0:
            state = functional.pad(state, (0, 1), value=FINE)
            last = torch.full_like(count, keys.shape[1])[..., None]
            always = functional.pad(always, (0, 1)).scatter(2, count[..., None].long(), last)
            count = count + 1
            keys = functional.pad(keys, (0, 0, 0, 1), value=-1)
        keys[:, -1, slot] = self.length
        found = replace(self, keys=keys, state=state, length=self.length + 1, plain=False, grown=self.grown + 1)
        # Visual blocks are as before.
        kept: dict[str, Any] = {"limit": self.limit, "_allowed": self._allowed, "memory": self.memory}
        if slot:
            kept["marks"] = self.marks
        vars(found).update(kept, always=(always, count))
        return found

    def with_room(self, slots: int) -> BlockLayout:
        """Of one query, with empty blocks for later keys, which are text, up to so many keys in all.

        A key is there once its number stands in the table: a graph writes it, so no shape changes from token to token.
        """
        if self.queries.shape[1] != 1:
            raise ValueError(f"BlockLayout.with_room: layout must be of one query, got {self.queries.shape[1]} groups")
        check_count("BlockLayout.with_room", "slots", slots, self.length + 1)
        more = -(-(slots - self.length) // self.block)
        keys = functional.pad(self.keys, (0, 0, 0, more), value=-1)
        state = functional.pad(self.state, (0, more), value=FINE)
        return replace(self, keys=keys, count=self.count.clone(), state=state, length=slots, plain=False)

    def _with_state(self, queries: int, neighbours: int | None) -> BlockLayout:
        there, offset = self.queries >= 0, self.length - queries
        position = self.queries + offset
        text = torch.arange(self.keys.shape[1], device=self.keys.device) >= self.visual
        state = torch.where(text, FINE, WHOLE).expand(*self.queries.shape[:2], -1)
        if neighbours is not None:
            near = self._near(torch.where(there, position, self.length), neighbours)
            state = torch.where(near, FINE, state)
        if self.causal:
            slots = self.keys >= 0
            first = torch.where(slots, self.keys, self.length).amin(-1)[:, None]
            last = self.keys.amax(-1)[:, None]
            earliest = torch.where(there, position, self.length).amin(-1)[..., None]
            latest = torch.where(there, position, -1).amax(-1)[..., None]
            state = torch.where(last > earliest, FINE, state)
            state = torch.where(first > latest, UNSEEN, state)
        empty = (self.keys < 0).all(-1)[:, None] | ~there.any(-1)[..., None]
        return replace(self, state=torch.where(empty, UNSEEN, state).to(torch.int8))

    def _near(self, position: Tensor, neighbours: int) -> Tensor:
        """(B, G, T): the blocks of a group's own tokens, and their neighbours along the order."""
        blocks = self.keys.shape[1]
        of_key = functional.pad(self.key_blocks, (0, 1), value=blocks)  # of no key, the last
        own = of_key.gather(1, position.flatten(1)).unflatten(1, position.shape[1:])
        own = torch.where(own < self.visual, own, blocks)
        marks = torch.zeros(*own.shape[:2], blocks + 1, device=own.device).scatter(2, own, 1.0)[..., :-1]
        wide = functional.max_pool1d(marks, 2 * neighbours + 1, 1, neighbours) if neighbours else marks
        return (wide > 0) & (torch.arange(blocks, device=own.device) < self.visual)

    def masked(self, bias: Tensor) -> BlockLayout:
        """With numbers (B or 1, Q, L) that are added to scores, -inf to hide a key.

        A block that a group does not see whole and unchanged is read token by token.
        """
        keys = functional.pad(bias, (0, 1), value=-math.inf).expand(len(self.keys), -1, -1)
        index = torch.where(self.keys >= 0, self.keys, self.length).flatten(1).long()
        by_block = keys.gather(2, index[:, None].expand(-1, keys.shape[1], -1)).unflatten(2, self.keys.shape[1:])
        slots = (self.keys >= 0)[:, None]
        every, some = ((by_block == 0) | ~slots).all(-1), (by_block > -math.inf).any(-1)  # (B, Q, T)
        rows = self.queries.clamp(min=0).flatten(1).long()[..., None].expand(-1, -1, every.shape[2])
        there = (self.queries >= 0)[..., None]
        shape = (*self.queries.shape, every.shape[2])
        whole = (every.gather(1, rows).view(shape) | ~there).all(2)
        any_seen = (some.gather(1, rows).view(shape) & there).any(2)
        state = torch.where(whole, self.state, torch.full_like(self.state, FINE))
        state = torch.where(any_seen & (self.state != UNSEEN), state, UNSEEN)
        return replace(self, state=state.to(torch.int8))


def _checked(visual: Tensor, batch: int, keys: int) -> Tensor:
    if not isinstance(visual, Tensor):
        raise TypeError(f"BlockLayout.of: visual must be a tensor (n,) or (B, n), got {type(visual).__name__}")
    if visual.dim() not in (1, 2) or visual.is_floating_point() or visual.dtype == torch.bool:
        got = f"{visual.dtype} {tuple(visual.shape)}"
        raise ValueError(f"BlockLayout.of: visual must be indices (n,) or (B, n), got {got}")
    visual = visual.expand(batch, -1) if visual.dim() == 1 else visual
    check_shapes("BlockLayout.of", visual=(visual, f"{batch} n"))
    if visual.numel() and not -1 <= int(visual.min()) <= int(visual.max()) < keys:
        got = f"{int(visual.min())} to {int(visual.max())}"
        raise ValueError(f"BlockLayout.of: visual must be indices of {keys} keys, or -1, got {got}")
    return visual


def _padded(index: Tensor, size: int) -> Tensor:
    """Filled up with -1 to a multiple of `size`, at least one."""
    short = -index.shape[1] % size if index.shape[1] else 0
    return functional.pad(index, (0, short), value=-1)


def _marked(order: Tensor, keys: int) -> Tensor:
    """(B, L): which keys are listed."""
    marks = torch.zeros(len(order), keys + 1, dtype=torch.bool, device=order.device)
    return marks.scatter(1, torch.where(order >= 0, order, keys).long(), True)[:, :-1]


def _listed(marks: Tensor) -> Tensor:
    """(B, n): the marked places of each sample, then -1; n of the sample that has most."""
    most = int(marks.sum(1).max()) if marks.shape[1] else 0
    places = torch.arange(marks.shape[1], device=marks.device, dtype=torch.int32)
    found = torch.where(marks, places, marks.shape[1]).sort(1).values[:, :most]
    return torch.where(found < marks.shape[1], found, -1).int()


def _query_order(order: Tensor, is_visual: Tensor, queries: int, live: Tensor | None) -> Tensor:
    """(B, Q): queries along the order of the keys, text where it stands between them; -1 for what is not live, last."""
    keys = is_visual.shape[1]
    place = torch.arange(order.shape[1], device=order.device, dtype=torch.float64).expand(len(order), -1)
    rank = is_visual.cumsum(1).double() - 0.5
    rank = functional.pad(rank, (0, 1)).scatter(1, torch.where(order >= 0, order, keys).long(), place)[:, :keys]
    rank = rank[:, keys - queries :]
    if live is None:
        return rank.argsort(dim=1, stable=True).int()
    rank = rank.masked_fill(~live[:, keys - queries :].to(rank.device), math.inf)
    ranked, found = rank.sort(dim=1, stable=True)
    return torch.where(ranked < math.inf, found, -1).int()
