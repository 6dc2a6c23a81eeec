"""PDFs of strangers, drawn by a process that is ended if a page takes too long, and started again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import numpy as np
import torch

from texturevlm.serve.limits import ApiError
from texturevlm.serve.pdf_process import receive, send
from texturevlm.types import Texture

PACKAGE = Path(__file__).resolve().parent.parent.parent  # where the process finds this package
START_SECONDS = 60.0  # of a process, at most, on a busy machine


class PdfProcess:
    """The process, started when it is needed. PDFium does one thing at a time, so one is enough."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, asked: dict[str, Any], content: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Its answer; raises if there is none after `seconds`."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()
                self._exchange(self._process, {}, b"", START_SECONDS, "the part of the server that draws PDFs")
            what = f"page {asked['page'] + 1}" if "page" in asked else "the document"
            return self._exchange(self._process, asked, content, seconds, what)

    def _exchange(
        self, process: subprocess.Popen[bytes], asked: dict[str, Any], content: bytes, seconds: float, what: str
    ) -> tuple[dict[str, Any], bytes]:
        assert process.stdin is not None and process.stdout is not None
        ending = Timer(seconds, process.kill)
        ending.start()
        try:
            send(process.stdin, asked, content)
            return receive(process.stdout)
        except (OSError, EOFError):
            slow = ending.finished.is_set()
            process.kill()
            process.communicate()
            why = f"takes longer than {seconds:g} s" if slow else "needs too much memory, or is damaged"
            raise ApiError(422, f"{what} cannot be drawn: it {why}") from None
        finally:
            ending.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "texturevlm.serve.pdf_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )


PROCESS = PdfProcess()


class SafePdf:
    """The pages of a PDF, as `choose_pages` takes them. seconds: that opening it or drawing a page may take"""

    def __init__(self, content: bytes, seconds: float) -> None:
        self.content, self.seconds = content, seconds
        self.key = hashlib.sha256(content).hexdigest()
        self.count: int = self._asked({}, content)[0]["pages"]

    def __len__(self) -> int:
        return self.count

    def texture(self, index: int, pixels: int, device: torch.device) -> Texture:
        """Page `index` (from 0) in at most about this many pixels."""
        wanted = {"page": index, "pixels": pixels}
        header, drawn = self._asked(wanted)
        if header.get("closed"):
            header, drawn = self._asked(wanted, self.content)
        return Texture.open(np.frombuffer(drawn, np.uint8).reshape(header["shape"]), device=device)

    def _asked(self, wanted: dict[str, Any], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        found = PROCESS.ask({**wanted, "key": self.key}, content, self.seconds)
        if "error" in found[0]:
            raise ValueError(found[0]["error"])
        return found
