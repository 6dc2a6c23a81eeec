"""`texturevlm bench video`: each frame of a clip, updated in part beside computed in full, on the same frames.

Three clips are made here: a still camera before which a tenth of the tiles changes, one before which nothing does, and
one in which everything does. Others are those of the folder that $TEXTUREVLM_VIDEOS names (videos, folders of images,
arrays), enlarged to 1080p. Every frame is timed by itself, from the frame on the device until its result is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import PRESETS, build
from texturevlm.cuda.graph import Replay, can_capture
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.placement import choose_tokens, compile
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import ARRAYS, Step, StreamConfig, open_video
from texturevlm.video.change import initial_noise
from texturevlm.video.stream import TokenStream, make_update
from texturevlm.video.update import CARRIED
from texturevlm.vlm import CapturedPrefill
from texturevlm_lab.bench.pictures import smooth_noise
from texturevlm_lab.bench.report import Report, Row
from texturevlm_lab.bench.timing import Timing
from texturevlm_lab.bench.vlm_model import random_model

TITLE = "Video"
FULL_HD, SMALL = (1080, 1920), (270, 480)
FRAMES, QUICK_FRAMES = 60, 5
SKIPPED = 3  # first frames, not counted
CAPTURABLE = "cascade"  # an allocator that a graph can capture, so that both sides are at their best
LAYERS = [name for name in PRESETS["fast"] if name not in CARRIED]
CHANNELS_FASTER = 5.0  # times, texture and channels with a tenth of the tiles changed
PATCHES_BAR = 150.0  # microseconds, frame → patches
TOKENS_BAR = 1e6 / 60  # microseconds, frame → tokens of the vision tower
SLOWER = 1.1  # times, at most, where everything changes
FOLDER = "TEXTUREVLM_VIDEOS"
FILES = (".mp4", ".avi", ".webm", ".mkv", *ARRAYS)
TILE, CHANGED_SHARE = 32, 0.1
SENSOR_NOISE = 2 / 255  # of the made cameras
FrameWork = Callable[[Tensor], object]


class Clip(NamedTuple):
    """name, frames (1, 3, H, W) on the device, and what they are for: tenth, nothing, everything, or a file."""

    name: str
    frames: list[Tensor]
    kind: str

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.frames[0].shape[2], self.frames[0].shape[3]


def bench(report: Report) -> None:
    """Time every stage on every clip; a quick run takes small frames, few of them, and a small model."""
    quick, small = report.quick, report.quick or report.device == "cpu"
    report.title += ", small frames" if quick else ""
    fixed = CapturedPrefill(random_model(report.device, small=small, text=False), 24 if quick else BUDGET, masked=True)
    for clip in clips(SMALL if quick else FULL_HD, report.device, QUICK_FRAMES if quick else FRAMES):
        _texture(report, clip)
        _channels(report, clip)
        _patches(report, clip, fixed.budget)
        _whole_path(report, clip, fixed)
    report.notes += [
        "Each frame by itself, wall clock until its result is there; frames follow one another without a pause.",
        "full: everything from that frame. full, captured: the same as one CUDA graph. incremental: the stream's way,",
        f"the comparison with what is held included. Tiles of {TILE} pixels. Bars are against the faster of the two.",
        "On a GPU each clip is gone through once before it is timed: a graph is made when it is first needed.",
        "Texture alone has no bar: to compare two frames reads as much as to shrink one does.  ",
        f"channels: {', '.join(LAYERS)}. Tokens by {CAPTURABLE}.  ",
    ]


def _texture(report: Report, clip: Clip) -> None:
    """Time the way from a frame to its mip levels."""
    follow, shares = _follower(clip, channels=())
    _compare(report, clip, "texture with mips", full=lambda frame: Texture((frame,)).mipmapped(), incremental=follow)
    timed = shares[SKIPPED - len(clip.frames) :]
    moved = 100 * sum(timed) / max(1, len(timed))
    report.notes.append(f"{clip.name}: {moved:.1f}% of the tiles changed a frame.  ")


def _channels(report: Report, clip: Clip) -> None:
    """Frame → mip levels → channels with theirs."""
    last = clip.frames[0].clone()

    def anew(frame: Tensor) -> tuple[Tensor, ...]:
        built = build(Texture((frame,)).mipmapped(), LAYERS, previous=Texture((last,)))
        last.copy_(frame)
        return built.levels

    captured = Replay(anew, [clip.frames[0]]) if can_capture(last.device) else None
    follow, _ = _follower(clip, channels=LAYERS)
    what = "texture and fast channels"
    _compare(report, clip, what, full=anew, captured=captured, incremental=follow, faster=CHANNELS_FASTER)


def _patches(report: Report, clip: Clip, budget: int) -> None:
    """Frame → relevance → allocation → patches."""

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        return sample(texture, choose_tokens(texture, budget=budget, allocator=CAPTURABLE, relevance="none"))

    captured = None
    if can_capture(clip.frames[0].device):
        captured = compile(clip.size, budget, CAPTURABLE, relevance="none", device=clip.frames[0].device)
    follow = _stream(clip, budget, PATCH).step
    what = f"frame → {budget} patches"
    _compare(report, clip, what, full=anew, captured=captured, incremental=follow, bar=PATCHES_BAR)


def _whole_path(report: Report, clip: Clip, fixed: CapturedPrefill) -> None:
    """Frame → tokens of the vision tower, captured; nothing is encoded where nothing changed."""
    budget, side = fixed.budget, fixed.adapter.side

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        allocation = choose_tokens(texture, budget=budget, patch=side, allocator=CAPTURABLE, relevance="none")
        return fixed.encode(texture, allocation)

    stream = _stream(clip, budget, side)

    def follow(frame: Tensor) -> None:
        step = stream.step(frame)
        if step.reuse.changed or step.reuse.keyframe:
            fixed.encode(step.texture, step.allocation)

    _compare(report, clip, f"frame → {budget} tokens of the tower", full=anew, incremental=follow, bar=TOKENS_BAR)
    report.notes += [f"{clip.name}: {reason}.  " for reason in fixed.reasons]


def _stream(clip: Clip, budget: int, patch: int) -> TokenStream:
    """A stream without keyframes but the first."""
    never, device = 10**6, clip.frames[0].device
    options: Any = {"relevance": "none", "patch": patch, "tile": TILE, "keyframe": never, "device": device}
    return TokenStream(clip.size, budget, CAPTURABLE, **options)


def _follower(clip: Clip, *, channels: Sequence[str]) -> tuple[FrameWork, list[float]]:
    """A stream's texture and channels without its tokens; and the share of tiles that changed, frame by frame."""
    first = clip.frames[0]
    update = make_update(StreamConfig(tile=TILE, channels=channels), clip.size, first.new_zeros(1, 1, 3, 1, 1))
    noise = initial_noise(clip.size, TILE, first.device)
    shares: list[float] = []

    def follow(frame: Tensor) -> None:
        nonlocal noise
        found = update.compare(frame, noise)
        if update.samples_patches:  # by kernels: everything is up to date
            if found.cut:  # a stream makes this a keyframe
                update.replace(frame)
        else:
            update.apply(frame, found)
            if update.channels is not None:
                update.channels.refresh(found)
        noise = found.noise
        shares.append(found.share)

    update.replace(first)
    return follow, shares


def _compare(
    report: Report,
    clip: Clip,
    what: str,
    *,
    full: FrameWork,
    incremental: FrameWork,
    captured: FrameWork | None = None,
    bar: float | None = None,
    faster: float | None = None,
) -> None:
    """One row per strategy, and in words how many times faster and what the slowest frames take."""
    state = "host" if report.device == "cuda" else "cpu"
    ways = {"full": full, "full, captured": captured, "incremental": incremental}
    found = {name: _timed(clip, work) for name, work in ways.items() if work is not None}
    timings = {name: Timing.of(samples) for name, samples in found.items()}
    ours, middle = found["incremental"], timings["incremental"].median
    reference = min(timing.median for name, timing in timings.items() if name != "incremental")
    if report.device != "cuda" or clip.kind not in ("tenth", "everything"):
        bar = None
    elif clip.kind == "everything":
        bar = SLOWER * reference
    elif faster is not None:
        bar = reference / faster
    work = f"{clip.name}: {what}"
    for name, timing in timings.items():
        report.append(Row(work, name, state, timing, bar=bar if name == "incremental" else None))
    slowest = sorted(ours)[round(0.99 * (len(ours) - 1))]
    report.notes.append(
        f"{work}: {reference / middle:.2f} × faster; incremental p50 {middle / 1e3:.3f} ms, "
        f"p99 {slowest / 1e3:.3f} ms, {len(ours) * 1e6 / sum(ours):.0f} frames a second.  "
    )


def _timed(clip: Clip, work: FrameWork) -> list[float]:
    """Microseconds of each frame, the first ones left out. A step waits itself for the patches of a usual frame.

    On a GPU after the whole clip once, since a graph is made when it is first needed.
    """
    on_gpu = clip.frames[0].is_cuda
    spent = []
    for frame in clip.frames if on_gpu else []:
        work(frame)
    for frame in clip.frames:
        started = time.perf_counter()
        made = work(frame)
        if on_gpu and not (isinstance(made, Step) and not made.reuse.chosen and not made.reuse.keyframe):
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - started) * 1e6)
    if on_gpu:
        torch.cuda.synchronize()
    return spent[SKIPPED:]


def clips(size: tuple[int, int], device: str, count: int) -> Iterator[Clip]:
    """One after another, so that only one is in memory; `count` frames of each at most."""
    extent = f"{size[1]}×{size[0]}"
    yield Clip(f"still camera, a tenth changes, {extent}", list(_tenth(size, device, count)), "tenth")
    ground = _ground(size, device)
    yield Clip(
        f"still camera, nothing changes, {extent}", [_noisy(ground).clamp_(0, 1) for _ in range(count)], "nothing"
    )
    past = [ground.roll((13 * index, 29 * index), (2, 3)) for index in range(count)]
    yield Clip(f"everything changes, {extent}", past, "everything")
    if FOLDER not in os.environ:
        return
    for path in sorted(Path(os.environ[FOLDER]).iterdir()):  # videos, folders of images and arrays, enlarged
        if path.is_dir() or path.suffix.lower() in FILES:
            found = [frame.image[None].to(device).float() / 255 for frame in islice(open_video(path), count)]
            native = f"{found[0].shape[3]}×{found[0].shape[2]}" if found else ""
            frames = [functional.interpolate(image, size, mode="bicubic").clamp_(0, 1) for image in found]
            yield Clip(f"{path.name} ({native} enlarged to {extent})", frames, "file")


def _tenth(size: tuple[int, int], device: str, count: int) -> Iterator[Tensor]:
    """A still camera: in one block, a tenth of the tiles, the picture runs past; the rest is noise."""
    ground = _ground(size, device)
    height, width = (round(extent * CHANGED_SHARE**0.5 / TILE) * TILE for extent in size)
    top, left = (round(extent / 3 / TILE) * TILE for extent in size)
    for index in range(count):
        frame = _noisy(ground)
        inside = frame[..., top : top + height, left : left + width]
        inside.copy_(inside.roll((7 * index, 11 * index), (2, 3)).flip(3))
        yield frame.clamp_(0, 1)


def _ground(size: tuple[int, int], device: str) -> Tensor:
    return smooth_noise(size, device) * 0.8 + 0.1


def _noisy(ground: Tensor) -> Tensor:
    return ground + SENSOR_NOISE * torch.randn_like(ground)
