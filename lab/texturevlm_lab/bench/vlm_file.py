"""What a user gets from `load_vlm(…).ask(path, question)`: a JPEG on disk, the first call, and the calls after it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from texturevlm.ask import VLM, conversation_about
from texturevlm.defaults import ALLOCATOR
from texturevlm.draw import to_pil
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.vlm import CapturedPrefill
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work, waited
from texturevlm_lab.bench.vlm_model import QUESTION, chosen

FILE_BAR = 1.25  # times the decoding of the file and the path from an image on the device
ANSWER = 17  # tokens
QUALITY = 90


def write_page(folder: Path, size: tuple[int, int]) -> Path:
    """A page of words (height, width) as a JPEG."""
    path = folder / f"{size[1]}×{size[0]}.jpg"
    to_pil(page(1, *size)).save(path, quality=QUALITY)
    return path


def add_first_calls(report: Report, vlm: VLM, files: list[Path]) -> None:
    """The first call of a process: compiling, capturing, loading the scout; then the first one of another size."""
    for file in files:
        asking = partial(vlm.ask, file, QUESTION, max_new_tokens=1)
        report.add(f"{file.name} → first token", "texturevlm, ask, first call", asking, "one call", repeats=1)
    report.notes += [f"ask: {reason}.  " for reason in vlm.reasons]


def add_file(report: Report, vlm: VLM, fixed: CapturedPrefill, file: Path, on_device: float) -> None:
    """Calls after the first one.

    fixed:     the stages by themselves run on it
    on_device: microseconds from an image on the device to the first token, with the question
    """
    work, asking = f"{file.name} → first token", partial(vlm.ask, file, QUESTION)
    repeats = 3 if report.device == "cpu" else 15
    decode = report.add(f"{file.name} → pixels", "Pillow", partial(_decoded, file), "cpu", repeats=repeats)
    bar = None if report.quick else FILE_BAR * (decode + on_device)
    call: Work = partial(asking, max_new_tokens=1)
    call()
    whole = report.add(work, "texturevlm, ask", call, "one call", bar=bar, repeats=repeats)
    answering = partial(asking, max_new_tokens=ANSWER, min_new_tokens=ANSWER)
    answer = report.add(f"{file.name} → {ANSWER} tokens", "texturevlm, ask", answering, "one call", repeats=3)
    taken = {}
    for name, stage in stages(vlm, fixed, file).items():
        stage()
        work = f"{file.name}, stage {name}"
        taken[name] = report.add(work, "texturevlm", waited(stage), "one call", repeats=repeats)
    shares = ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in taken.items())
    rest = 100 * (1 - sum(taken.values()) / whole)
    details = asking(max_new_tokens=1, return_details=True).seconds
    parts = ", ".join(f"{name} {1e3 * part:.1f}" for name, part in details.items())
    report.notes += [
        f"{file.name} → first token, shares: {shares}, `generate`'s own work and the rest {rest:.0f} %. Stages are "
        "waited for one by one, so that they may add up to more than the whole.  ",
        f"{file.name}: milliseconds that `ask` reports, the GPU running behind: {parts}.  ",
        f"{file.name}: each further token takes {(answer - whole) / (ANSWER - 1) / 1e3:.1f} ms, by transformers' "
        "`generate`, uncaptured.  ",
    ]


def stages(vlm: VLM, fixed: CapturedPrefill, file: Path) -> dict[str, Work]:
    """What `ask` does, one after another, each with its inputs at hand."""
    opened = Texture.open(file, device=vlm.device)
    texture = opened.mipmapped()
    finding = partial(find_relevance, texture, QUESTION, patch=fixed.adapter.side, relevance="scout")
    relevance = finding()
    allocation = chosen(fixed, texture, relevance=relevance)
    patches = sample(texture, allocation)
    prompt: Any = conversation_about(1, QUESTION, vlm.adapter.marks)
    wording = partial(vlm.adapter.spell, prompt, [], [vlm.adapter.image_filling(fixed.budget)])
    return {
        "open: read, decode, to the device": partial(Texture.open, file, device=vlm.device),
        "mips": opened.mipmapped,
        "relevance: scout": finding,
        f"allocation: {ALLOCATOR}": partial(chosen, fixed, texture, relevance=relevance),
        "sampling": partial(sample, texture, allocation),
        "tower": partial(fixed.encode_patches, patches),
        "words of the prompt": wording,
        "prefill": partial(fixed.prefill, [wording()], fixed.encode_patches(patches)),
    }


def _decoded(file: Path) -> None:
    with Image.open(file) as image:
        image.load()
