"""The pages of a large image behind a Texture: what samples and relevance read is fetched when it is asked for.

Pages stay in a pool with a budget of bytes. A page's worth is the priority of its last use, a quarter of it for each
round since: least recently used pages leave first, relevant ones later. A newcomer must be worth more by a margin than
the page that it replaces, so that two pages of nearly equal worth do not replace each other round after round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from threading import RLock

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.ops import BYTE, PagedLevels, mipmap, sample_patches
from texturevlm.virtual.mips import MipPages
from texturevlm.virtual.sources import PageKey, PageSource

POOL_BYTES = 1 << 26  # of pages in memory: 341 of 256×256 texels
SAMPLE_SHARE = 0.005  # of the pages that one call of `sample` may read; what is beyond stays coarse
MANY_PAGES = 4096  # a source of fewer has no such limit: 14,000 × 14,000 pixels
TOKENS_AT_ONCE = 512  # footprints that are sampled together: the memory of a call

DECAY = 0.25  # of a page's worth, per round in which it is not used
MARGIN = 1.25  # a newcomer must be worth this many times what it replaces
LEAST = 0.05  # priority, where the highest of a round is 1: a page that is wanted at all

Box = tuple[int, int, int, int]  # top, left, bottom, right, in texels of a level


class VirtualPages:
    """Levels of a source: fine ones by pages, from `base` on whole, in `coarse`, finest of them first.

    source:     see PageSource
    pool_bytes: of pages that are kept in memory
    size, base, counters: as in MipPages
    """

    def __init__(self, source: PageSource, *, pool_bytes: int = POOL_BYTES, device: torch.device | str = "cpu") -> None:
        check_count("Texture.open", "pool_bytes", pool_bytes, 1)
        self.mips, self.pool_bytes, self.device = MipPages(source), pool_bytes, torch.device(device)
        self.size, self.base, self.counters = self.mips.size, self.mips.base, self.mips.counters
        self.broken: set[int] = set()  # pages that cannot be read, which nobody asks for again
        counts = [math.prod(self.mips.grid(level)) for level in range(self.base)]
        self._first = list(accumulate(counts, initial=0))
        whole = self._whole().to(self.device)
        self.coarse = tuple(mipmap(whole))
        self._fill()

    def _fill(self) -> None:
        self._lock = RLock()  # answers are generated in threads
        self.pool = PagePool(self._first[-1], self.mips.page, self.pool_bytes, self.device)
        self._levels = PagedLevels(self.size, self.coarse, self.pool.texels, self.pool.table)

    @property
    def pages(self) -> int:
        """How many pages the fine levels have."""
        return self._first[-1]

    def __repr__(self) -> str:
        done, total = self.counters, self.mips.source.total_bytes
        return (
            f"{done.pages_read} pages read, {done.bytes_read / 1e6:.2f} MB of {total / 1e6:.1f} MB "
            f"({done.bytes_read / total:.2%})"
        )

    def to(self, device: torch.device | str) -> VirtualPages:
        """The same pages with a pool on another device; what was read is counted together."""
        moved = object.__new__(VirtualPages)
        moved.__dict__.update(self.__dict__)
        moved.device = torch.device(device)
        moved.coarse = tuple(level.to(device) for level in self.coarse)
        moved._fill()
        return moved

    def sample(
        self, centre: Tensor, ddx: Tensor, ddy: Tensor, *, patch: int, weight: Tensor, backend: str = "auto"
    ) -> Tensor:
        """Sample footprints as `sample_patches` does: a first pass finds the missing pages, a second one reads them.

        weight: (1, K), how much each footprint matters, 0 for unused slots: the pages of what matters most are fetched
                first, and where SAMPLE_SHARE or the pool ends, coarser texels are delivered
        backend: auto, reference or cuda
        returns (1, K, 3, P, P)
        """
        footprints = centre, ddx, ddy
        with self._lock:
            self._levels.wanted.zero_()
            pixels = self._sampled(footprints, patch, weight, backend)
            wanted = self._levels.wanted.cpu()
            found = {page: float(wanted[page]) for page in wanted.nonzero()[:, 0].tolist()}
            if self.pages > MANY_PAGES and len(found) > (most := int(SAMPLE_SHARE * self.pages)):
                found = dict(sorted(found.items(), key=itemgetter(1), reverse=True)[:most])
            return self._sampled(footprints, patch, None, backend) if self.fetch(found) else pixels

    def _sampled(self, footprints: Sequence[Tensor], patch: int, weight: Tensor | None, backend: str) -> Tensor:
        parts = []
        for start in range(0, footprints[0].shape[1], TOKENS_AT_ONCE):
            some = slice(start, start + TOKENS_AT_ONCE)
            self._levels.watch(None if weight is None else weight[:, some], patch)
            where = (vectors[:, some] for vectors in footprints)
            parts.append(sample_patches(self._levels, *where, patch=patch, backend=backend))
        return torch.cat(parts, 1)

    def crop(self, level: int, box: Box) -> Tensor:
        """(1, 3, h, w): texels of a level, of what is in memory; coarser ones where a page is missing."""
        top, left, bottom, right = box
        y, x = torch.meshgrid(
            torch.arange(top, bottom, device=self.device), torch.arange(left, right, device=self.device), indexing="ij"
        )
        with self._lock:
            self._levels.watch(None, 1)
            texels = self._levels.read(torch.full_like(y, level).flatten()[None], y.flatten()[None], x.flatten()[None])
        return texels.reshape(1, bottom - top, right - left, 3).permute(0, 3, 1, 2).contiguous()

    def pages_of(self, level: int, box: Box) -> list[int]:
        """The pages that hold a box of a level."""
        top, left, bottom, right = (edge // self.mips.page for edge in (*box[:2], box[2] - 1, box[3] - 1))
        columns = self.mips.grid(level)[1]
        rows = range(top, bottom + 1)
        return [self._first[level] + row * columns + column for row in rows for column in range(left, right + 1)]

    def fetch(self, wanted: Mapping[int, float]) -> int:
        """Read those of the pages that are missing, as far as the pool has room; how many came. wanted: priorities."""
        with self._lock:
            known = {page: value for page, value in wanted.items() if value > 0 and page not in self.broken}
            admitted, came = {self._key(page): page for page in self.pool.admitted(known)}, 0
            for key, texels in self.mips.read(list(admitted)):
                if texels is None:
                    self.broken.add(admitted[key])
                else:
                    self.pool.put(admitted[key], texels)
                    came += 1
            return came

    def _key(self, page: int) -> PageKey:
        level = next(level for level, last in enumerate(self._first[1:]) if page < last)
        return PageKey(level, *divmod(page - self._first[level], self.mips.grid(level)[1]))

    def _whole(self) -> Tensor:
        """The level `base`, (1, 3, H, W). A page that cannot be read is enlarged from a coarser level."""
        (height, width), side = self.mips.extents[self.base], self.mips.page
        rows, columns = self.mips.grid(self.base)
        whole = torch.empty((rows * side, columns * side, 3), dtype=torch.uint8)
        keys = [PageKey(self.base, row, column) for row in range(rows) for column in range(columns)]
        for key, texels in self.mips.read(keys):
            found = self._enlarged(key) if texels is None else texels
            whole[key.row * side : (key.row + 1) * side, key.column * side : (key.column + 1) * side] = found
        most = torch.full((), float(BYTE))  # see image._scaled
        return whole[None, :height, :width].permute(0, 3, 1, 2).float().contiguous() / most

    def _enlarged(self, key: PageKey) -> Tensor:
        """A page from the first coarser level that is stored and can be read."""
        side, coarsest = self.mips.page, self.mips.source.levels[-1].size
        for level in range(key.level + 1, len(self.mips.extents)):
            if math.prod(self.mips.extents[level]) < math.prod(coarsest):
                break
            times = 2 ** (level - key.level)
            ((_, texels),) = self.mips.read([PageKey(level, key.row // times, key.column // times)])
            if texels is not None:
                y, x = (side * (place % times) // times for place in (key.row, key.column))
                part = texels[y : y + -(-side // times), x : x + -(-side // times)]
                return part.repeat_interleave(times, 0).repeat_interleave(times, 1)[:side, :side]
        raise ValueError(f"Texture.open: {self.counters.errors[0]}, and no coarser level can stand in")


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
