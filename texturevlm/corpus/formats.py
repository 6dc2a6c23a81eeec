"""The formats of a corpus by name: a writer that is given rows in order, and a reader of rows by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from texturevlm.corpus.parquet_file import ParquetReader, ParquetWriter
from texturevlm.corpus.rows import Row
from texturevlm.corpus.safetensors_file import SafetensorsReader, SafetensorsWriter
from texturevlm.corpus.tar_file import TarReader, TarWriter


class Writer(Protocol):
    def add(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Row: ...
    def __iter__(self) -> Iterator[Row]: ...


class Format(NamedTuple):
    """needs: a package of the extra corpus; "" for none"""

    suffix: str
    writer: Callable[[Path, dict[str, Any], str], Writer]
    reader: Callable[[BinaryIO], Reader]
    needs: str


FORMATS: dict[str, Format] = {
    "parquet": Format("parquet", ParquetWriter, ParquetReader, "pyarrow"),
    "webdataset": Format("tar", TarWriter, TarReader, ""),
    "safetensors": Format("safetensors", SafetensorsWriter, SafetensorsReader, "safetensors"),
}


def check_format(name: str) -> None:
    """Its package must be installed."""
    needs = FORMATS[name].needs
    if needs and find_spec(needs) is None:
        raise ImportError(f"corpus: format {name!r} needs {needs}: pip install 'texturevlm[corpus]'")
