"""Candidates that form a hierarchy: coarse tokens over a page, each cut in four, and in four again.

What is learned is a cut of it: which tokens are replaced by their children. The tower reads each level by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.allocate.quadtree import Forest
from texturevlm.placement import choose_tokens
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import PromptImage, View
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.train.answer_examples import AnswerExample, AnswerExamples, on_grid
from texturevlm_lab.train.soft_choice import generations, relaxed_cut

CUTS = 2  # of the coarse tokens
FINEST = 1.0  # pixels per sample: no candidate is finer


@dataclass(frozen=True, eq=False)
class CutExample(AnswerExample):
    """One question about a page whose candidates are nodes.

    place:  (N, 2), row and column of each node on the grid of its own level
    grid:   of the coarse nodes
    counts: nodes of each level, which stand one after the other, coarse ones first
    parent: (N,), −1 for the coarse ones
    """

    counts: list[int]
    parent: Tensor

    def scores(self, ranker: nn.Module) -> Tensor:
        """(N,): the logarithm of the mass of each node, which is what a split of it gains."""
        depth, found = len(self.counts) - 1, []
        mass = self.mass(ranker, (self.grid[0] << depth, self.grid[1] << depth))[None]
        for level, place in enumerate(self.place.split(self.counts)):
            wide = 1 << depth - level
            found.append(functional.avg_pool2d(mass, wide)[0][tuple(place.T)] * wide**2)
        return torch.cat(found).log()

    def weights(self, scores: Tensor, budget: int, temperature: float) -> Tensor:
        return relaxed_cut(scores, self.parent, budget, temperature)

    def best(self, scores: Tensor, budget: int) -> Tensor:
        parent, mass = self.parent.cpu().numpy(), scores.detach().double().exp().cpu().numpy()
        below = np.zeros(len(parent))  # generations under each node: a split then gains the mass of its node
        for nodes in generations(self.parent.cpu())[:0:-1]:
            np.maximum.at(below, parent[nodes], below[nodes] + 1)
        return torch.from_numpy(Forest(parent, np.ones(len(parent)), mass * below).cut(budget)).to(scores.device)


class CutExamples(AnswerExamples):
    """Makes such examples. candidates: finest nodes at most, of which a sixteenth are coarse tokens"""

    @torch.no_grad()
    def example(self, sample: Sample) -> CutExample:
        page = self._page(sample.image)
        level = (page.view.step[0, 0] / page.view.step[:, 0]).log2().round().long()  # the first node is coarse
        counts = level.bincount().tolist()
        first, grid = on_grid(page.view.centre[: counts[0]], page.size)
        place, parent = _nested(page.view.slot, counts, first)
        return CutExample(**self._shared(sample, page), place=place, grid=grid, counts=counts, parent=parent)

    def views(self, texture: Texture) -> list[View]:
        """The nodes of a page, coarse ones first."""
        side = self.vlm.adapter.side
        how: Any = {"budget": max(1, self.candidates // 4**CUTS), "patch": side}
        coarse = choose_tokens(texture, allocator="resize", relevance="none", **how)
        boxes = [coarse.boxes[:, coarse.valid[0]]]
        wide = boxes[0][0, 0, 2:] - boxes[0][0, 0, :2]
        for cut in range(1, CUTS + 1):
            if float(wide.min()) / 2**cut >= FINEST * side:
                boxes.append(_quartered(boxes[-1]))
        allocation = Allocation.of_boxes(torch.cat(boxes, 1), texture.size, side)
        groups = self.vlm.adapter.groups(PromptImage(texture, allocation), levels="apart")
        return [view for group in groups for view in group]


def _quartered(boxes: Tensor) -> Tensor:
    """(1, K, 4) → (1, 4 · K, 4), xyxy."""
    low, high = boxes.split(2, -1)
    middle = (low + high) / 2
    parts = []
    for right in (0, 1):
        for down in (0, 1):
            at = torch.tensor([right, down], device=boxes.device, dtype=torch.bool)
            parts.append(torch.cat([middle.where(at, low), high.where(at, middle)], -1))
    return torch.cat(parts, 1)


def _nested(slot: Tensor, counts: list[int], first: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each node on the grid of its level (N, 2), and its parent (N,).

    slot:   (N,), where each node stood before it was sorted: level by level, each as `_quartered` makes it
    counts: nodes of each level
    first:  (n, 2), rows and columns of the coarse nodes
    """
    at = torch.empty_like(slot)
    at[slot] = torch.arange(len(slot), device=slot.device)  # of a slot, the node
    place, parent = [first], [torch.full_like(slot[: counts[0]], -1)]
    for level in range(1, len(counts)):
        before, own = sum(counts[: level - 1]), sum(counts[:level])
        within = slot[own : own + counts[level]] - own
        parent.append(at[before + within % counts[level - 1]])
        part = within // counts[level - 1]
        offset = torch.stack([part % 2, part // 2], 1)  # down, right
        place.append(2 * torch.cat(place)[parent[-1]] + offset)
    return torch.cat(place), torch.cat(parent)
