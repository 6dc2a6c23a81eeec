"""`texturevlm bench channels`: building the layers of a 1024×1024 photograph-like image, with mips."""

from functools import partial

import torch

from texturevlm.bench.pictures import SIDE, smooth_noise
from texturevlm.bench.report import Report, begin
from texturevlm.channels import CHANNELS, PRESETS, build, resolve
from texturevlm.types import Texture

WITHOUT_MODEL = tuple(name for name in PRESETS["all"] if CHANNELS[name].cost != "model")
GROUPS: dict[str, str | tuple[str, ...]] = {"mvp": "mvp", "fast": "fast", "without a model": WITHOUT_MODEL}
GROUP_BARS = {("mvp", "cpu"): 4e5, ("mvp", "cuda"): 150.0, ("without a model", "cuda"): 1000.0}  # microseconds


def bench_channels(device: str | None = None, *, quick: bool = False) -> Report:
    """Time the presets beside plain PyTorch, and each layer by itself."""
    report = begin(__name__, "Channels", device, quick)
    on_gpu = report.device == "cuda"
    image = smooth_noise((SIDE, SIDE))
    image[..., 300:500, 200:800] = ((torch.arange(600) // 3) % 2).float()  # stripes for the text map
    texture = Texture.open(image.to(report.device))
    previous = build(texture, ["red", "green", "blue"])
    for name, layers in GROUPS.items():
        work = f"{name}: {len(resolve(layers))} layers with mips, {SIDE}×{SIDE}"
        bar = GROUP_BARS.get((name, report.device))
        ours = partial(build, texture, layers, previous=previous)
        if not on_gpu:
            report.add(work, "build", ours, "cpu", bar=bar)
            continue
        # What must be read and written at least: the image once, every level once.
        moved = 4.0 * (sum(level.numel() for level in ours().levels) + image.numel())
        report.add(work, "build", ours, "warm", moved=moved, bar=bar)
        report.add(work, "build", ours, "host", moved=moved, bar=bar, repeats=7)
        report.add(work, "PyTorch", partial(ours, backend="reference"), "host", calls=3, repeats=3)
    for name in WITHOUT_MODEL:
        alone = partial(build, texture, [name], previous=previous)
        counts = {} if on_gpu else {"repeats": 3}
        report.add(f"{name} alone, with mips", "build", alone, "warm" if on_gpu else "cpu", **counts)
    report.notes = ["Layers that share work each count it in full where they are built alone."]
    if on_gpu:
        report.notes += [
            "warm: device time per call, from a captured graph of many. host: wall clock per call from Python in",
            "steady state, the larger of host and device time. floor: the image read, and the layers and their mips",
            "written, once. PyTorch: build(…, backend='reference'), the same layers by plain PyTorch. It",
            "waits for the GPU between operations (distances, superpixels), so it cannot be captured.",
        ]
    else:
        report.notes.append(
            "cpu: wall clock of one call in steady state, plain PyTorch: there are no kernels for a CPU."
        )
    return report
