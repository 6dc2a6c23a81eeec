"""Rows of a corpus and the files that hold them: parquet, WebDataset tars, safetensors.

A writer is given the rows of a unit in order; a reader gives a row by its number. To add a format, write two classes
like these and a line in FORMATS.
"""

from __future__ import annotations

import io
import json
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
FOOTPRINT = 7  # numbers: centre, ddx and ddy, x then y each, in pixels of the image; score
DTYPES = {"patches": "uint8", "features": "float16", "codes": "uint16", "allocations": "", "thumbnails": "uint8"}
GROUP = 16  # rows of a parquet file that are compressed together, or
GROUP_BYTES = 1 << 21  # of payloads, whichever is reached first: shuffled reading decompresses a group per row
ABOUT = "texturevlm"  # the key of what the metadata of a file say


@dataclass(frozen=True, eq=False)
class Row:
    """The tokens of one image, the same in every format.

    key:        of the image in its source
    digest:     BLAKE2b of its file
    size:       (height, width)
    footprints: (n, 7) float32, see FOOTPRINT
    payload:    patches (n, 3, P, P) uint8; features (n, 1 + layers of DeepStack, D) float16; codes (n, groups, stages)
                uint16; thumbnails: the bytes of a JPEG (m,) uint8; allocations: nothing (0,)
    more:       other fields of the source
    """

    key: str
    digest: str
    size: tuple[int, int]
    question: str
    footprints: Array
    payload: Array
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """What is not an array, for JSON."""
        named = {name: getattr(self, name) for name in ("key", "digest", "question", "more")}
        return {**named, "size": list(self.size)}

    @classmethod
    def of(cls, fields: Mapping[str, Any], footprints: Array, payload: Array) -> Row:
        """The row that `fields` and the arrays were taken from."""
        height, width = fields["size"]
        named = {name: fields[name] for name in ("key", "digest", "question", "more")}
        return cls(size=(height, width), footprints=footprints, payload=payload, **named)


def schema_of(about: Mapping[str, Any], dtype: str) -> Any:
    """The columns of a table of Arrow, for parquet and Lance; dtype: of payloads."""
    import pyarrow

    text, whole = pyarrow.string(), pyarrow.int32()
    columns = [
        *(("key", text), ("digest", text), ("height", whole), ("width", whole), ("question", text), ("tokens", whole)),
        *(("footprints", pyarrow.list_(pyarrow.float32())), ("payload", pyarrow.binary())),
        *(("shape", pyarrow.list_(whole)), ("more", text)),
    ]
    return pyarrow.schema(columns, metadata={ABOUT: json.dumps({**about, "dtype": dtype}, sort_keys=True)})


def table_of(rows: Sequence[Row], schema: Any) -> Any:
    """Rows as a table of Arrow."""
    import pyarrow

    columns = {
        "key": [row.key for row in rows],
        "digest": [row.digest for row in rows],
        "height": [row.size[0] for row in rows],
        "width": [row.size[1] for row in rows],
        "question": [row.question for row in rows],
        "tokens": [len(row.footprints) for row in rows],
        "footprints": [row.footprints.reshape(-1) for row in rows],
        "payload": _payloads(rows),
        "shape": [list(row.payload.shape) for row in rows],
        "more": [json.dumps(row.more, sort_keys=True, default=str) if row.more else "" for row in rows],
    }
    return pyarrow.table(columns, schema=schema)


def _payloads(rows: Sequence[Row]) -> Any:
    """The payloads as a column of bytes, copied once: a row of patches has nearly a megabyte."""
    import pyarrow

    parts = [np.ascontiguousarray(row.payload).reshape(-1).view(np.uint8) for row in rows]
    total = sum(part.size for part in parts)
    if total == 0 or total >= 1 << 31:  # more than one array of Arrow holds
        return [part.tobytes() for part in parts]
    ends = np.cumsum([0, *(part.size for part in parts)], dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(np.concatenate(parts))]
    return pyarrow.BinaryArray.from_buffers(pyarrow.binary(), len(rows), buffers)


class ParquetWriter:
    """Writes small row groups, so that a row can be read without many others.

    path: of the file; about: what its metadata say; dtype: of payloads
    """

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
            if len(self.waiting) >= GROUP or sum(held.payload.nbytes for held in self.waiting) >= GROUP_BYTES:
                self._write()

    def close(self) -> None:
        if self.waiting:
            self._write()
        self.file.close()

    def _write(self) -> None:
        self.file.write_table(table_of(self.waiting, self.schema), row_group_size=len(self.waiting))
        self.waiting = []


class ParquetReader:
    """Reads rows by their number; the row group of the last one is kept."""

    def __init__(self, file: BinaryIO) -> None:
        from pyarrow import parquet

        self.file = parquet.ParquetFile(file)
        self.dtype = json.loads(self.file.schema_arrow.metadata[ABOUT.encode()])["dtype"] or "uint8"
        groups = (self.file.metadata.row_group(index).num_rows for index in range(self.file.num_row_groups))
        self._firsts = list(accumulate(groups, initial=0))
        self._group: tuple[int, list[dict[str, Any]]] = (-1, [])

    def __getitem__(self, number: int) -> Row:
        group = bisect_right(self._firsts, number) - 1
        if self._group[0] != group:
            self._group = group, self.file.read_row_group(group).to_pylist()
        found = self._group[1][number - self._firsts[group]]
        footprints = np.array(found["footprints"], dtype=np.float32).reshape(-1, FOOTPRINT)
        payload = np.frombuffer(found["payload"], dtype=self.dtype).reshape(found["shape"])
        more = json.loads(found["more"]) if found["more"] else {}
        return Row.of({**found, "size": (found["height"], found["width"]), "more": more}, footprints, payload)


class TarWriter:
    """Writes samples of a WebDataset: NAME.json, NAME.footprints.npy and NAME.payload.npy, or NAME.jpg, side by side.

    Members have no times and no owners, so that the same rows make the same bytes.
    """

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        self.tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  closed by close
        self.about, self.count = about, 0

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            name = f"{self.about['unit']}-{self.count:06}"  # a key may have dots, which separate suffixes here
            fields = {**row.fields, "tokens": len(row.footprints)}
            self._put(f"{name}.json", json.dumps(fields, sort_keys=True, default=str).encode())
            self._put(f"{name}.footprints.npy", _npy(row.footprints))
            if self.about["write"] == "thumbnails":
                self._put(f"{name}.jpg", row.payload.tobytes())
            elif row.payload.size:
                self._put(f"{name}.payload.npy", _npy(row.payload))
            self.count += 1

    def close(self) -> None:
        self.tar.close()

    def _put(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self.tar.addfile(member, io.BytesIO(content))


def _npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class TarReader:
    """Reads rows by their number; the members are found once."""

    def __init__(self, file: BinaryIO) -> None:
        self.tar = tarfile.open(fileobj=file)  # noqa: SIM115  lives as long as the reader
        self.members: list[dict[str, tarfile.TarInfo]] = []
        for member in self.tar:
            suffix = member.name.partition(".")[2]
            if suffix == "json":
                self.members.append({})
            self.members[-1][suffix] = member

    def __getitem__(self, number: int) -> Row:
        parts = {suffix: self._content(member) for suffix, member in self.members[number].items()}
        payload = np.frombuffer(parts.get("jpg", b""), dtype=np.uint8)
        if "payload.npy" in parts:
            payload = np.load(io.BytesIO(parts["payload.npy"]))
        return Row.of(json.loads(parts["json"]), np.load(io.BytesIO(parts["footprints.npy"])), payload)

    def _content(self, member: tarfile.TarInfo) -> bytes:
        content = self.tar.extractfile(member)
        return b"" if content is None else content.read()


class SafetensorsWriter:
    """Writes the tokens of all rows one after another, and where each row ends.

    footprints (N, 7), payload (M, …), ends (rows, 2): where the footprints and the payload of each row end. Everything
    else is in the header, as one JSON text: safetensors does not keep the order of several. The rows of a unit are held
    until `close`, since the header comes first.
    """

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        self.path, self.about, self.dtype = path, about, dtype or "uint8"
        self.rows: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def close(self) -> None:
        from safetensors.numpy import save_file

        lengths = [(len(row.footprints), len(row.payload)) for row in self.rows]
        footprints = [np.zeros((0, FOOTPRINT), np.float32), *(row.footprints for row in self.rows)]
        payloads = [row.payload for row in self.rows] or [np.zeros(0, self.dtype)]
        tensors = {
            "footprints": np.concatenate(footprints),
            "payload": np.concatenate(payloads),
            "ends": np.cumsum(np.array(lengths, dtype=np.int64).reshape(-1, 2), 0),
        }
        header = {**self.about, "rows": [row.fields for row in self.rows]}
        save_file(tensors, self.path, metadata={ABOUT: json.dumps(header, sort_keys=True, default=str)})


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
        self.fields: list[dict[str, Any]] = json.loads(self.file.metadata()[ABOUT])["rows"]
        self.ends = self.file.get_tensor("ends")

    def __getitem__(self, number: int) -> Row:
        first, last = self.ends[number - 1] if number else (0, 0), self.ends[number]
        footprints, payload = (
            self.file.get_slice(name)[int(first[part]) : int(last[part])]
            for part, name in enumerate(("footprints", "payload"))
        )
        return Row.of(self.fields[number], footprints, payload)


class Reader(Protocol):
    """Reads a file of rows."""

    def __getitem__(self, number: int) -> Row: ...


class Format(NamedTuple):
    """How files are called, written (`add` rows, then `close`) and read.

    needs: a package of the extra corpus, or "" for none
    """

    suffix: str
    writer: Callable[[Path, dict[str, Any], str], Any]
    reader: Callable[[BinaryIO], Reader]
    needs: str


FORMATS: dict[str, Format] = {
    "parquet": Format("parquet", ParquetWriter, ParquetReader, "pyarrow"),
    "webdataset": Format("tar", TarWriter, TarReader, ""),
    "safetensors": Format("safetensors", SafetensorsWriter, SafetensorsReader, "safetensors"),
}


def check_format(name: str) -> None:
    """Raise if the package of a format is not installed."""
    needs = FORMATS[name].needs
    if needs and find_spec(needs) is None:
        raise ImportError(f"corpus: format {name!r} needs {needs}: pip install 'texturevlm[corpus]'")
