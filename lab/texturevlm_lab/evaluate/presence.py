"""Questions about photographs with objects: is there one of a class? Half of the answers are no, as in POPE."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from texturevlm_lab.evaluate.data import Sample


def presence_questions(samples: Sequence[Sample]) -> list[Sample]:
    """For each class of an image a question whose answer is yes, and one about an absent class, the same in every run.

    samples: one per image and class of objects
    """
    names = sorted({sample.name for sample in samples if sample.name})
    there: dict[Path, set[str]] = {}
    for sample in samples:
        if sample.name:
            there.setdefault(sample.image, set()).add(sample.name)
    found = []
    for sample in samples:
        if not sample.name:
            continue
        found.append(_asked(sample, sample.name, "yes"))
        absent = [name for name in names if name not in there[sample.image]]
        if absent:
            there[sample.image].add(name := min(absent, key=lambda one: _shuffled(sample.id, one)))
            found.append(replace(_asked(sample, name, "no"), id=f"{sample.id}-not", boxes=()))
    return found


def _asked(sample: Sample, name: str, answer: str) -> Sample:
    article = "an" if name[0].lower() in "aeiou" else "a"
    question = f"Is there {article} {name} in the image? Answer yes or no."
    return replace(sample, question=question, name="", answers=(answer,), objects=())


def _shuffled(*parts: str) -> bytes:
    return hashlib.blake2b("/".join(parts).encode(), digest_size=8).digest()
