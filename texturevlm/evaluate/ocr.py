"""OCR engines that read one line of text from a crop: Tesseract 5 where it is installed, else RapidOCR's recogniser.

An engine takes crops as bytes, (H, W) grey or (H, W, 3) colour, and returns one string per crop.
"""

import hashlib
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from texturevlm.check import check_choice
from texturevlm.journal import append, read_journal

_CHUNK = 64  # crops per Tesseract process: starting one costs as much as reading seven crops
_FEWEST = 16  # crops: fewer are not worth another process
TIMEOUT = 600  # seconds per process; a page of noise takes a few

LineCrop = NDArray[np.uint8]


class OcrEngine(Protocol):
    """Anything with a name that reads crops."""

    @property
    def name(self) -> str: ...

    def read(self, crops: Sequence[LineCrop]) -> list[str]: ...


class Tesseract:
    """The `tesseract` program, told that each crop is a single line (`--psm 7`)."""

    def __init__(self, program: str = "tesseract") -> None:
        found = shutil.which(program)
        if found is None:
            raise ValueError(
                f"Tesseract: program must be an installed tesseract 5, got {program!r}, which is not found"
            )
        self.program = found
        version = (run_tesseract([found, "--version"]).stdout.splitlines() or ["nothing"])[0]
        if not version.startswith("tesseract 5"):
            raise ValueError(f"Tesseract: program must be tesseract 5, got {version!r} ({found})")
        self.name = f"{version} --psm 7"

    def read(self, crops: Sequence[LineCrop]) -> list[str]:
        """One process per available processor."""
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        each = min(_CHUNK, max(_FEWEST, math.ceil(len(crops) / processors)))
        chunks = [crops[first : first + each] for first in range(0, len(crops), each)]
        with ThreadPoolExecutor(processors) as pool:
            return [text for texts in pool.map(self._read_together, chunks) for text in texts]

    def _read_together(self, crops: Sequence[LineCrop]) -> list[str]:
        """One process for many crops, by a list of files; each crop is read as if it were alone (tested)."""
        with tempfile.TemporaryDirectory(prefix="texturevlm-") as folder:
            paths = [Path(folder) / f"{number}.pnm" for number in range(len(crops))]
            for path, crop in zip(paths, crops):
                path.write_bytes(_as_pnm(crop))
            listing = Path(folder) / "list.txt"
            listing.write_text("\n".join(map(str, paths)) + "\n")
            done = run_tesseract([self.program, str(listing), "-", "--psm", "7"])
        if done.returncode < 0:  # some crops of a few grey pixels crash it: nothing was read
            middle = len(crops) // 2
            return [""] if not middle else self._read_together(crops[:middle]) + self._read_together(crops[middle:])
        texts = done.stdout.split("\f")  # form feed between crops
        if done.returncode != 0 or len(texts) != len(crops):
            raise OSError(
                f"Tesseract: wanted texts of {len(crops)} crops, got {len(texts)} and status {done.returncode}: "
                f"{done.stderr.strip():.300}"
            )
        return texts


def run_tesseract(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run it on one thread; more than TIMEOUT seconds are an OSError."""
    alone = {**os.environ, "OMP_THREAD_LIMIT": "1"}  # its threads block one another on such small images
    options: Any = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "check": False}
    try:
        return subprocess.run(command, env=alone, timeout=TIMEOUT, **options)
    except subprocess.TimeoutExpired:
        raise OSError(f"Tesseract: {' '.join(command)} took more than {TIMEOUT} s") from None


def _as_pnm(crop: LineCrop) -> bytes:
    kind = b"P5" if crop.ndim == 2 else b"P6"
    return b"%s %d %d 255\n" % (kind, crop.shape[1], crop.shape[0]) + np.ascontiguousarray(crop).tobytes()


class RapidOcr:
    """RapidOCR's recogniser alone (extra `ocr`): its model comes inside the wheel."""

    def __init__(self) -> None:
        try:
            import rapidocr
            from rapidocr.utils.log import logger
        except ImportError:
            raise ImportError("RapidOCR: needs the extra ocr: pip install 'texturevlm[ocr]'") from None
        self.engine: Any = rapidocr.RapidOCR(params={"Global.log_level": "critical"})
        logger.setLevel("CRITICAL")
        self.name = "RapidOCR's recogniser"

    def read(self, crops: Sequence[LineCrop]) -> list[str]:
        return [self._read_one(crop) for crop in crops]

    def _read_one(self, crop: LineCrop) -> str:
        colour = crop if crop.ndim == 3 else np.repeat(crop[..., None], 3, 2)
        reversed_channels = np.ascontiguousarray(colour[..., ::-1])  # it expects blue, green, red
        found = self.engine(reversed_channels, use_det=False, use_cls=False, use_rec=True)
        return " ".join(found.txts or ())


ENGINES = {"tesseract": Tesseract, "rapidocr": RapidOcr}


def open_ocr(name: str = "auto") -> OcrEngine:
    """By name; `auto` takes Tesseract where it is installed, else RapidOCR."""
    check_choice("open_ocr", "name", name, ["auto", *ENGINES])
    if name != "auto":
        engine: OcrEngine = ENGINES[name]()
        return engine
    if shutil.which("tesseract") is not None:
        return Tesseract()
    try:
        return RapidOcr()
    except ImportError as error:
        raise ImportError(f"open_ocr: needs tesseract 5 on the PATH, or a fallback. {error}") from None


class CachedOcr:
    """An engine that reads no crop twice, in this run or a later one: a file keeps the text of each crop."""

    def __init__(self, engine: OcrEngine, path: Path | None = None) -> None:
        self.engine = engine
        self.path = path
        kept = [] if path is None else read_journal(path, "a crop and its text", lambda row: (row["crop"], row["text"]))
        self.known: dict[str, str] = dict(kept)

    @property
    def name(self) -> str:
        return self.engine.name

    def read(self, crops: Sequence[LineCrop]) -> list[str]:
        keys = [self._key(crop) for crop in crops]
        new = {key: crop for key, crop in zip(keys, crops) if key not in self.known}
        texts = dict(zip(new, self.engine.read(list(new.values()))))
        self.known.update(texts)
        if self.path is not None and texts:
            append(self.path, ({"crop": key, "text": text} for key, text in texts.items()))
        return [self.known[key] for key in keys]

    def _key(self, crop: LineCrop) -> str:
        digest = hashlib.blake2b(f"{self.name} {crop.shape}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(crop).tobytes())
        return digest.hexdigest()
