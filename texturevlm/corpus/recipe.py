"""What a corpus is made by: every option that changes a byte of it. Two runs with one recipe make the same bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from texturevlm.check import check_choice, check_count
from texturevlm.corpus.formats import DTYPES, FORMATS
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE, TURN
from texturevlm.frame import check_turn
from texturevlm.placement import TokenConfig

UNIT = 128  # images of a folder or a list per unit
VERSION = 3  # of the bytes: to be raised when the code makes other ones, so that no corpus has some of each
NEEDS_MODEL = ("features", "codes")


@dataclass(frozen=True)
class Recipe:
    """The configuration of a corpus.

    source:    where images come from, as given, and `kind`, what that is (a key of sources.KINDS)
    write:     the payload of a row, a key of formats.DTYPES
    format:    of the files
    model:     a hub id or a folder, for features and codes
    codebook:  the file of a codebook, for codes; code: digest of it
    budget, patch, allocator, relevance, turn: as in TokenConfig
    asked:     what `auto` is for an image with a question, since that depends on what is installed
    questions: digest of the file of questions; "" for none
    buckets:   0: images of exactly one size share a batch; else sides are stretched up to a ladder of so many steps per
               octave, so that images of similar sizes do
    batch:     images that are processed together, at most
    unit:      images per unit, for folders and lists
    decoder:   of JPEG, a key of decode.DECODERS
    device:    cpu or cuda: their sums differ in the last bit
    version:   of the code, as far as it decides about bytes
    """

    source: str
    kind: str
    write: str = "patches"
    format: str = "parquet"
    model: str = ""
    codebook: str = ""
    code: str = ""
    budget: int = BUDGET
    patch: int = PATCH
    allocator: str = ALLOCATOR
    relevance: str = RELEVANCE
    turn: float | str = TURN
    asked: str = ""
    questions: str = ""
    buckets: int = 0
    batch: int = 8
    unit: int = UNIT
    decoder: str = "pillow"
    device: str = "cpu"
    version: int = VERSION

    def __post_init__(self) -> None:
        check_choice("corpus", "write", self.write, DTYPES)
        check_choice("corpus", "format", self.format, FORMATS)
        check_choice("corpus", "device", self.device, ("cpu", "cuda"))
        for name, low in (("budget", 1), ("patch", 1), ("batch", 1), ("unit", 1), ("buckets", 0)):
            check_count("corpus", name, getattr(self, name), low)
        check_turn("corpus", self.turn)
        if self.write in NEEDS_MODEL and not self.model:
            raise ValueError(f"corpus: write {self.write!r} needs a model: a hub id or a folder, got none")
        if bool(self.codebook) != (self.write == "codes"):
            raise ValueError(
                f"corpus: codebook must be given for write 'codes' alone, got {self.codebook!r} for {self.write!r}"
            )
        if self.model and self.write not in NEEDS_MODEL:
            raise ValueError(f"corpus: model is for write {' or '.join(NEEDS_MODEL)}, got it with {self.write!r}")

    @property
    def tokens(self) -> TokenConfig:
        """How the tokens of every image are placed."""
        return TokenConfig(self.budget, self.allocator, self.relevance, turn=self.turn, patch=self.patch)

    @property
    def digest(self) -> str:
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Recipe:
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})

    def differences(self, other: Recipe) -> list[str]:
        """What differs from another recipe, each as "name HERE, got THERE"."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name} {mine[name]!r}, got {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
