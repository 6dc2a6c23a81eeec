"""Tokens leave or merge before the vision tower, or between two of its blocks.

What is behind the tower sees its usual length: a merged token stands in the place of each of its members, a dropped one
is zero. In front of the language model the members merge, and the dropped ones leave, so that positions, DeepStack and
the prompt need nothing. A token is the merge² patches that the model turns into one embedding; they go together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm import Geometry, unpack
from texturevlm.vlm.places import pack
from texturevlm_lab.rivals import Context, Planned, Reduction, stage_budget
from texturevlm_lab.rivals.hooks.seen import Seen
from texturevlm_lab.rivals.reduction import DROPPED
from texturevlm_lab.rivals.select import shared_out
from texturevlm_lab.rivals.token_squares import shown_pixels


class TowerReduction(ABC):
    """The hooks of one tower.

    adapter: bound
    plan:    the stages before the tower and in it
    targets: (step, prompt) → tokens that stay when the step is complete, of the last run
    """

    def __init__(self, adapter: Any, plan: Sequence[Planned]) -> None:
        self.adapter, self.plan = adapter, plan
        self.targets: dict[tuple[int, int], int] = {}
        self._picture_targets: dict[tuple[int, int], int] = {}
        self.ids: Tensor | None = None  # of the prompts whose images come next

    @abstractmethod
    def hooks(self) -> Iterator[Any]:
        """Hook the tower; yields what has `remove`."""

    # Before the tower.

    def begin(self, seen: Seen, rows: Tensor) -> Tensor:
        """Prepare a run over tokens, and run the stages before the tower.

        seen: the tokens, in the order of the prompts
        rows: (n · merge², row), packed
        returns the rows, those of downsampled tokens changed
        """
        self.seen, count = seen, len(seen.image)
        self._share_out(self._prompt_of(count))
        self._stays = torch.ones(count, dtype=torch.bool, device=rows.device)
        self._group = torch.arange(count, device=rows.device)
        for one in self._due("pixels"):
            rows = self._before_tower(one, rows)
        self._group[~self._stays] = DROPPED
        return rows

    def ended(self, seen: Seen) -> Seen:
        """With the groups that the tokens of the run are in now."""
        return replace(seen, group=self._group, stays=self._stays)

    def _due(self, place: str, after: int = 0) -> list[Planned]:
        return [one for one in self.plan if one.stage.place == place and one.after == after]

    def _prompt_of(self, count: int) -> Tensor:
        """(n,): the prompt of each token."""
        ids = self.ids
        marks = torch.tensor(self.adapter.visual_ids, device=None if ids is None else ids.device)
        each = torch.tensor([count]) if ids is None else torch.isin(ids, marks).sum(1)
        if int(each.sum()) != count:
            raise ValueError(
                f"reduce: prompts must have images or videos, not both, where tokens leave before the projector, "
                f"got {int(each.sum())} visual tokens, {count} of one kind"
            )
        return torch.arange(len(each)).repeat_interleave(each.cpu())

    def _share_out(self, prompt: Tensor) -> None:
        """Per step, what stays of each prompt and of each of its pictures, in proportion to their tokens."""
        self.targets, self._picture_targets = {}, {}
        picture = self.seen.image.cpu()
        counts = torch.bincount(picture).tolist()
        owner = [int(prompt[picture == one][0]) for one in range(len(counts))]
        for index, step in {one.index: one.step for one in self.plan}.items():
            for own in set(owner):
                mine = [one for one, of in enumerate(owner) if of == own]
                have = torch.tensor([counts[one] for one in mine])
                target = step.target(int(have.sum()))
                if target < len(mine):
                    raise ValueError(
                        f"reduce: keep of {step.method} must be at least the number of pictures of a prompt, "
                        f"{len(mine)}, got {target}"
                    )
                self.targets[index, own] = target
                for one, more in zip(mine, shared_out(have.float(), have - 1, target - len(mine))):
                    counts[one] = self._picture_targets[index, one] = 1 + more

    def _budget(self, one: Planned, picture: int, count: int) -> int:
        return stage_budget(count, min(self._picture_targets[one.index, picture], count), one.left)

    def _before_tower(self, one: Planned, rows: Tensor) -> Tensor:
        merge, width = self.adapter.merge, self.adapter.row_width
        pixels, geometry, weight = unpack(rows, width)
        samples, patch = self._samples(pixels), geometry.patch.clone().unflatten(0, (-1, merge**2))
        for picture in self.seen.image.unique().tolist():
            own = ((self.seen.image == picture) & self._stays).nonzero()[:, 0]
            known = self.seen.part(own)
            context = Context(
                features=samples[own].flatten(1).float(),
                position=known.position,
                size=torch.ones_like(known.weight),
                weight=known.weight,
                image=torch.zeros_like(known.image),
                pixels=samples[own].flatten(1, 2),
            )
            found = one.stage(context, self._budget(one, picture, len(own)))
            self._stays[own] = False
            self._stays[own[found.kept]] = True
            if found.merges:
                values, first, wide = shown_pixels(context, found)
                kept = own[found.kept]
                samples[kept] = values.view_as(samples[kept]).to(samples.dtype)
                patch[kept] = _spread(patch[kept], first - known.position[found.kept, 1:], wide, merge)
        changed = Geometry(**{**vars(geometry), "patch": patch.flatten(0, 1)})
        return pack(self.adapter.patch_rows(samples), changed, weight).to(rows.dtype)

    def _samples(self, pixels: Tensor) -> Tensor:
        """Rows (n · merge², row_width) → (n, T, C, S, S), the inverse of the adapter's `patch_rows`."""
        merge = self.adapter.merge
        inner = self.adapter.side // merge
        cut = pixels.reshape(-1, merge, merge, 3, pixels.shape[-1] // (3 * inner**2), inner, inner)
        samples = cut.permute(0, 4, 3, 1, 5, 2, 6).reshape(len(cut), -1, 3, merge * inner, merge * inner)
        return samples

    # Between two blocks. Tokens are here in the tower's order.

    def enter(self, order: Tensor) -> None:
        """Begin to run the tower on some tokens (n,), in the order of its rows."""
        self._order = order
        self._live = self._stays[order].nonzero()[:, 0]  # of each current token, its place in `order`
        self._slot = torch.full_like(order, DROPPED)  # of each token, the current one that it is in
        self._slot[self._live] = torch.arange(len(self._live), device=order.device)
        self._size = torch.ones(len(self._live), device=order.device)
        self._before: Tensor  # (M, merge², D), what the block before was given

    def leave(self) -> None:
        """End that, and note the groups."""
        self._stays[self._order] = False
        self._stays[self._order[self._live]] = True
        ends = torch.cat([self._order[self._live], self._order.new_full((1,), DROPPED)])
        self._group[self._order] = ends[self._slot]

    @property
    def _whole(self) -> bool:
        return len(self._live) == len(self._order)

    def _reduced(self, one: Planned, hidden: Tensor, keys: Tensor | None) -> Tensor:
        """Reduce the current tokens (M, merge², D); keys: (H, M, d)."""
        known = self.seen.part(self._order[self._live])
        chosen, goes = [], torch.full_like(self._live, DROPPED)
        for picture in known.image.unique().tolist():
            own = (known.image == picture).nonzero()[:, 0]
            part = known.part(own)
            context = Context(
                features=hidden[own].mean(1),
                position=part.position,
                size=self._size[own],
                weight=part.weight,
                image=torch.zeros_like(part.image),
                keys=None if keys is None else keys[:, own],
            )
            found = one.stage(context, self._budget(one, picture, len(own)))
            kept = own[found.kept]
            chosen.append(kept)
            goes[own] = torch.cat([kept, kept.new_full((1,), DROPPED)])[found.into]
        whole = Reduction.merging(torch.cat(chosen), goes)
        hidden, self._before = (whole.mean(values, self._size) for values in (hidden, self._before))
        self._size, self._live = whole.sizes(self._size), self._live[whole.kept]
        self._slot = torch.cat([whole.into, whole.into.new_full((1,), DROPPED)])[self._slot]
        return hidden

    def expanded(self, values: Tensor) -> Tensor:
        """Of the current tokens (M · u, ...) → of all (N · u, ...), u rows per token."""
        if self._whole:
            return values
        rows = values.unflatten(0, (len(self._live), -1))
        return torch.cat([rows, torch.zeros_like(rows[:1])])[self._slot].flatten(0, 1)


def _spread(patch: Tensor, moved: Tensor, wide: Tensor, merge: int) -> Tensor:
    """Positions of the patches (M, merge², 2) of tokens that show an area `wide` cells (M,) from `moved` (M, 2) on."""
    inside = torch.arange(merge, device=patch.device).to(patch)
    grid = torch.stack(torch.meshgrid(inside, inside, indexing="ij"), -1).view(1, -1, 2)
    factor = wide.to(patch)[:, None, None]
    return patch - grid + moved.to(patch)[:, None] * merge + (grid + 0.5) * factor - 0.5
