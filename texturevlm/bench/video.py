"""`texturevlm bench video`: each frame of a clip, incrementally beside all of it anew, on the same frames.

Three clips are made here: a still camera before which a tenth of the tiles changes, one before which nothing does, and
one in which everything does. Others are those of the folder that $TEXTUREVLM_VIDEOS names (videos, folders of images,
arrays), enlarged to 1080p. Every frame is timed by itself, from the frame on the device until its result is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from texturevlm.bench.clips import TILE, Clip, clips
from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.capture import CompiledChooser
from texturevlm.channels import PRESETS, build
from texturevlm.cuda.graph import Replay
from texturevlm.pipeline import choose_tokens
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video.change import initial_noise
from texturevlm.video.settings import StreamSettings
from texturevlm.video.step import Step
from texturevlm.video.stream import VideoStream, make_update
from texturevlm.video.update import CARRIED
from texturevlm.vlm.captured import FixedBudget

SIZE, QUICK_SIZE = (1080, 1920), (270, 480)
FRAMES, QUICK_FRAMES = 60, 5
WARM_UP = 3  # frames, not counted
BUDGET, QUICK_BUDGET = 273, 24
ALLOCATOR = "cascade"  # which a graph can capture, so that both sides are at their best
CHANNELS = [name for name in PRESETS["fast"] if name not in CARRIED]
FASTER = 5.0  # times, texture and channels with a tenth of the tiles changed
PATCHES_BAR = 150.0  # microseconds, frame → patches
TOWER_BAR = 1e6 / 60  # microseconds, frame → tokens of the vision tower
SLOWER = 1.1  # times, at most, where everything changes
Work = Callable[[Tensor], object]


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Time every stage on every clip; `quick` takes small frames, few of them, and a small model."""
    report = begin("Video" + (", small frames" if quick else ""), device)
    budget = QUICK_BUDGET if quick else BUDGET
    fixed = FixedBudget(_tower(report.device, quick), budget, masked=True)
    for clip in clips(QUICK_SIZE if quick else SIZE, report.device, QUICK_FRAMES if quick else FRAMES):
        _texture(report, clip)
        _channels(report, clip)
        _patches(report, clip, budget)
        _whole_path(report, clip, fixed)
    report.notes += [
        "Each frame by itself, wall clock until its result is there; frames follow one another without a pause.",
        "full: everything from that frame. full, captured: the same as one CUDA graph. incremental: the stream's way,",
        f"the comparison with what is held included. Tiles of {TILE} pixels. Bars are against the faster of the two.",
        "On a GPU each clip is gone through once before it is timed: a graph is made when it is first needed.",
        "Texture alone has no bar: to compare two frames reads as much as to shrink one does.  ",
        f"channels: {', '.join(CHANNELS)}. Tokens by {ALLOCATOR}.  ",
    ]
    return report


def _texture(report: Report, clip: Clip) -> None:
    """Frame → mip levels."""
    follow, shares = _follower(clip, channels=False)
    ways = {"full": lambda frame: Texture((frame,)).mipmapped(), "incremental": follow}
    _compare(report, clip, "texture with mips", ways)
    timed = shares[WARM_UP - len(clip.frames) :]
    moved = 100 * sum(timed) / max(1, len(timed))
    report.notes.append(f"{clip.name}: {moved:.1f}% of the tiles changed a frame.  ")


def _channels(report: Report, clip: Clip) -> None:
    """Frame → mip levels → channels with theirs."""
    last = clip.frames[0].clone()

    def anew(frame: Tensor) -> tuple[Tensor, ...]:
        built = build(Texture((frame,)).mipmapped(), CHANNELS, previous=Texture((last,)))
        last.copy_(frame)
        return built.levels

    ways: dict[str, Work] = {"full": anew}
    if clip.frames[0].is_cuda:
        ways["full, captured"] = Replay(anew, [clip.frames[0]])
    ways["incremental"], _ = _follower(clip, channels=True)
    _compare(report, clip, "texture and fast channels", ways, faster=FASTER)


def _patches(report: Report, clip: Clip, budget: int) -> None:
    """Frame → relevance → allocation → patches."""

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        return sample(texture, choose_tokens(texture, budget=budget, allocator=ALLOCATOR, relevance="none"))

    ways: dict[str, Work] = {"full": anew}
    if clip.frames[0].is_cuda:
        ways["full, captured"] = CompiledChooser(budget, ALLOCATOR, patch=32, relevance="none")
    ways["incremental"] = VideoStream(clip.size, budget, **_options(clip)).step
    _compare(report, clip, f"frame → {budget} patches", ways, bar=PATCHES_BAR)


def _whole_path(report: Report, clip: Clip, fixed: FixedBudget) -> None:
    """Frame → tokens of the vision tower, captured; nothing is encoded where nothing changed."""
    budget, side = fixed.budget, fixed.adapter.side

    def anew(frame: Tensor) -> object:
        texture = Texture((frame,)).mipmapped()
        options: Any = {"allocator": ALLOCATOR, "relevance": "none", "patch": side}
        return fixed.encode(texture, choose_tokens(texture, budget=budget, **options))

    stream = VideoStream(clip.size, budget, patch=side, **_options(clip))

    def follow(frame: Tensor) -> None:
        step = stream.step(frame)
        if step.reuse.changed or step.reuse.keyframe:
            fixed.encode(step.texture, step.allocation)

    ways: dict[str, Work] = {"full": anew, "incremental": follow}
    _compare(report, clip, f"frame → {budget} tokens of the tower", ways, bar=TOWER_BAR)
    report.notes += [f"{clip.name}: {reason}.  " for reason in fixed.reasons]


def _options(clip: Clip) -> dict[str, Any]:
    return {"allocator": ALLOCATOR, "relevance": "none", "tile": TILE, "keyframe": 10**6, "device": clip.device}


def _follower(clip: Clip, *, channels: bool) -> tuple[Work, list[float]]:
    """A stream's texture and channels without its tokens; and the share of tiles that changed, frame by frame."""
    settings = StreamSettings(clip.size, tile=TILE, channels=CHANNELS if channels else ())
    update = make_update(settings, clip.frames[0].new_zeros(1, 1, 3, 1, 1))
    noise = initial_noise(clip.size, TILE, clip.device)
    shares: list[float] = []

    def hold(frame: Tensor) -> None:
        update.replace(frame)
        if update.channels is not None:
            update.channels.rebuild()

    def follow(frame: Tensor) -> None:
        nonlocal noise
        found = update.compare(frame, noise)
        if update.samples_patches:  # by kernels: everything is up to date
            if found.cut:  # a stream makes this a keyframe
                hold(frame)
        else:
            update.apply(frame, found)
            if update.channels is not None:
                update.channels.refresh(found)
        noise = found.noise
        shares.append(found.share)

    hold(clip.frames[0])
    return follow, shares


def _compare(
    report: Report,
    clip: Clip,
    what: str,
    ways: dict[str, Work],
    *,
    bar: float | None = None,
    faster: float | None = None,
) -> None:
    """A row a way, and in words how many times faster and what the slowest frames take."""
    state = "host" if report.device == "cuda" else "cpu"
    found = {name: _timed(clip, work) for name, work in ways.items()}
    ours = found.pop("incremental")
    reference = min(Timing.of(samples).median for samples in found.values())
    if report.device != "cuda" or clip.kind not in ("tenth", "everything"):
        bar = None
    elif clip.kind == "everything":
        bar = SLOWER * reference
    elif faster is not None:
        bar = reference / faster
    work = f"{clip.name}: {what}"
    report.rows += [Row(work, name, state, Timing.of(samples)) for name, samples in found.items()]
    report.rows.append(Row(work, "incremental", state, Timing.of(ours), bar=bar))
    middle = Timing.of(ours).median
    slowest = sorted(ours)[round(0.99 * (len(ours) - 1))]
    report.notes.append(
        f"{work}: {reference / middle:.2f} × faster; incremental p50 {middle / 1e3:.3f} ms, "
        f"p99 {slowest / 1e3:.3f} ms, {len(ours) * 1e6 / sum(ours):.0f} frames a second.  "
    )


def _timed(clip: Clip, work: Work) -> list[float]:
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
    return spent[WARM_UP:]


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
