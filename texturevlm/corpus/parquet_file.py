"""Rows in a parquet file, in small row groups, so that one row can be read without the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from texturevlm.corpus.rows import FOOTPRINT, Row

GROUP = 16  # rows


class ParquetWriter:
    """path: of the file; about: what the metadata say of it; dtype: of payloads."""

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        import pyarrow
        from pyarrow import parquet

        text, whole, number = pyarrow.string(), pyarrow.int32(), pyarrow.float32()
        self.schema = pyarrow.schema(
            [
                *(("key", text), ("digest", text), ("height", whole), ("width", whole), ("question", text)),
                *(("tokens", whole), ("footprints", pyarrow.list_(number)), ("payload", pyarrow.binary())),
                *(("shape", pyarrow.list_(whole)), ("more", text)),
            ],
            metadata={"texturevlm": json.dumps({**about, "dtype": dtype}, sort_keys=True)},
        )
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
        import pyarrow

        columns = {
            "key": [row.key for row in rows],
            "digest": [row.digest for row in rows],
            "height": [row.size[0] for row in rows],
            "width": [row.size[1] for row in rows],
            "question": [row.question for row in rows],
            "tokens": [len(row.footprints) for row in rows],
            "footprints": [row.footprints.reshape(-1) for row in rows],
            "payload": [row.payload.tobytes() for row in rows],
            "shape": [list(row.payload.shape) for row in rows],
            "more": [json.dumps(row.more, sort_keys=True, default=str) if row.more else "" for row in rows],
        }
        self.file.write_table(pyarrow.table(columns, schema=self.schema), row_group_size=len(rows))


class ParquetReader:
    """Reads rows by their number."""

    def __init__(self, file: BinaryIO) -> None:
        from pyarrow import parquet

        self.file = parquet.ParquetFile(file)
        self.dtype = json.loads(self.file.schema_arrow.metadata[b"texturevlm"])["dtype"] or "uint8"
        self._group: tuple[int, list[dict[str, Any]]] = (-1, [])

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def __getitem__(self, number: int) -> Row:
        group, place = divmod(number, GROUP)
        if self._group[0] != group:
            self._group = group, self.file.read_row_group(group).to_pylist()
        found = self._group[1][place]
        return Row(
            key=found["key"],
            digest=found["digest"],
            size=(found["height"], found["width"]),
            question=found["question"],
            footprints=np.array(found["footprints"], dtype=np.float32).reshape(-1, FOOTPRINT),
            payload=np.frombuffer(found["payload"], dtype=self.dtype).reshape(found["shape"]),
            more=json.loads(found["more"]) if found["more"] else {},
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))
