"""A pool of pages with a budget of bytes: which pages stay, and which leave for others.

A page's worth is the priority of its last use, a quarter of it for each round since: least recently used pages leave
first, relevant ones later. A newcomer must be worth more than the page that it replaces by a margin, so that two pages
of nearly equal worth do not replace each other round after round.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

DECAY = 0.25  # of a page's worth, per round in which it is not used
MARGIN = 1.25  # a newcomer must be worth this many times what it replaces
LEAST = 0.05  # priority, where the highest of a round is 1: a page that is wanted at all


class PagePool:
    """Slots of pages on a device, and the page table that says where each page is.

    texels: (S, P, P, 3) uint8
    table:  (N,) int32, the slot of each of N pages; -1: not in the pool
    """

    def __init__(self, pages: int, page: int, budget: int, device: torch.device) -> None:
        slots = max(1, min(pages, budget // (3 * page * page)))
        self.texels = torch.empty((slots, page, page, 3), dtype=torch.uint8, device=device)
        self.table = torch.full((pages,), -1, dtype=torch.int32, device=device)
        self.slots: dict[int, int] = {}  # by page
        self._free = list(range(slots))[::-1]
        self._used: dict[int, tuple[float, int]] = {}  # by page: the priority of its last use, and its round
        self._round, self._priority = 0, dict[int, float]()  # of this round

    def __contains__(self, page: int) -> bool:
        return page in self.slots

    def admitted(self, wanted: Mapping[int, float]) -> list[int]:
        """Begin a round in which these pages are wanted; which of those that are missing may come in, best first.

        wanted: priorities by page, above 0, of any scale. Pages that are there are marked as used
        """
        self._round += 1
        highest = max(wanted.values(), default=1.0)
        self._priority = priority = {page: max(LEAST, value / highest) for page, value in wanted.items()}
        for page in wanted:
            if page in self.slots:
                self._used[page] = priority[page], self._round
        missing = sorted((page for page in wanted if page not in self.slots), key=lambda page: -priority[page])
        leaving = sorted(self.slots, key=self._worth, reverse=True)
        free = len(self._free)
        found = []
        for page in missing:
            if free:
                free -= 1
            elif leaving and priority[page] > MARGIN * self._worth(leaving[-1]):
                self._remove(leaving.pop())
            else:
                break
            found.append(page)
        return found

    def put(self, page: int, texels: Tensor) -> None:
        """Put a page (P, P, 3) uint8 that was admitted into a free slot."""
        slot = self._free.pop()
        self.slots[page] = slot
        self._used[page] = self._priority[page], self._round
        self.texels[slot].copy_(texels)
        self.table[page] = slot

    def _worth(self, page: int) -> float:
        priority, last = self._used[page]
        return priority * float(DECAY ** (self._round - last))

    def _remove(self, page: int) -> None:
        self._free.append(self.slots.pop(page))
        del self._used[page]
        self.table[page] = -1
