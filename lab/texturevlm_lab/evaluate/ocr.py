"""OCR engines that read one line of text from a crop: Tesseract 5, and RapidOCR's recogniser.

An engine takes crops as bytes, (H, W) grey or (H, W, 3) colour, and returns one string per crop. `open_engines` opens
several by name, so that a table can report what each of them reads.
"""

import hashlib
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.channels.pretrained import load_rapidocr
from texturevlm.check import check_choice
from texturevlm_lab.journal import append, cut_unfinished, read_journal

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
        release = (run_tesseract([found, "--version"]).stdout.splitlines() or ["nothing"])[0]
        if not release.startswith("tesseract 5"):
            raise ValueError(f"Tesseract: program must be tesseract 5, got {release!r} ({found})")
        self.program, self.name = found, f"{release} --psm 7"

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
                Image.fromarray(crop).save(path)
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
    try:
        return subprocess.run(
            command, env=alone, timeout=TIMEOUT, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"Tesseract: {' '.join(command)} took more than {TIMEOUT} s") from None


class RapidOcr:
    """RapidOCR's recogniser alone (extra `ocr`), without its detector: its model comes inside the wheel."""

    def __init__(self) -> None:
        # Crops are small: threads cost more than they save, and one thread gives the same texts.
        self.engine = load_rapidocr("RapidOCR", **{"EngineConfig.onnxruntime.intra_op_num_threads": 1})
        self.name = f"RapidOCR {version('rapidocr')}, recogniser on the crop alone"

    def read(self, crops: Sequence[LineCrop]) -> list[str]:
        return [self._read_one(crop) for crop in crops]

    def _read_one(self, crop: LineCrop) -> str:
        colour = crop if crop.ndim == 3 else np.repeat(crop[..., None], 3, 2)
        reversed_channels = np.ascontiguousarray(colour[..., ::-1])  # it expects blue, green, red
        return " ".join(self.engine(reversed_channels, use_det=False, use_cls=False, use_rec=True).txts or ())


ENGINES = {"tesseract": Tesseract, "rapidocr": RapidOcr}


def open_engines(names: Sequence[str] = ("auto",)) -> dict[str, OcrEngine]:
    """Engines by name; `auto` stands for every one that is installed."""
    if not names:
        raise ValueError(f"open_engines: names must hold one of auto, {', '.join(ENGINES)}, got none")
    wanted: dict[str, None] = {}
    for name in names:
        check_choice("open_engines", "name", name, ["auto", *ENGINES])
        wanted.update(dict.fromkeys(_installed() if name == "auto" else [name]))
    return {name: ENGINES[name]() for name in wanted}


def _installed() -> list[str]:
    found = {"tesseract": shutil.which("tesseract") is not None, "rapidocr": find_spec("rapidocr") is not None}
    if not any(found.values()):
        raise ImportError(
            "open_engines: needs tesseract 5 on the PATH, or the extra ocr: pip install 'texturevlm[ocr]'"
        )
    return [name for name, there in found.items() if there]


class CachedOcr:
    """An engine that reads no crop twice, in this run or a later one: a file keeps the text of each crop."""

    def __init__(self, engine: OcrEngine, path: Path | None = None) -> None:
        self.engine, self.name, self.path = engine, engine.name, path
        kept = [] if path is None else read_journal(path, "a crop and its text", lambda row: (row["crop"], row["text"]))
        if path is not None:
            cut_unfinished(path)
        self.known: dict[str, str] = dict(kept)

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


def cached_engines(engines: Mapping[str, OcrEngine], folder: Path | None) -> dict[str, OcrEngine]:
    """Each engine with a cache of its own in a folder: readings-NAME.jsonl; None keeps readings in memory."""
    return {
        name: CachedOcr(engine, None if folder is None else folder / f"readings-{name}.jsonl")
        for name, engine in engines.items()
    }
