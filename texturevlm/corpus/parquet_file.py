"""Rows in a parquet file, in small row groups, so that one row can be read without many others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from texturevlm.corpus.arrow import dtype_of, row_of, schema_of, table_of
from texturevlm.corpus.rows import Row

GROUP = 16  # rows


class ParquetWriter:
    """path: of the file; about: what the metadata say of it; dtype: of payloads."""

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        from pyarrow import parquet

        self.schema = schema_of(about, dtype)
        self.file = parquet.ParquetWriter(path, self.schema, compression="zstd", compression_level=1)
        self.waiting: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        self.waiting += rows
        while len(self.waiting) >= GROUP:
            self._write(self.waiting[:GROUP])
            del self.waiting[:GROUP]

    def close(self) -> None:
        if self.waiting:
            self._write(self.waiting)
        self.waiting = []
        self.file.close()

    def _write(self, rows: Sequence[Row]) -> None:
        self.file.write_table(table_of(rows, self.schema), row_group_size=len(rows))


class ParquetReader:
    """Reads rows by their number."""

    def __init__(self, file: BinaryIO) -> None:
        from pyarrow import parquet

        self.file = parquet.ParquetFile(file)
        self.dtype = dtype_of(self.file.schema_arrow)
        self._group: tuple[int, list[dict[str, Any]]] = (-1, [])

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def __getitem__(self, number: int) -> Row:
        group, place = divmod(number, GROUP)
        if self._group[0] != group:
            self._group = group, self.file.read_row_group(group).to_pylist()
        return row_of(self._group[1][place], self.dtype)

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))
