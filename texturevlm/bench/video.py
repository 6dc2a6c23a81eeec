"""`texturevlm bench video`: each frame of a clip, incrementally beside all of it anew, on the same frames.

Two clips are made here: a still camera with sensor noise before which a tenth of the tiles changes, and one in which
everything changes. Others are the files of the folder that $TEXTUREVLM_VIDEOS names, enlarged to 1080p. Every frame is
timed by itself, from the frame on the device until the result is there, and waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.channels import PRESETS, build
from texturevlm.pipeline import choose_tokens
from texturevlm.sample import sample
from texturevlm.types import Texture
from texturevlm.video.canvas import Canvas
from texturevlm.video.change import changes, no_noise
from texturevlm.video.layers import CARRIED, Layers
from texturevlm.video.sources import open_video
from texturevlm.video.stream import Stream
from texturevlm.video.tiles import rectangles

SIZE, QUICK_SIZE = (1080, 1920), (270, 480)
FOLDER = "TEXTUREVLM_VIDEOS"
FRAMES, QUICK_FRAMES = 60, 5
WARM_UP = 2  # frames, not counted
BUDGET, TILE, SHARE = 273, 32, 0.1
CHANNELS = [name for name in PRESETS["fast"] if name not in CARRIED]
FASTER = 5.0  # times, texture and channels with a tenth of the tiles changed
PATCHES_BAR = 150.0  # microseconds, frame → patches
TOWER_BAR = 1e6 / 60  # microseconds, frame → tokens of the vision tower
SLOWER = 1.1  # times, at most, where everything changes


@dataclass(frozen=True)
class Clip:
    """name, frames (1, 3, H, W) on the device, and what they are for: tenth, everything, or a real clip."""

    name: str
    frames: list[Tensor]
    kind: str


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Time every stage on every clip; `quick` takes small frames, few of them, and a small model."""
    report = begin("Video" + (", small frames" if quick else ""), device)
    size = QUICK_SIZE if quick else SIZE
    clips = [_tenth(size, report.device, quick), _everything(size, report.device, quick)]
    clips += _files(size, report.device, quick)
    tower = _tower(report.device, quick)
    for clip in clips:
        _texture(report, clip)
        _channels(report, clip)
        _patches(report, clip)
        _whole_path(report, clip, tower, BUDGET if not quick else 24)
    report.notes += [
        "Each frame by itself, wall clock until its result is there. full: everything from that frame. incremental:",
        f"the stream's way, the comparison of the frame with what is held included. Tiles of {TILE} pixels.  ",
        f"channels: {', '.join(CHANNELS)}.  ",
    ]
    return report


def _texture(report: Report, clip: Clip) -> None:
    """Frame → mip levels."""
    full = _timed(clip, lambda frame: Texture((frame,)).mipmapped())
    canvas, noise = _held(clip)
    shares: list[float] = []

    def follow(frame: Tensor) -> None:
        nonlocal noise
        found = changes(frame, canvas.levels, noise, tile=TILE)
        noise = found.noise
        canvas.refresh(frame, found)
        shares.append(found.share)

    _compare(report, clip, "texture with mips", full, _timed(clip, follow))
    moved = 100 * sum(shares) / max(1, len(shares))
    report.notes.append(f"{clip.name}: {moved:.1f}% of the tiles changed a frame.  ")


def _channels(report: Report, clip: Clip) -> None:
    """Mip levels → channels; the frame is in the texture already on both sides."""
    last = Texture((clip.frames[0],)).mipmapped()

    def anew(frame: Tensor) -> Texture:
        nonlocal last
        now = Texture((frame,)).mipmapped()
        built = build(now, CHANNELS, previous=last)
        last = now
        return built

    full = _timed(clip, anew)
    canvas, noise = _held(clip)
    layers = Layers(CHANNELS, canvas)
    layers.remake()

    def follow(frame: Tensor) -> None:
        nonlocal noise
        found = changes(frame, canvas.levels, noise, tile=TILE)
        noise = found.noise
        boxes = rectangles(found.marked, TILE, canvas.size)
        before = {box: canvas.levels[0][..., box[1] : box[3], box[0] : box[2]].clone() for box in boxes}
        canvas.refresh(frame, found)
        layers.refresh(found, before)

    _compare(report, clip, "texture and fast channels", full, _timed(clip, follow))


def _patches(report: Report, clip: Clip) -> None:
    """Frame → relevance → allocation → patches."""

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        return sample(texture, choose_tokens(texture, budget=BUDGET, relevance="none"))

    stream = Stream(_size(clip), BUDGET, relevance="none", tile=TILE, keyframe=10**6, device=clip.frames[0].device)
    full, ours = _timed(clip, anew), _timed(clip, stream.step)
    _compare(report, clip, f"frame → {BUDGET} patches", full, ours, bar=PATCHES_BAR)


def _whole_path(report: Report, clip: Clip, tower: Any, budget: int) -> None:
    """Frame → tokens of the vision tower, captured; nothing is encoded where nothing changed."""
    from texturevlm.vlm.captured import FixedBudget

    fixed = FixedBudget(tower, budget, masked=True)

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        return fixed.see(texture, choose_tokens(texture, budget=budget, relevance="none", patch=tower.side))

    options: Any = {"relevance": "none", "patch": tower.side, "tile": TILE, "keyframe": 10**6}
    stream = Stream(_size(clip), budget, device=clip.frames[0].device, **options)

    def follow(frame: Tensor) -> None:
        step = stream.step(frame)
        if step.reuse.changed or step.reuse.keyframe:
            fixed.see(step.texture, step.allocation)

    full, ours = _timed(clip, anew), _timed(clip, follow)
    _compare(report, clip, f"frame → {budget} tokens of the tower", full, ours, bar=TOWER_BAR)
    rate = 1e6 / Timing.of(ours).median
    report.notes.append(f"{clip.name}: {rate:.1f} frames a second through the tower.  ")
    report.notes += [f"{clip.name}: {reason}.  " for reason in fixed.reasons]


def _compare(
    report: Report, clip: Clip, what: str, full: list[float], ours: list[float], bar: float | None = None
) -> None:
    """Two rows, and in words how many times faster and what the slowest frames take."""
    state = "host" if report.device == "cuda" else "cpu"
    reference, measured = Timing.of(full), Timing.of(ours)
    if report.device != "cuda" or clip.kind == "file":
        bar = None
    elif clip.kind == "everything":
        bar = SLOWER * reference.median
    elif bar is None:
        bar = reference.median / FASTER
    work = f"{clip.name}: {what}"
    report.rows.append(Row(work, "full", state, reference))
    report.rows.append(Row(work, "incremental", state, measured, bar=bar))
    report.notes.append(
        f"{work}: {reference.median / measured.median:.2f} × faster; incremental p50 {measured.median / 1e3:.2f} ms, "
        f"p99 {sorted(ours)[int(0.99 * (len(ours) - 1))] / 1e3:.2f} ms.  "
    )


def _timed(clip: Clip, work: Callable[[Tensor], object]) -> list[float]:
    """Microseconds of each frame, the first ones left out."""
    on_gpu = clip.frames[0].is_cuda
    spent = []
    for frame in clip.frames:
        if on_gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        work(frame)
        if on_gpu:
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - started) * 1e6)
    return spent[WARM_UP:]


def _held(clip: Clip) -> tuple[Canvas, Any]:
    size, device = _size(clip), clip.frames[0].device
    canvas = Canvas(size, device, TILE)
    canvas.replace(clip.frames[0])
    return canvas, no_noise(size, TILE, device)


def _size(clip: Clip) -> tuple[int, int]:
    height, width = clip.frames[0].shape[2:]
    return height, width


def _tenth(size: tuple[int, int], device: str, quick: bool) -> Clip:
    """A still camera: one block of a tenth of the tiles changes, the rest is noise of two grey steps."""
    ground = _ground(size, device)
    height, width = (round(extent * SHARE**0.5 / TILE) * TILE for extent in size)
    top, left = (round(extent / 3 / TILE) * TILE for extent in size)
    frames = []
    for index in range(QUICK_FRAMES if quick else FRAMES):
        frame = ground + 2 / 255 * torch.randn_like(ground)
        inside = frame[..., top : top + height, left : left + width]
        inside.copy_(inside.roll((7 * index, 11 * index), (2, 3)).flip(3))
        frames.append(frame.clamp_(0, 1))
    return Clip(f"still camera, a tenth changes, {size[1]}×{size[0]}", frames, "tenth")


def _everything(size: tuple[int, int], device: str, quick: bool) -> Clip:
    """Every tile changes: the scene runs past."""
    ground = _ground(size, device)
    count = QUICK_FRAMES if quick else FRAMES
    frames = [ground.roll((13 * index, 29 * index), (2, 3)) for index in range(count)]
    return Clip(f"everything changes, {size[1]}×{size[0]}", frames, "everything")


def _ground(size: tuple[int, int], device: str) -> Tensor:
    """Smooth noise of many scales, as natural images have: (1, 3, H, W), 0.1 to 0.9."""
    image = torch.zeros(1, 3, *size, device=device)
    for cells in (4, 16, 64, 256):
        image += functional.interpolate(torch.rand(1, 3, cells, cells, device=device), size, mode="bilinear") / 4
    return image * 0.8 + 0.1


def _files(size: tuple[int, int], device: str, quick: bool) -> Iterator[Clip]:
    """The videos of $TEXTUREVLM_VIDEOS, enlarged."""
    if FOLDER not in os.environ:
        return
    for path in sorted(Path(os.environ[FOLDER]).iterdir()):
        if path.suffix.lower() not in (".mp4", ".avi", ".webm", ".mkv"):
            continue
        frames = []
        for frame in open_video(path):
            image = frame.image[None].to(device).float() / 255
            frames.append(functional.interpolate(image, size, mode="bicubic").clamp_(0, 1))
            if len(frames) == (QUICK_FRAMES if quick else FRAMES):
                break
        native = f"{image.shape[3]}×{image.shape[2]}"
        yield Clip(f"{path.name} ({native} enlarged to {size[1]}×{size[0]})", frames, "file")


def _tower(device: str, quick: bool) -> Any:
    """Qwen3-VL-4B's architecture with random weights, a small copy for `quick` or without a GPU."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from texturevlm.bench.vlm import SMALL_TEXT, SMALL_VISION, VISION
    from texturevlm.vlm import adapt

    small = quick or device == "cpu"
    # The language model is not run, so a small one will do; what the tower gives must fit it.
    text = dict(SMALL_TEXT) | ({} if small else {"hidden_size": VISION["out_hidden_size"]})
    config = Qwen3VLConfig(
        text_config=text, vision_config=dict(SMALL_VISION if small else VISION), tie_word_embeddings=True
    )
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration._from_config(
            config, dtype=torch.bfloat16 if device == "cuda" else torch.float32, attn_implementation="sdpa"
        )
    return adapt(model.eval().requires_grad_(False))
