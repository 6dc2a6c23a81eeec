"""`texturevlm bench channels`: building the layers of a 1024×1024 photograph-like image, and choosing by them."""

import warnings
from functools import partial

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import CHANNELS, PRESETS, build, resolve
from texturevlm.defaults import BUDGET
from texturevlm.relevance.channel_logits import IMAGE_KINDS, channel_logits, load_form
from texturevlm.relevance.information import cell_maps
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Texture
from texturevlm_lab.bench.pictures import SIDE, smooth_noise
from texturevlm_lab.bench.report import Report

TITLE = "Channels"
WITHOUT_MODEL = tuple(name for name in PRESETS["all"] if CHANNELS[name].cost != "model")
GROUPS: dict[str, str | tuple[str, ...]] = {"mvp": "mvp", "fast": "fast", "without a model": WITHOUT_MODEL}
ALONG = 64  # candidates along each side of the image
SCORING_BAR = 60.0  # microseconds, captured
GROUP_BARS = {("mvp", "cpu"): 4e5, ("mvp", "cuda"): 150.0, ("without a model", "cuda"): 1000.0}  # microseconds


def _add_scoring(report: Report, texture: Texture) -> None:
    """Relevance by all channels at CANDIDATES places, and the tokens chosen by it; the layers are built already."""
    texture = texture.mipmapped()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the embedding layers are zero: they cost the same
        layers = build(texture, "all")
    maps = cell_maps(texture, (SIDE // ALONG).bit_length() - 1)
    form = load_form()
    kind = torch.full((1,), IMAGE_KINDS.index("photograph"), device=texture.device)

    def scored() -> Relevance:
        logits = channel_logits(form, layers, maps, kind)
        mass = logits.softmax(1).view(maps.ink.shape)
        return Relevance(mass, maps.legible_scale, maps.ink, texture.size, "channels", maps.photograph)

    def chosen(allocator: str) -> tuple[Tensor, ...]:
        found = ALLOCATORS[allocator](texture, scored(), budget=BUDGET)
        return found.centre, found.ddx, found.ddy, found.valid

    work = f"scoring {ALONG * ALONG:,} candidates × {len(CHANNELS)} channels"
    report.add(work, "channels", lambda: scored().mass)
    for allocator in ("cascade", "density"):
        bar = SCORING_BAR if report.device == "cuda" and allocator == "cascade" else None
        selected = f"{work} + selection ({allocator}, {BUDGET} tokens)"
        report.add(selected, "channels", partial(chosen, allocator), bar=bar)


def bench(report: Report) -> None:
    """Time the presets beside plain PyTorch, and each layer by itself."""
    on_gpu = report.device == "cuda"
    image = smooth_noise((SIDE, SIDE))
    image[..., 300:500, 200:800] = ((torch.arange(600) // 3) % 2).float()  # stripes for the text map
    texture = Texture.open(image.to(report.device))
    previous = build(texture, ["red", "green", "blue"])
    for name, layers in GROUPS.items():
        work = f"{name}: {len(resolve(layers))} layers with mips, {SIDE}×{SIDE}"
        bar = GROUP_BARS.get((name, report.device))
        ours = partial(build, texture, layers, previous=previous)
        # What must be read and written at least: the image once, every level once.
        moved = 4.0 * (sum(level.numel() for level in ours().levels) + image.numel()) if on_gpu else 0.0
        report.add(work, "build", ours, moved=moved, bar=bar)
        if on_gpu:
            report.add(work, "build", ours, "host", moved=moved, bar=bar, repeats=7)
            report.add(work, "PyTorch", partial(ours, backend="reference"), "host", calls=3, repeats=3)
    _add_scoring(report, texture)
    for name in WITHOUT_MODEL:
        alone = partial(build, texture, [name], previous=previous)
        report.add(f"{name} alone, with mips", "build", alone, repeats=20 if on_gpu else 3)
    report.notes = ["Layers that share work each count it in full where they are built alone."]
    if on_gpu:
        report.notes += [
            "warm: device time per call, from a captured graph of many. host: wall clock per call from Python in",
            "steady state, the larger of host and device time. floor: the image read, and the layers and their mips",
            "written, once. PyTorch: build(…, backend='reference'), the same layers by plain PyTorch. It",
            "waits for the GPU between operations (distances, superpixels), so it cannot be captured.",
        ]
    else:
        report.notes.append("cpu: wall clock of one call in steady state, plain PyTorch: a CPU has no kernels.")
