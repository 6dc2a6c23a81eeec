"""`texturevlm bench channels`: building the layers of a 1024×1024 photograph-like image, with mips."""

from functools import partial

import torch

from texturevlm.bench import timing
from texturevlm.bench.report import Report, Row, begin
from texturevlm.channels import CHANNELS, PRESETS, build, resolve
from texturevlm.types import Texture

SIDE = 1024
WITHOUT_MODEL = tuple(name for name in PRESETS["all"] if CHANNELS[name].cost != "model")
BARS = {("mvp", "cpu"): 4e5, ("mvp", "cuda"): 150.0, ("without a model", "cuda"): 1000.0}  # microseconds


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Time the presets beside plain PyTorch, and each layer by itself."""
    report = begin("Channels", device)
    device = report.device
    texture = Texture.open(_picture().to(device))
    previous = build(texture, ["red", "green", "blue"])
    repeats = 3 if quick else 7
    groups: dict[str, str | tuple[str, ...]] = {"mvp": "mvp", "fast": "fast", "without a model": WITHOUT_MODEL}
    for name, layers in groups.items():
        work = f"{name}: {len(resolve(layers))} layers with mips, {SIDE}×{SIDE}"
        bar = BARS.get((name, device))
        ours = partial(build, texture, layers, previous=previous)
        if device == "cpu":
            report.rows.append(Row(work, "build", "cpu", timing.cpu(ours, repeats=repeats), bar=bar))
            continue
        floor = _least_bytes(ours()) / report.bandwidth * 1e6
        report.rows.append(Row(work, "build", "warm", timing.device_warm(ours), floor, bar))
        report.rows.append(Row(work, "build", "host", timing.host(ours, repeats=repeats), floor, bar))
        plain = partial(ours, backend="reference")
        report.rows.append(Row(work, "PyTorch", "host", timing.host(plain, calls=3, repeats=3)))
    for name in WITHOUT_MODEL:
        alone = partial(build, texture, [name], previous=previous)
        measured = timing.device_warm(alone) if device == "cuda" else timing.cpu(alone, repeats=3)
        report.rows.append(Row(f"{name} alone, with mips", "build", "warm" if device == "cuda" else "cpu", measured))
    report.notes = ["Layers that share work each count it in full where they are built alone."]
    if device == "cuda":
        report.notes += [
            "warm: device time a call, from a captured graph of many. host: wall clock a call from Python in steady",
            "state, the larger of host and device time. floor: the image read, and the layers and their mips written,",
            "once. PyTorch: build(…, backend='reference'), the same layers by plain PyTorch, the specification. It",
            "waits for the GPU between operations (distances, superpixels), so it cannot be captured.",
        ]
    else:
        report.notes.append(
            "cpu: wall clock of one call in steady state, plain PyTorch: there are no kernels for a CPU."
        )
    return report


def _least_bytes(built: Texture) -> float:
    """What must be read and written at least: the image once, every level once."""
    levels = sum(level.numel() for level in built.levels)
    return 4.0 * (levels + 3 * built.levels[0][:, 0].numel())


def _picture() -> torch.Tensor:
    """Smooth noise of many scales, as natural images have, and a patch of stripes for the text map: (1, 3, S, S)."""
    image = torch.zeros(1, 3, SIDE, SIDE)
    for scale in (4, 16, 64, 256):
        noise = torch.rand(1, 3, scale, scale)
        image += torch.nn.functional.interpolate(noise, (SIDE, SIDE), mode="bilinear") / 4
    image[..., 300:500, 200:800] = ((torch.arange(600) // 3) % 2).float()
    return image
