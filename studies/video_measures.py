"""The measurements of `studies.video`: what is still in a clip, how carried relevance drifts, what reuse costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.allocate.value import delivered_scale
from texturevlm.channels import build
from texturevlm.channels.structure import luma
from texturevlm.pipeline import choose_tokens
from texturevlm.relevance import AttentionScorer, Relevance, find_relevance
from texturevlm.relevance.maps import cell_level
from texturevlm.types import Allocation, Texture
from texturevlm.video import VideoStream
from texturevlm.video.carry import CarriedRelevance
from texturevlm.video.change import Changes, initial_noise
from texturevlm.video.sources import open_video
from texturevlm.video.update import FrameUpdate

PATCH, TILE = 32, 32
FINE_SCALE = 1.75  # pixels per sample: what counts as fine
AGES = (1, 10, 30, 60, 120, 300)
VISION: dict[str, Any] = {
    "depth": 8,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [3],
    "patch_size": 16,
}
TEXT: dict[str, Any] = {
    "vocab_size": 152000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def frames_of(path: Path, limit: int | None, first: int = 0) -> Iterator[Tensor]:
    """(1, 3, H, W), 0 to 1, from the first frame on."""
    for index, frame in enumerate(open_video(path)):
        if limit is not None and index >= first + limit:
            return
        if index >= first:
            yield frame.image[None].float() / 255


def still_camera(path: Path, share: float, count: int) -> Iterator[Tensor]:
    """A synthetic clip: one frame of a real one, with noise of one grey step, over which a part of it wanders.

    share: of the image that wanders
    """
    ground = next(frames_of(path, 1, first=60))
    height, width = (round(extent * share**0.5) for extent in ground.shape[2:])
    piece = ground[..., -height:, -width:].flip(3)
    random = torch.Generator().manual_seed(0)
    for index in range(count):
        frame = ground + torch.randn(ground.shape, generator=random) / 255
        turn = 2 * math.pi * index / 40
        top = round((ground.shape[2] - height) / 2 * (1 + math.sin(turn)))
        left = round((ground.shape[3] - width) / 2 * (1 + math.cos(turn)))
        frame[..., top : top + height, left : left + width] = piece
        yield frame.clamp(0, 1)


def still(frames: Iterable[Tensor], budget: int) -> dict[str, float]:
    """Question 26: the share of tiles and frames that are still, and of tokens that must be sampled."""
    stream: VideoStream | None = None
    shares, fresh, tokens, cuts, chosen = [], 0, 0, 0, 0
    for frame in frames:
        stream = stream or VideoStream(
            (frame.shape[2], frame.shape[3]), budget, relevance="none", patch=PATCH, tile=TILE
        )
        reuse = stream.step(frame).reuse
        if reuse.keyframe == "first":
            continue
        shares.append(reuse.share)
        fresh, tokens = fresh + reuse.fresh, tokens + reuse.tokens
        cuts, chosen = cuts + (reuse.keyframe == "cut"), chosen + reuse.chosen
    return {
        "frames": len(shares) + 1,
        "changed": float(np.mean(shares)),
        "median": float(np.median(shares)),
        "still_frames": float(np.mean(np.array(shares) == 0)),
        "sampled": fresh / max(1, tokens),
        "cuts": cuts,
        "chosen": chosen / len(shares),
    }


class HeldClip:
    """Each frame as a stream holds it: brightness and fresh relevance of its cells, and its changed tiles."""

    def __init__(self, path: Path, limit: int | None) -> None:
        self.grey: list[Tensor] = []
        self.fresh: list[Relevance] = []
        self.found: list[Changes | None] = []
        update, noise = None, None
        for frame in frames_of(path, limit):
            size = (frame.shape[2], frame.shape[3])
            found = None
            if update is None or noise is None:
                update, noise = FrameUpdate(size, TILE, frame.device), initial_noise(size, TILE, frame.device)
                update.replace(frame)
            else:
                found = update.compare(frame, noise)
                noise = found.noise
                update.apply(frame, found)
            self.size = size
            self.grey.append(luma(update.texture.levels[cell_level(size, PATCH)]))
            self.fresh.append(find_relevance(update.texture, patch=PATCH, relevance="none"))
            self.found.append(found)


def drift(clip: HeldClip, method: str, *, interval: int | None, again: bool) -> list[float]:
    """Question 27: the correlation of carried relevance with fresh relevance, frame by frame.

    Relevance from the image stands for the answer to a question, since every frame has it.
    interval: frames between keyframes; None: only the first
    again:    whether untrusted cells are refreshed, as in a stream
    """
    carry = CarriedRelevance(clip.size, TILE, method)
    found: list[float] = []
    for index, (grey, fresh, changes) in enumerate(zip(clip.grey, clip.fresh, clip.found)):
        if changes is None or changes.cut or (interval and index % interval == 0):
            carry.restart(replace(fresh, scorer="words"), grey)
            continue
        carry.move(grey, changes.mask)
        if again and carry.needs_refresh():
            carry.refresh_untrusted(fresh)
        assert carry.relevance is not None
        pair = torch.stack([carry.relevance.mass.flatten(), fresh.mass.flatten()])
        found.append(float(torch.corrcoef(pair)[0, 1]))
    return found


def face_coverage(
    path: Path, boxes: Sequence[Box], first: int, budget: int, patch: int, every: int
) -> dict[str, list[float]]:
    """The share of a tracked face that fine tokens cover, given only its first box, every so many frames.

    boxes: xyxy, one per frame from frame `first` on
    """
    stream: VideoStream | None = None
    found: dict[str, list[float]] = {}
    for index, frame in enumerate(frames_of(path, len(boxes), first)):
        size = (frame.shape[2], frame.shape[3])
        if stream is None:
            stream = VideoStream(size, budget, "density", relevance="none", patch=patch, tile=TILE)
            stream.step(frame)
            stream.point(boxes[0])
        step = stream.step(frame)
        if index % every:
            continue
        texture = Texture((frame,)).mipmapped()
        options: Any = {"budget": budget, "patch": patch, "allocator": "density"}
        allocations = {
            "incremental: carried from the first box": step.allocation,
            "full, by salience": choose_tokens(texture, relevance="none", **options),
            "full, the first box left where it was": choose_tokens(
                texture, relevance=AttentionScorer(_box_map(boxes[0], size)), **options
            ),
            "full, told the true box": choose_tokens(
                texture, relevance=AttentionScorer(_box_map(boxes[index], size)), **options
            ),
        }
        for name, allocation in allocations.items():
            found.setdefault(name, []).append(_finely(allocation, boxes[index]))
    return found


def _box_map(box: Box, size: tuple[int, int]) -> Tensor:
    mask = torch.zeros(1, *size)
    x0, y0, x1, y1 = (round(edge) for edge in box)
    mask[:, max(0, y0) : y1, max(0, x0) : x1] = 1
    return mask


def _finely(allocation: Allocation, box: Box) -> float:
    """The share of a box that tokens show at FINE_SCALE or finer."""
    x0, y0, x1, y1 = (max(0, round(edge)) for edge in box)
    scale = delivered_scale(allocation, allocation.size)[0, y0:y1, x0:x1]
    return float((scale <= FINE_SCALE).float().mean())


def reused(frames: Sequence[Tensor], adapter: Any, budget: int, context: float) -> dict[str, float]:
    """Question 28: the error of kept tokens against encoding every frame in full."""
    size = (frames[0].shape[2], frames[0].shape[3])
    options: Any = {"relevance": "none", "patch": adapter.side, "encode": adapter.encode, "keep": "approximate"}
    stream = VideoStream(size, budget, context=context, keyframe=10**6, **options)
    assert stream.encoded is not None
    stream.encoded.encode_all = 1.0
    errors, cosines, kept, encoded, used = [], [], [], 0, 0
    for frame in frames:
        step = stream.step(frame)
        assert step.tokens is not None
        valid, fresh = step.reuse.used, step.reuse.sampled
        wanted = adapter.encode(step.texture, step.allocation).embeds[0]
        got = step.tokens.embeds[0]
        if step.reuse.keyframe:
            continue
        errors.append(float((got - wanted)[valid].norm() / wanted[valid].norm()))
        cosines.append(float(functional.cosine_similarity(got[valid], wanted[valid]).mean()))
        if (valid & ~fresh).any():
            old = valid & ~fresh
            kept.append(float((got - wanted)[old].norm() / wanted[old].norm()))
        encoded, used = encoded + stream.encoded.encoded, used + step.reuse.tokens
    return {
        "error": float(np.mean(errors)),
        "worst": float(np.max(errors)),
        "kept": float(np.mean(kept)) if kept else 0.0,
        "cosine": float(np.mean(cosines)),
        "encoded": encoded / max(1, used),
    }


def clusters(frames: Iterable[Tensor]) -> dict[str, float]:
    """Channels of global reach: how well kept borders agree with borders computed again."""
    stream: VideoStream | None = None
    near: dict[str, list[float]] = {"kept": [], "consecutive": [], "made again": []}
    last: Tensor | None = None
    before: Tensor | None = None
    for frame in frames:
        stream = stream or VideoStream((frame.shape[2], frame.shape[3]), 32, relevance="none", channels=["boundaries"])
        step = stream.step(frame)
        assert step.channels is not None
        fresh = build(step.texture, ["boundaries"]).levels[0]
        if not step.reuse.keyframe:
            near["kept"].append(_recall(fresh, step.channels.levels[0]))
            near["made again"].append(float(before is None or not torch.equal(before, step.channels.levels[0])))
            if last is not None:
                near["consecutive"].append(_recall(fresh, last))
        last, before = fresh.clone(), step.channels.levels[0].clone()
    return {name: float(np.mean(values)) for name, values in near.items() if values}


def _recall(wanted: Tensor, got: Tensor) -> float:
    """The share of border pixels that have one of the others within two pixels."""
    around = functional.max_pool2d(got, 5, 1, 2)
    return float((around[wanted > 0.5] > 0.5).float().mean())


def at_ages(correlations: Sequence[float]) -> dict[str, float]:
    """The correlation after so many frames."""
    return {str(age): correlations[age - 1] for age in AGES if age <= len(correlations)}


def random_tower() -> Any:
    """A small Qwen3-VL whose random weights are large enough that tokens do attend to one another."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from texturevlm.vlm import adapt

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4], "mrope_interleaved": True}
    config = Qwen3VLConfig(text_config=TEXT | {"rope_parameters": rope}, vision_config=VISION, tie_word_embeddings=True)
    model = Qwen3VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    adapter: Any = adapt(model.eval().requires_grad_(False))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.tower.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
    return adapter
