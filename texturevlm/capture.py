"""`compile`: image → patches in one call, captured in a CUDA graph per image size.

A graph replays the same kernels on the same memory, so it belongs to one size. Graphs are made when a size first comes;
a few are kept, the oldest is dropped. Where nothing can be captured (on a CPU, where a page is read by OCR, where an
allocator searches on the CPU) the same call runs uncaptured, and `reason` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count, check_size
from texturevlm.cuda.graph import KeptReplays, Replay, can_capture
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE
from texturevlm.ops import backend as backends
from texturevlm.ops.cover import cover_limit
from texturevlm.ops.mip import level_extents
from texturevlm.pipeline import choose_tokens
from texturevlm.relevance import SCORERS, Scorer, find_scorer
from texturevlm.relevance.maps import GRADED, UNASKED, cell_level
from texturevlm.relevance.named import BY_HAND, check_relevance
from texturevlm.sampling import sample
from texturevlm.scout import Question, encode
from texturevlm.text.strings import terms
from texturevlm.types import COLUMNS, Allocation, Patches, Texture

MOST_GRAPHS = 8


def compile(
    size: tuple[int, int],
    budget: int = BUDGET,
    allocator: str = ALLOCATOR,
    *,
    patch: int = PATCH,
    relevance: str = RELEVANCE,
    batch: int = 1,
    device: torch.device | str | None = None,
    graphs: int = MOST_GRAPHS,
    **options: Any,
) -> CompiledChooser:
    """Image → patches in one call; on a GPU by replaying a CUDA graph.

    size:      (height, width), captured at once; other sizes when they first come
    allocator: a name of `texturevlm.allocate.ALLOCATORS`; its `capture` says whether it can be captured
    relevance: auto or a name of `texturevlm.relevance.SCORERS`; its `capturable` says whether it can be captured
    batch:     how many images of `size` come at once
    device:    where they will be (default: a GPU if there is one)
    graphs:    how many graphs are kept
    options:   the allocator's own
    returns    a function of an image tensor ([B,] C, H, W) and a question, which gives Patches
    """
    height, width = check_size("compile", size)
    check_count("compile", "batch", batch, 1)
    chooser = CompiledChooser(budget, allocator, patch=patch, relevance=relevance, graphs=graphs, **options)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if can_capture(device):
        named = relevance in SCORERS and SCORERS[relevance].capturable
        chooser(torch.zeros(batch, 3, height, width, device=device), "anything" if named else "")
    return chooser


class CompiledChooser:
    """Image → patches, see `compile`.

    reason: why the last call was not a replay; None if it was
    """

    def __init__(
        self, budget: int, allocator: str, *, patch: int, relevance: str, graphs: int = MOST_GRAPHS, **options: Any
    ) -> None:
        check_count("compile", "budget", budget, 1)
        check_count("compile", "patch", patch, 1)
        check_count("compile", "graphs", graphs, 0)
        check_choice("compile", "allocator", allocator, tuple(ALLOCATORS))
        check_relevance("compile", relevance, ("auto", *(name for name in SCORERS if name not in BY_HAND)))
        self.budget, self.patch, self.allocator, self.relevance = budget, patch, allocator, relevance
        self.graphs, self.options = graphs, options
        self.reason: str | None = None
        self._kept = KeptReplays(graphs)

    def __call__(self, image: Tensor, question: str = "") -> Patches:
        """image: ([B,] C, H, W), values 0 to 1; floats on a GPU are not checked for NaN, which would wait"""
        if not isinstance(image, Tensor):
            raise TypeError(f"compile: image must be a tensor ([B,] C, H, W), got {type(image).__name__}")
        if not (image.is_cuda and image.is_floating_point() and image.dim() in (3, 4)):
            image = Texture.open(image).levels[0]
        elif image.dim() == 3:
            image = image[None]
        scorer = find_scorer("compile", self.relevance, question)
        self.reason = self._no_graph_because(image, scorer)
        if self.reason is not None:
            with torch.no_grad():
                return self._patches(image, question, scorer)
        scorer, encoded = captured_question(scorer, question)
        replay = self._replay([image, *encoded], scorer)
        self.reason = replay.reason
        pixels, *made = (part.clone() for part in replay(image, *encoded))
        columns: Any = dict(zip(COLUMNS, made, strict=True))
        return Patches(pixels, Allocation(**columns, size=(image.shape[2], image.shape[3]), patch=self.patch))

    @property
    def captured(self) -> list[tuple[int, ...]]:
        """The shapes that graphs are kept for, the oldest first."""
        return [tuple(key[0]) for key in self._kept]

    def _no_graph_because(self, image: Tensor, scorer: Scorer) -> str | None:
        reason = no_graph_because(image, scorer, self.allocator, self.patch, self.budget, self.options)
        return reason or ("graphs=0 was asked for" if self.graphs == 0 else None)

    def _replay(self, inputs: list[Tensor], scorer: Scorer) -> Replay:
        image = inputs[0]
        key = (image.shape, image.dtype, image.device, scorer.name, len(inputs) > 1)
        return self._kept.find(key, partial(self._parts, scorer), inputs)

    def _parts(self, scorer: Scorer, image: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        patches = self._patches(image, Question(*asked) if asked else "", scorer)
        return patches.pixels, *(getattr(patches.allocation, name) for name in COLUMNS)

    def _patches(self, image: Tensor, question: str | Question, scorer: Scorer) -> Patches:
        texture = Texture((image,)).mipmapped()
        options: Any = {"allocator": self.allocator, "relevance": scorer, **self.options}
        allocation = choose_tokens(texture, question, budget=self.budget, patch=self.patch, **options)
        # The texture units, which sometimes pay, filter with 8 bits and cannot be set up inside a graph.
        kernels = backends.no_kernel_because(image) is None
        return sample(texture, allocation, backend="cuda" if kernels else "auto")


def captured_question(scorer: Scorer, question: str) -> tuple[Scorer, tuple[Tensor, ...]]:
    """The scorer that a graph for a question captures, and the question as tensors, if the scorer reads one."""
    if scorer.name in UNASKED:
        return scorer, ()
    if terms(question):
        return scorer, tuple(encode([question]))
    return (scorer if scorer.name in GRADED else find_scorer("compile", "none")), ()


def no_graph_because(
    image: Tensor, scorer: Scorer, allocator: str, patch: int, budget: int, options: Mapping[str, Any]
) -> str | None:
    """Why the choice of tokens for an image (B, C, H, W) cannot be captured; None if it can."""
    if not can_capture(image.device):
        return f"graphs are for a GPU, and the image is on {image.device.type}"
    if not scorer.capturable:
        others = ", ".join(name for name, one in SCORERS.items() if one.capturable)
        return f"relevance {scorer.name!r} is not made on the GPU alone; {others} are"
    if reason := no_capture_because(allocator, (image.shape[2], image.shape[3]), patch, budget, options):
        return reason
    if ALLOCATORS[allocator].capture == "kernels" and (reason := backends.no_kernel_because(image)):
        return f"allocator {allocator!r} searches on the CPU: {reason}"
    return None


def no_capture_because(
    allocator: str, size: tuple[int, int], patch: int, budget: int, options: Mapping[str, Any]
) -> str | None:
    """Why an allocator's choice for an image that the kernels take cannot be captured; None if it can."""
    capture = ALLOCATORS[allocator].capture
    if capture == "never":
        others = ", ".join(name for name, one in ALLOCATORS.items() if one.capture != "never")
        return f"allocator {allocator!r} searches on the CPU; {others} do not"
    if options.get("scan") is not None:
        return "the option scan belongs to one image"
    if capture == "always":
        return None
    if options.get("backend", "auto") == "reference":
        reason: str | None = "the reference was asked for"
    else:
        reason = cover_limit(level_extents(*size)[cell_level(size, patch)], budget)
    return reason and f"allocator {allocator!r} searches on the CPU: {reason}"
