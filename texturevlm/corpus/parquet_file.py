"""Rows in a parquet file, in small row groups, so that one row can be read without many others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from texturevlm.corpus.arrow import dtype_of, row_of, schema_of, table_of
from texturevlm.corpus.rows import Row

GROUP = 16  # rows, or
GROUP_BYTES = 1 << 21  # of payloads, whichever is reached first: shuffled reading decompresses a group per row


class ParquetWriter:
    """path: of the file; about: what the metadata say of it; dtype: of payloads."""

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        from pyarrow import parquet

        self.schema = schema_of(about, dtype)
        # Dictionaries and statistics of payloads would take a sixth of the time, and help nobody.
        plain: Any = {"use_dictionary": ["question"], "write_statistics": ["key"]}
        self.file = parquet.ParquetWriter(path, self.schema, compression="zstd", compression_level=1, **plain)
        self.waiting: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.waiting.append(row)
            if len(self.waiting) >= GROUP or sum(one.payload.nbytes for one in self.waiting) >= GROUP_BYTES:
                self._write()

    def close(self) -> None:
        if self.waiting:
            self._write()
        self.file.close()

    def _write(self) -> None:
        self.file.write_table(table_of(self.waiting, self.schema), row_group_size=len(self.waiting))
        self.waiting = []


class ParquetReader:
    """Reads rows by their number."""

    def __init__(self, file: BinaryIO) -> None:
        from pyarrow import parquet

        self.file = parquet.ParquetFile(file)
        self.dtype = dtype_of(self.file.schema_arrow)
        groups = (self.file.metadata.row_group(index).num_rows for index in range(self.file.num_row_groups))
        self._firsts = list(accumulate(groups, initial=0))
        self._group: tuple[int, list[dict[str, Any]]] = (-1, [])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, number: int) -> Row:
        group = bisect_right(self._firsts, number) - 1
        if self._group[0] != group:
            self._group = group, self.file.read_row_group(group).to_pylist()
        return row_of(self._group[1][number - self._firsts[group]], self.dtype)

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))
