"""Photographs with words and boxes for region_words.py, packed into one small file and read back.

    python -m texturevlm_lab.studies.region_data DATA --out DIR

DATA holds flickr8k_small (captions) and coco (boxes). Photographs are squashed to squares and written as WebP, so that
the file can travel to a machine with a GPU: photographs.npz in DIR, about 24 MB.
"""

import argparse
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from texturevlm.text.strings import STOP, terms
from texturevlm_lab.studies.study import evenly, study_main

FILE = "photographs.npz"
CAPTIONED, BOXED = 144, 256  # sides in pixels: captioned ones have no more
QUALITY = 72
LEAST = 12  # photographs whose captions must hold a word
MOST_BOXES = 16  # of a photograph
FOLDS = 3
IRREGULAR = {"men": "man", "women": "woman", "children": "child", "feet": "foot", "teeth": "tooth"}
# Words of captions that name nothing to be seen in one place.
SILENT_WORDS = """
about above across after against ahead all almost along also among another around away back because before behind being
below beneath beside between both but day different doing down during each every few five four front full get gets
getting go goes going he her him inside just like looking looks make makes making more most near nearby next no not off
one onto other others out outside over past several she some someone something still such them then they thing three
through together toward towards two up upon use using very via view while without you your
"""
SILENT = STOP | frozenset(SILENT_WORDS.split())
# Captions say what somebody calls a thing; the names that boxes have must be learned from them too.
IMPLIED = {
    "person": """man woman boy girl child people kid guy lady adult player toddler baby skier snowboarder surfer climber
    skateboarder biker cyclist hiker swimmer runner rider dancer crowd""",
    "dog": "puppy",
    "bicycle": "bike biker cyclist",
    "motorcycle": "motorbike motorcyclist",
    "sports ball": "ball football basketball baseball volleyball soccer",
    "couch": "sofa",
    "tv": "television",
    "cell phone": "phone cellphone",
    "handbag": "purse bag",
    "skis": "ski skier",
    "snowboard": "snowboarder",
    "skateboard": "skateboarder",
    "surfboard": "surfer surfing",
    "tennis racket": "racket tennis",
    "baseball bat": "bat batter",
    "baseball glove": "glove baseball",
    "potted plant": "plant",
    "dining table": "table",
    "car": "suv",
    "boat": "kayak canoe raft",
    "bench": "seat",
}


def words_of(text: str) -> list[str]:
    """The words of a caption, plurals as singulars where the ending is regular."""
    found = []
    for word, _ in terms(text):
        if word in SILENT or not word.isalpha() or len(word) < 2:
            continue
        word = IRREGULAR.get(word, word)
        plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
        found.append(word[:-1] if plural and word not in ("skis", "scissors", "tennis") else word)
    return found


def pack(options: argparse.Namespace) -> None:
    """Write FILE."""
    captioned = [json.loads(line) for line in _lines(options.data / "flickr8k_small" / "captions.jsonl")]
    boxed: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, _lines(options.data / "coco" / "questions.jsonl")):
        height, width = row["size"]
        one = boxed.setdefault(row["image"], {"image": row["image"], "split": row["split"], "objects": []})
        for x0, y0, x1, y1 in row["boxes"]:
            one["objects"].append([row["name"], x0 / width, y0 / height, x1 / width, y1 / height])
    listed = {"captioned": captioned[: options.limit], "boxed": list(boxed.values())[: options.limit]}
    arrays: dict[str, np.ndarray] = {}
    for name, folder, side in (("captioned", "flickr8k_small", CAPTIONED), ("boxed", "coco", BOXED)):
        files = [_encoded(options.data / folder / row["image"], side) for row in listed[name]]
        arrays[f"{name}_bytes"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{name}_ends"] = np.cumsum([len(one) for one in files])
    arrays["listed"] = np.frombuffer(json.dumps(listed).encode(), dtype=np.uint8)
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out / FILE, **arrays)  # type: ignore[arg-type]
    print(f"{options.out / FILE}: {(options.out / FILE).stat().st_size / 1e6:.1f} MB")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _encoded(path: Path, side: int) -> bytes:
    with Image.open(path) as image:
        square = image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
    memory = io.BytesIO()
    square.save(memory, "WEBP", quality=QUALITY, method=4)
    return memory.getvalue()


@dataclass(frozen=True, eq=False)
class Captioned:
    """Photographs with captions: pixels (N, 3, S, S) uint8; named (N, V), the share of captions with each word; held
    (N,), those that are not learned from; near (N, K), those whose captions are most alike."""

    pixels: Tensor
    named: Tensor
    held: Tensor
    near: Tensor


@dataclass(frozen=True, eq=False)
class Boxed:
    """Photographs with boxes: pixels (N, 3, S, S) uint8; boxes (N, MOST_BOXES, 4) as shares of the photograph; label
    (N, MOST_BOXES), numbers of words, -1 for no box; fold (N,), -1 of `eval`; images: file names."""

    pixels: Tensor
    boxes: Tensor
    label: Tensor
    fold: Tensor
    images: list[str]


def load_packed(path: Path, limit: int | None = None) -> tuple[list[str], list[str], Captioned, Boxed]:
    """The vocabulary, the names of objects in it, and the photographs. Words come from what is learned from alone.

    limit: at most so many photographs of each kind, evenly spread
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"DATA must be the {FILE} of `python -m texturevlm_lab.studies.region_data`, got {path}"
        )
    with np.load(path) as arrays:
        listed: dict[str, list[Any]] = json.loads(arrays["listed"].tobytes())
        pixels = {}
        for name, rows in listed.items():
            kept = evenly(range(len(rows)), limit)
            listed[name] = [rows[number] for number in kept]
            pixels[name] = _decoded(arrays[f"{name}_bytes"], arrays[f"{name}_ends"], kept)
    captions = [[words_of(caption) for caption in row["captions"]] for row in listed["captioned"]]
    held = torch.tensor([_drawn(row["image"]) % 10 == 0 for row in listed["captioned"]])
    names = sorted({one[0] for row in listed["boxed"] for one in row["objects"]})
    vocabulary = gathered([row for row, out in zip(captions, held.tolist()) if not out], names)
    numbers = {word: number for number, word in enumerate(vocabulary)}
    named = shares(captions, numbers)
    boxes = torch.zeros(len(listed["boxed"]), MOST_BOXES, 4)
    label = torch.full(boxes.shape[:2], -1)
    for row, one in enumerate(listed["boxed"]):
        # the largest, where there are too many
        largest = sorted(one["objects"], key=lambda item: -(item[3] - item[1]) * (item[4] - item[2]))[:MOST_BOXES]
        for slot, (name, *box) in enumerate(largest):
            boxes[row, slot], label[row, slot] = torch.tensor(box), numbers[name]
    fold = [_drawn(row["image"]) % FOLDS if row["split"] == "train" else -1 for row in listed["boxed"]]
    captioned = Captioned(pixels["captioned"], named, held, alike(named, held))
    images = [row["image"] for row in listed["boxed"]]
    return vocabulary, names, captioned, Boxed(pixels["boxed"], boxes, label, torch.tensor(fold), images)


def _decoded(data: np.ndarray, ends: np.ndarray, kept: Sequence[int]) -> Tensor:
    raw, edges = data.tobytes(), [0, *ends.tolist()]
    files = [raw[edges[number] : edges[number + 1]] for number in kept]
    found = [np.asarray(Image.open(io.BytesIO(one)).convert("RGB")) for one in files]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


def _drawn(name: str) -> int:
    """A number that depends on a file's name alone."""
    return int.from_bytes(hashlib.blake2b(Path(name).stem.encode(), digest_size=4).digest(), "little")


def gathered(captions: Iterable[Sequence[Sequence[str]]], names: Sequence[str]) -> list[str]:
    """The words that the captions of enough photographs hold, and the names."""
    counts = Counter(word for one in captions for word in {word for caption in one for word in caption})
    return sorted({word for word, count in counts.items() if count >= LEAST} | {*names})


def shares(captions: Sequence[Sequence[Sequence[str]]], numbers: Mapping[str, int]) -> Tensor:
    """(N, V): the share of each photograph's captions that name each word, or a word that implies it."""
    implied: dict[str, list[str]] = {}
    for name, others in IMPLIED.items():
        for word in others.split():
            implied.setdefault(word, []).append(name)
    table = torch.zeros(len(captions), len(numbers))
    for row, own in enumerate(captions):
        for caption in own:
            words = {*caption, *(name for word in caption for name in implied.get(word, ()))}
            table[row, [numbers[word] for word in words if word in numbers]] += 1 / len(own)
    return table


def alike(named: Tensor, held: Tensor, count: int = 32) -> Tensor:
    """(N, count): the learned photographs whose captions share the most words, rare words counting more."""
    rarity = (len(named) / (named > 0).sum(0).clamp(min=1)).log()
    vectors = torch.nn.functional.normalize(named * rarity, dim=1)
    found = []
    for part in vectors.split(512):
        similar = (part @ vectors.T).masked_fill(held, -1.0)
        found.append(similar.topk(min(count + 1, len(named)), 1).indices[:, 1:])  # the first is itself
    return torch.cat(found)


main = study_main(__name__, __doc__, pack, None)
