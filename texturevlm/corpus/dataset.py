"""Reading a corpus back: a map-style data set, and a stream that is shuffled by shard, split by rank and worker, and
can be resumed. A sample holds tokens as the processor of an attached model takes them. A finished corpus can be written
as one Lance data set, for fast random reads."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from texturevlm.check import check_count
from texturevlm.corpus.choose import allocation_from
from texturevlm.corpus.formats import DTYPES, FORMATS, Reader, Row, schema_of, table_of
from texturevlm.corpus.ledger import Fault, Ledger
from texturevlm.corpus.store import Store
from texturevlm.types import Patches

OPEN_FILES = 8
LANCE_ROWS = 64  # that are written together
Sample = dict[str, Any]


def open(url: str | os.PathLike[str], *, partial: bool = False) -> Corpus:
    """The corpus in a folder; partial: whether it may be unfinished."""
    return Corpus(url, partial=partial)


class Corpus(Dataset[Sample]):
    """All rows, by number, in the order of the source.

    A sample is a dict: key, digest, size, question, allocation, what the corpus was written with, and the other fields
    of the source. `patches` are Patches, which the processor of an attached model takes in the place of an image.
    """

    def __init__(self, url: str | os.PathLike[str], *, partial: bool = False) -> None:
        self.ledger = Ledger(Store(url))
        plan = self.ledger.plan()
        if plan is None:
            raise FileNotFoundError(
                f"corpus.open: url must be the folder of a corpus, got {os.fspath(url)} without a plan"
            )
        self.recipe = plan.recipe
        done = list(self.ledger.done(plan))
        if len(done) < plan.units and not partial:
            raise ValueError(
                f"corpus.open: {len(done)} of {plan.units} units are done; finish it with `texturevlm corpus`, or give "
                "partial=True"
            )
        self.numbers = np.array([number for number, _ in done], dtype=np.int64)
        self.ends = np.cumsum(np.array([unit.rows for _, unit in done], dtype=np.int64))
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self._process = os.getpid()

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, number: int) -> Sample:
        return self.sample(self.row(number))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": OrderedDict()}

    def __repr__(self) -> str:
        return f"Corpus({self.ledger.store.url}, {len(self)} rows of {self.recipe.write}, {len(self.numbers)} units)"

    def faults(self) -> Iterator[Fault]:
        """What could not be made a row, and why."""
        return self.ledger.faults()

    def row(self, number: int) -> Row:
        """What the files hold, as it is."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"corpus: number must be below {len(self)}, got {number}")
        number %= len(self)
        unit = int(np.searchsorted(self.ends, number, side="right"))
        return self._reader(unit)[number - self.first(unit)]

    def first(self, unit: int) -> int:
        """The number of the first row of the unit at a place of `numbers`."""
        return int(self.ends[unit - 1]) if unit else 0

    def _reader(self, unit: int) -> Reader:
        if self._process != os.getpid():  # a fork would share the places in open files with its parent
            self._readers, self._process = OrderedDict(), os.getpid()
        if unit not in self._readers:
            while len(self._readers) >= OPEN_FILES:
                self._readers.popitem(last=False)
            name = self.ledger.data_name(int(self.numbers[unit]), self.recipe)
            self._readers[unit] = FORMATS[self.recipe.format].reader(self.ledger.store.open(name))
        self._readers.move_to_end(unit)
        return self._readers[unit]

    def sample(self, row: Row) -> Sample:
        """A row as tensors."""
        allocation = allocation_from(torch.from_numpy(row.footprints.copy()), row.size, self.recipe.patch)
        fields = {"key": row.key, "digest": row.digest, "size": row.size, "question": row.question}
        payload: Any = torch.from_numpy(row.payload.copy())
        if self.recipe.write == "patches":
            payload = Patches(payload[None].float() / 255, allocation)
        held = {} if self.recipe.write == "allocations" else {self.recipe.write: payload}
        return {**row.more, **fields, "allocation": allocation, **held}

    def stream(self, *, seed: int | None = 0, rank: int | None = None, world: int | None = None) -> Stream:
        """The samples of one rank as an IterableDataset.

        seed:        of the order of units and of the rows in each; None: the order of the source
        rank, world: by default those of torch.distributed, else 0 and 1. All ranks get as many samples: at most
                     world - 1 of all are left out
        """
        return Stream(self, seed, rank, world)


class Stream(IterableDataset[Sample]):
    """A pass over one rank's share of a corpus, shared by the workers of a DataLoader.

    Units are shuffled, and rows within a unit, so that one file is read at a time. Every pass is another epoch with
    another order. `state_dict` and `load_state_dict` are those of torchdata's StatefulDataLoader; without workers they
    can be called directly.
    """

    def __init__(self, corpus: Corpus, seed: int | None, rank: int | None, world: int | None) -> None:
        if (rank is None) != (world is None):
            raise ValueError(f"corpus.stream: rank and world must be given together, got {rank} and {world}")
        if rank is None or world is None:
            ready = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if ready else 0
            world = torch.distributed.get_world_size() if ready else 1
        self.world = check_count("corpus.stream", "world", world, 1)
        self.rank = check_count("corpus.stream", "rank", rank, 0, world - 1)
        self.corpus, self.seed = corpus, seed
        self.epoch = self.position = 0

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return len(self.corpus) // self.world

    def set_epoch(self, epoch: int) -> None:
        """The order of which epoch comes next."""
        self.epoch, self.position = check_count("corpus.stream", "epoch", epoch, 0), 0

    def state_dict(self) -> dict[str, int]:
        """Where this is; in a worker, where that worker is."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where a stream was whose `state_dict` this is."""
        self.epoch, self.position = state["epoch"], state["position"]

    def __iter__(self) -> Iterator[Sample]:
        first, last = self._share()
        for number in self._order(first + self.position, last):
            self.position += 1
            yield self.corpus[number]
        self.epoch, self.position = self.epoch + 1, 0

    def _share(self) -> tuple[int, int]:
        """The places of the shuffled order that are this worker's."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        begin, count = self.rank * len(self), len(self)
        return begin + count * worker // workers, begin + count * (worker + 1) // workers

    def _order(self, first: int, last: int) -> Iterator[int]:
        """The numbers of the rows at places first … last - 1 of the shuffled order."""
        corpus = self.corpus
        units = np.arange(len(corpus.numbers))
        if self.seed is not None:
            np.random.default_rng((self.seed, self.epoch)).shuffle(units)
        place = 0
        for unit in units.tolist():
            count = int(corpus.ends[unit]) - corpus.first(unit)
            if place + count > first and place < last:
                rows = np.arange(count)
                if self.seed is not None:
                    np.random.default_rng((self.seed, self.epoch, unit)).shuffle(rows)
                chosen = rows[max(0, first - place) : last - place]
                yield from (corpus.first(unit) + chosen).tolist()
            place += count


def check_lance(out: str | os.PathLike[str]) -> None:
    """Lance must be installed, and the folder new."""
    if find_spec("lance") is None:
        raise ImportError("corpus: Lance needs the extra lance: pip install 'texturevlm[lance]'")
    if os.path.exists(out):
        raise FileExistsError(f"corpus: lance must be a new folder, got {os.fspath(out)}")


def export_lance(corpus: Corpus, out: str | os.PathLike[str]) -> int:
    """Write all rows, in order, to a new Lance data set; returns how many.

    Their columns are those of the parquet files. Not resumable: what is there is refused, and an unfinished one is not
    seen, since Lance writes its manifest last.
    """
    check_lance(out)
    import lance

    recipe = corpus.recipe
    about = {"write": recipe.write, "patch": recipe.patch, "recipe": recipe.digest}
    schema = schema_of(about, DTYPES[recipe.write])

    def batches() -> Iterator[Any]:
        for first in range(0, len(corpus), LANCE_ROWS):
            numbers = range(first, min(first + LANCE_ROWS, len(corpus)))
            yield from table_of([corpus.row(number) for number in numbers], schema).to_batches()

    lance.write_dataset(batches(), os.fspath(out), schema=schema)
    return len(corpus)
