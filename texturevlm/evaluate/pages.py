"""Each page read once, by OCR or by the scout, with the time that it took: questions about one page share it."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from texturevlm.evaluate.cost import costed
from texturevlm.scout import load_scout
from texturevlm.types import Texture

READING = ("auto", "words")  # the relevances that read the page, where the reader is installed


class Pages:
    """Pages by image file, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm = False
        self.opened: dict[Path, tuple[Any, float]] = {}
        self.seen: dict[Path, tuple[Any, float]] = {}

    def read(self, relevance: Any, question: str, path: Path, texture: Texture) -> tuple[Any, float] | None:
        """What a relevance reads of the page for a question, and the milliseconds of it; None if it reads nothing."""
        asked, ocr = bool(question.strip()), find_spec("rapidocr") is not None
        if relevance == "scout" or (relevance == "auto" and asked and not ocr):
            return self.spots(path, texture)
        return self.words(path, texture) if relevance in READING and asked and ocr else None

    def spots(self, path: Path, texture: Texture) -> tuple[Any, float]:
        """What the scout sees of an image, and the milliseconds that it took."""
        if path not in self.seen:
            scout = load_scout(device=texture.device)
            if not self.seen:
                scout.read(texture)  # the first time is not the page's cost
            found, cost = costed(lambda: scout.read(texture), texture.device)
            self.seen = {path: (found, cost.ms)}  # pages come one after the other
        return self.seen[path]

    def words(self, path: Path, texture: Texture) -> tuple[Any, float]:
        """The page of an image and the milliseconds that reading it took when it was read."""
        if path not in self.opened:
            self.opened = {path: self._kept_or_read(path, texture)}  # pages come one after the other
        return self.opened[path]

    def _kept_or_read(self, path: Path, texture: Texture) -> tuple[Any, float]:
        from texturevlm.relevance.ocr import Page, read_page

        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        kept = self.folder / f"{path.stem}-{digest}.json"
        if kept.is_file():
            record = json.loads(kept.read_text(encoding="utf-8"))
            return Page.from_json(json.dumps(record["page"])), record["ms"]
        image = texture.levels[0]
        if not self.warm:
            read_page(torch.ones(1, 3, 64, 64))  # loads the models, which is not the page's cost
            self.warm = True
        page, cost = costed(lambda: read_page(image), torch.device("cpu"))
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"ms": cost.ms, "page": json.loads(page.to_json())}
        partial = kept.with_suffix(".part")
        partial.write_text(json.dumps(record), encoding="utf-8")
        partial.replace(kept)
        return page, cost.ms
