"""`texturevlm bench channels`: building the layers of a 1024×1024 photograph-like image, with mips."""

import warnings
from functools import partial

import torch

from texturevlm.bench import timing
from texturevlm.bench.report import Report, Row, begin
from texturevlm.channels import CHANNELS, PRESETS, build
from texturevlm.types import Texture

SIDE = 1024
WITHOUT_MODEL = tuple(name for name in PRESETS["all"] if CHANNELS[name].cost != "model")
BARS = {("mvp", "cpu"): 4e5, ("mvp", "cuda"): 150.0, ("without a model", "cuda"): 1000.0}  # microseconds


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Time the presets, and each layer by itself."""
    report = begin("Channels", device)
    device = report.device
    texture = Texture.open(_picture().to(device))
    previous = build(texture, ["red", "green", "blue"])
    how = partial(timing.host, calls=5) if device == "cuda" else timing.cpu
    repeats = 3 if quick else 7
    groups = {"mvp": PRESETS["mvp"], "fast": PRESETS["fast"], "without a model": WITHOUT_MODEL}
    for name, layers in groups.items():
        call = partial(build, texture, list(layers), previous=previous)
        measured = how(call, repeats=repeats)
        work = f"{name}: {len(layers)} layers with mips, {SIDE}×{SIDE}"
        report.rows.append(Row(work, "build", device, measured, bar=BARS.get((name, device))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in WITHOUT_MODEL:
            measured = how(partial(build, texture, [name], previous=previous), repeats=3)
            report.rows.append(Row(f"{name} alone, with mips", "build", device, measured))
    report.notes = [
        "Wall clock of one call in steady state. Layers that share work each count it in full.",
        "`build` is plain PyTorch, on every device: there is no kernel for the layers yet to compare it with.",
    ]
    return report


def _picture() -> torch.Tensor:
    """Smooth noise of many scales, as natural images have, and a patch of stripes for the text map: (1, 3, S, S)."""
    image = torch.zeros(1, 3, SIDE, SIDE)
    for scale in (4, 16, 64, 256):
        noise = torch.rand(1, 3, scale, scale)
        image += torch.nn.functional.interpolate(noise, (SIDE, SIDE), mode="bilinear") / 4
    image[..., 300:500, 200:800] = ((torch.arange(600) // 3) % 2).float()
    return image
