"""The measurements of `studies.video`: what is still in a clip, how carried relevance drifts, what
reuse costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
from texturevlm.video import Step, TokenStream, open_video
from texturevlm.video.carry import FLOWS, CarriedRelevance, FindVectors
from texturevlm.video.change import Changes, initial_noise
from texturevlm.video.update import FrameUpdate
from texturevlm_lab.studies.kept_embeddings import KeptEmbeddings

PATCH, TILE = 32, 32
FINE_SCALE = 1.75  # pixels per sample: what counts as fine
AGES = (1, 10, 30, 60, 120, 300)
VISION: dict[str, Any] = {"depth": 8, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "patch_size": 16}
VISION |= {"out_hidden_size": 64, "num_position_embeddings": 2304, "deepstack_visual_indexes": [3]}
TEXT: dict[str, Any] = {"vocab_size": 152000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


def dis(old: Tensor, new: Tensor) -> Tensor:
    """OpenCV's dense inverse search, from bytes; zero flow for an image too small for its pyramid."""
    import cv2

    if min(new.shape[2:]) < 16:
        return new.new_zeros(1, 2, *new.shape[2:])
    finder: Any = cv2.DISOpticalFlow.create(1)  # 1: fast
    finder.setFinestScale(0)
    grey = [(image[0, 0].clamp(0, 1) * 255).round().byte().cpu().numpy() for image in (new, old)]
    found = finder.calc(grey[0], grey[1], None)
    return torch.from_numpy(found).permute(2, 0, 1)[None].to(new)


METHODS: dict[str, FindVectors] = {**FLOWS, "dis": dis}


def frames_of(path: Path, limit: int | None, first: int = 0) -> Iterator[Tensor]:
    """(1, 3, H, W), 0 to 1, from the first frame on."""
    for frame in islice(open_video(path), first, None if limit is None else first + limit):
        yield frame.image[None].float() / 255


def still_camera(path: Path, share: float, count: int) -> Iterator[Tensor]:
    """A synthetic clip: one frame of a real one, with noise of one grey step, over which a share of it wanders."""
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


def steps_of(frames: Iterable[Tensor], budget: int, **options: Any) -> Iterator[tuple[TokenStream, Step]]:
    """A stream, and what it gives for each frame, chosen by salience."""
    stream: TokenStream | None = None
    for frame in frames:
        stream = stream or TokenStream(_size(frame), budget, relevance="none", **options)
        yield stream, stream.step(frame)


def _size(frame: Tensor) -> tuple[int, int]:
    return frame.shape[2], frame.shape[3]


def still(frames: Iterable[Tensor], budget: int) -> dict[str, float]:
    """Question 26: the share of tiles and frames that are still, and of tokens that must be sampled."""
    costs = [step.reuse for _, step in steps_of(frames, budget, patch=PATCH, tile=TILE)][1:]
    shares = np.array([one.share for one in costs])
    return {
        "frames": len(costs) + 1,
        "changed": float(np.mean(shares)),
        "median": float(np.median(shares)),
        "still_frames": float(np.mean(shares == 0)),
        "sampled": sum(one.fresh for one in costs) / max(1, sum(one.tokens for one in costs)),
        "cuts": sum(one.keyframe == "cut" for one in costs),
        "chosen": sum(one.chosen for one in costs) / len(costs),
    }


class HeldFrame(NamedTuple):
    """A frame as a stream holds it: brightness and fresh relevance of its cells, and its changed tiles."""

    grey: Tensor
    fresh: Relevance
    found: Changes | None


def held_frames(path: Path, limit: int | None) -> Iterator[HeldFrame]:
    update: FrameUpdate | None = None
    for frame in frames_of(path, limit):
        found = None
        if update is None:
            given = (_size(frame), TILE, frame.device)
            update, noise = FrameUpdate(*given), initial_noise(*given)
            update.replace(frame)
        else:
            found = update.compare(frame, noise)
            noise = found.noise
            update.apply(frame, found)
        grey = luma(update.texture.levels[cell_level(update.size, PATCH)])
        yield HeldFrame(grey, find_relevance(update.texture, patch=PATCH, relevance="none"), found)


def drift(clip: Sequence[HeldFrame], method: str, *, interval: int | None, again: bool) -> list[float]:
    """Question 27: the correlation of carried relevance with fresh relevance, frame by frame.

    Relevance from the image stands for the answer to a question, since every frame has it.
    interval: frames between keyframes; None: only the first
    again:    whether untrusted cells are refreshed, as in a stream
    """
    carry = CarriedRelevance(clip[0].fresh.size, TILE, METHODS[method])
    found: list[float] = []
    for index, (grey, fresh, changes) in enumerate(clip):
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
    start = next(frames_of(path, 1, first))
    stream = TokenStream(_size(start), budget, "density", relevance="none", patch=patch, tile=TILE)
    stream.step(start)
    stream.point(boxes[0])
    found: dict[str, list[float]] = {}
    for index, frame in enumerate(frames_of(path, len(boxes), first)):
        step = stream.step(frame)
        if index % every:
            continue
        texture = Texture((frame,)).mipmapped()
        scorers: dict[str, Any] = {
            "full, by salience": "none",
            "full, the first box left where it was": AttentionScorer(_box_map(boxes[0], stream.size)),
            "full, told the true box": AttentionScorer(_box_map(boxes[index], stream.size)),
        }
        allocations = {"incremental: carried from the first box": step.allocation}
        for name, scorer in scorers.items():
            allocations[name] = choose_tokens(
                texture, budget=budget, patch=patch, allocator="density", relevance=scorer
            )
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
    errors, cosines, kept, encoded, used = [], [], [], 0, 0
    embeddings = KeptEmbeddings(adapter.encode, context, encode_all=1.0)
    for _, step in steps_of(frames, budget, patch=adapter.side, keyframe=10**6):
        tokens = embeddings.update(step)
        if step.reuse.keyframe:
            continue
        valid, wanted = step.reuse.used, adapter.encode(step.texture, step.allocation).embeds[0]
        got, old = tokens.embeds[0], valid & ~step.reuse.sampled
        errors.append(float((got - wanted)[valid].norm() / wanted[valid].norm()))
        cosines.append(float(functional.cosine_similarity(got[valid], wanted[valid]).mean()))
        if old.any():
            kept.append(float((got - wanted)[old].norm() / wanted[old].norm()))
        encoded, used = encoded + embeddings.encoded, used + step.reuse.tokens
    return {
        "error": float(np.mean(errors)),
        "worst": float(np.max(errors)),
        "kept": float(np.mean(kept)) if kept else 0.0,
        "cosine": float(np.mean(cosines)),
        "encoded": encoded / max(1, used),
    }


def clusters(frames: Iterable[Tensor]) -> dict[str, float]:
    """Channels of global reach: how well kept borders agree with borders computed again."""
    near: dict[str, list[float]] = {"kept": [], "consecutive": [], "made again": []}
    last: Tensor | None = None
    before: Tensor | None = None
    for _, step in steps_of(frames, 32, channels=["boundaries"]):
        assert step.channels is not None
        fresh, held = build(step.texture, ["boundaries"]).levels[0], step.channels.levels[0]
        if not step.reuse.keyframe:
            near["kept"].append(_recall(fresh, held))
            near["made again"].append(float(before is None or not torch.equal(before, held)))
            if last is not None:
                near["consecutive"].append(_recall(fresh, last))
        last, before = fresh.clone(), held.clone()
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
