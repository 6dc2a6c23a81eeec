"""Event files that TensorBoard reads, written without it: a record a step, each holding named numbers.

A record is its length, the length's checksum, an Event message (protocol buffers) and the message's checksum; the few
fields that numbers need are spelled out here (tensorflow/core/util/event.proto, lib/io/record_writer.h).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
MASK = 0xA282EAD8


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class Events:
    """An event file of its own in a folder; TensorBoard shows all of a folder as one run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._file = self.path.open("ab")
        self._record(_text(3, b"brain.Event:2"))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Named numbers of a step."""
        values = [_text(1, _text(1, name.encode()) + b"\x15" + struct.pack("<f", one)) for name, one in numbers.items()]
        self._record(b"\x10" + _varint(step) + _text(5, b"".join(values)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _record(self, message: bytes) -> None:
        message = b"\x09" + struct.pack("<d", time.time()) + message
        length = struct.pack("<Q", len(message))
        self._file.write(length + _checksum(length) + message + _checksum(message))


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _text(field: int, content: bytes) -> bytes:
    """A field with a length: text, or a message within the message."""
    return bytes([field << 3 | 2]) + _varint(len(content)) + content
