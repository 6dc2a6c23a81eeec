"""Rows in a safetensors file: the tokens of all rows one after another, and where each row ends.

footprints (N, 7), payload (M, …), ends (rows, 2): where the footprints and the payload of each row end. Everything else
is in the header, as one JSON text: safetensors does not keep the order of several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from texturevlm.corpus.rows import FOOTPRINT, Row


class SafetensorsWriter:
    """Holds the rows of its unit until `close`, since the header comes first."""

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        self.path, self.about, self.dtype = path, about, dtype or "uint8"
        self.rows: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def close(self) -> None:
        from safetensors.numpy import save_file

        fields = [
            {"key": row.key, "digest": row.digest, "size": list(row.size), "question": row.question, "more": row.more}
            for row in self.rows
        ]
        lengths = [(len(row.footprints), len(row.payload)) for row in self.rows]
        footprints = [np.zeros((0, FOOTPRINT), np.float32), *(row.footprints for row in self.rows)]
        payloads = [row.payload for row in self.rows] or [np.zeros(0, self.dtype)]
        tensors = {
            "footprints": np.concatenate(footprints),
            "payload": np.concatenate(payloads),
            "ends": np.cumsum(np.array(lengths, dtype=np.int64).reshape(-1, 2), 0),
        }
        header = json.dumps({**self.about, "rows": fields}, sort_keys=True, default=str)
        save_file(tensors, self.path, metadata={"texturevlm": header})


class SafetensorsReader:
    """Reads rows by their number, from a file on this machine."""

    def __init__(self, file: BinaryIO) -> None:
        from safetensors import safe_open

        name = getattr(file, "name", None) or getattr(file, "path", None)
        if not isinstance(name, str) or not Path(name).is_file():
            raise ValueError(
                f"corpus: safetensors are read from a disk of this machine; download the corpus, got {name}"
            )
        opened: Any = safe_open  # its methods have no annotations
        self.file = opened(name, framework="numpy")
        self.fields: list[dict[str, Any]] = json.loads(self.file.metadata()["texturevlm"])["rows"]
        self.ends = self.file.get_tensor("ends")

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, number: int) -> Row:
        fields, last = self.fields[number], self.ends[number]
        first = self.ends[number - 1] if number else np.zeros(2, np.int64)
        return Row(
            key=fields["key"],
            digest=fields["digest"],
            size=(fields["size"][0], fields["size"][1]),
            question=fields["question"],
            footprints=self.file.get_slice("footprints")[int(first[0]) : int(last[0])],
            payload=self.file.get_slice("payload")[int(first[1]) : int(last[1])],
            more=fields["more"],
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))
