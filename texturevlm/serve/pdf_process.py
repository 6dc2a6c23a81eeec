"""PDFium in a process of its own: `python -m texturevlm.serve.pdf_process`; `pdfs.py` talks to it.

A file of a few kilobytes can keep PDFium busy for hours or ask it for more memory than there is. No thread can be ended
because of that, but a process can.
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from typing import IO, Any

from texturevlm.pdfium import PdfFile

MOST_OPEN = 4  # documents; one that was closed is sent again
MOST_MEMORY = 3 << 30  # bytes


def send(file: IO[bytes], header: dict[str, Any], content: bytes = b"") -> None:
    """Write a line of JSON, then bytes."""
    file.write(json.dumps({**header, "bytes": len(content)}).encode() + b"\n")
    file.write(content)
    file.flush()


def receive(file: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """What `send` wrote; raises if the other side has ended."""
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header: dict[str, Any] = json.loads(line)
    content = file.read(header["bytes"])
    if len(content) < header["bytes"]:
        raise EOFError
    return header, content


def answer(asked: dict[str, Any], content: bytes, opened: OrderedDict[str, PdfFile]) -> tuple[dict[str, Any], bytes]:
    """Open a document, or draw a page of one that is open. Nothing asked: the process is ready."""
    key = asked.get("key")
    if key is None:
        return {}, b""
    if content:
        opened[key] = PdfFile(content, function="upload")
        if len(opened) > MOST_OPEN:
            opened.popitem(last=False)
    if key not in opened:
        return {"closed": True}, b""
    opened.move_to_end(key)
    if "page" not in asked:
        return {"pages": len(opened[key])}, b""
    drawn = opened[key].draw(asked["page"], asked["pixels"])
    return {"shape": drawn.shape}, drawn.tobytes()


def main() -> None:
    asking, answering = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    _limit_memory()
    opened: OrderedDict[str, PdfFile] = OrderedDict()
    while True:
        try:
            asked, content = receive(asking)
        except EOFError:
            return
        try:
            send(answering, *answer(asked, content, opened))
        except (ValueError, ImportError, MemoryError) as error:
            send(answering, {"error": str(error) or "it needs too much memory"})


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # on Windows
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))


if __name__ == "__main__":
    main()
