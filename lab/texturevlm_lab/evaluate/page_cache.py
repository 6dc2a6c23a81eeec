"""What a scorer reads of a page, once per page, with its time: words by OCR (kept on disk) or the scout's spots.

`costed` measures a call: milliseconds, and peak memory above what was held before.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from texturevlm.relevance import find_scorer
from texturevlm.scout import load_scout
from texturevlm.types import Texture

_Result = TypeVar("_Result")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5): resets the peak of resident memory to what is resident now
Timed = tuple[Any, float]  # what was read, and the milliseconds that it took


class PageCache:
    """Words and spots by image file. Pages come one after the other, so only the last one is held in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm = False
        self.last_words: dict[Path, Timed] = {}
        self.last_spots: dict[Path, Timed] = {}

    def read(self, scorer: Any, question: str, path: Path, texture: Texture) -> Timed | None:
        """What a scorer reads of the page for a question; None if it reads nothing."""
        name = find_scorer("evaluate", scorer, question).name
        if name in ("scout", "prior"):
            return self.spots(path, texture)
        ocr = find_spec("rapidocr") is not None  # the scorer itself says what is missing
        return self.words(path, texture) if name == "words" and ocr else None

    def spots(self, path: Path, texture: Texture) -> Timed:
        """The scout's spots of an image."""
        if path not in self.last_spots:
            scout = load_scout(device=texture.device)
            if not self.last_spots:
                scout.read(texture)  # the first call loads and compiles: not the page's cost
            self.last_spots = {path: costed(lambda: scout.read(texture), texture.device)[:2]}
        return self.last_spots[path]

    def words(self, path: Path, texture: Texture) -> Timed:
        """The page of words of an image, with the time that reading took when it was read."""
        if path not in self.last_words:
            self.last_words = {path: self._load_or_read(path, texture)}
        return self.last_words[path]

    def _load_or_read(self, path: Path, texture: Texture) -> Timed:
        from texturevlm.relevance.ocr import Page, read_page

        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        kept = self.folder / f"{path.stem}-{digest}.json"
        if kept.is_file():
            record = json.loads(kept.read_text(encoding="utf-8"))
            return Page.from_json(json.dumps(record["page"])), record["ms"]
        if not self.warm:
            read_page(torch.ones(1, 3, 64, 64))  # loads the models, which is not the page's cost
            self.warm = True
        page, ms, _ = costed(lambda: read_page(texture.levels[0]), torch.device("cpu"))
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".part")
        partial.write_text(json.dumps({"ms": ms, "page": json.loads(page.to_json())}), encoding="utf-8")
        partial.replace(kept)
        return page, ms


def costed(call: Callable[[], _Result], device: torch.device) -> tuple[_Result, float, float | None]:
    """The result of a call, its milliseconds including all work on the device, and the megabytes it took there (or
    resident); None where the system does not report them."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: float | None = torch.cuda.memory_allocated(device) / 2**20
    else:
        before = _resident("VmRSS", reset=True)
    start = time.perf_counter()
    result = call()
    if on_gpu:
        torch.cuda.synchronize(device)
    ms = 1000 * (time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else _resident("VmHWM")
    return result, ms, None if before is None else max(0.0, (peak or 0.0) - before)


def _resident(name: str, *, reset: bool = False) -> float | None:
    """Megabytes, from /proc; None where it cannot be read, or its peak not be reset."""
    try:
        if reset:
            _CLEAR.write_text(_RESET_PEAK)
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
