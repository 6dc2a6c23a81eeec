"""Rows as samples of a WebDataset: NAME.json, NAME.footprints.npy and NAME.payload.npy, or NAME.jpg, side by side."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from texturevlm.corpus.rows import Array, Row


class TarWriter:
    """Members have no times and no owners, so that the same rows make the same bytes."""

    def __init__(self, path: Path, about: dict[str, Any], dtype: str) -> None:
        self.tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  closed by close
        self.about, self.count = about, 0

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            name = f"{self.about['unit']}-{self.count:06}"  # a key may have dots, which separate suffixes here
            fields: dict[str, Any] = {"key": row.key, "digest": row.digest, "size": list(row.size)}
            fields |= {"question": row.question, "tokens": len(row.footprints), "more": row.more}
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

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> Row:
        parts = {suffix: self._content(member) for suffix, member in self.members[number].items()}
        fields = json.loads(parts["json"])
        payload = np.frombuffer(parts.get("jpg", b""), dtype=np.uint8)
        if "payload.npy" in parts:
            payload = np.load(io.BytesIO(parts["payload.npy"]))
        return Row(
            key=fields["key"],
            digest=fields["digest"],
            size=(fields["size"][0], fields["size"][1]),
            question=fields["question"],
            footprints=np.load(io.BytesIO(parts["footprints.npy"])),
            payload=payload,
            more=fields["more"],
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))

    def _content(self, member: tarfile.TarInfo) -> bytes:
        content = self.tar.extractfile(member)
        return b"" if content is None else content.read()
