"""Rows as tables of Arrow, for parquet and Lance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from texturevlm.corpus.rows import FOOTPRINT, Row

ABOUT = b"texturevlm"  # the key of what the metadata say


def schema_of(about: Mapping[str, Any], dtype: str) -> Any:
    """The columns; dtype: of payloads."""
    import pyarrow

    text, whole = pyarrow.string(), pyarrow.int32()
    columns = [
        *(("key", text), ("digest", text), ("height", whole), ("width", whole), ("question", text), ("tokens", whole)),
        *(("footprints", pyarrow.list_(pyarrow.float32())), ("payload", pyarrow.binary())),
        *(("shape", pyarrow.list_(whole)), ("more", text)),
    ]
    return pyarrow.schema(columns, metadata={ABOUT: json.dumps({**about, "dtype": dtype}, sort_keys=True)})


def dtype_of(schema: Any) -> str:
    return json.loads(schema.metadata[ABOUT])["dtype"] or "uint8"


def table_of(rows: Sequence[Row], schema: Any) -> Any:
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


def row_of(found: Mapping[str, Any], dtype: str) -> Row:
    """A row from the values of its columns."""
    return Row(
        key=found["key"],
        digest=found["digest"],
        size=(found["height"], found["width"]),
        question=found["question"],
        footprints=np.array(found["footprints"], dtype=np.float32).reshape(-1, FOOTPRINT),
        payload=np.frombuffer(found["payload"], dtype=dtype).reshape(found["shape"]),
        more=json.loads(found["more"]) if found["more"] else {},
    )
