"""Placing tokens by replaying a CUDA graph: scorer and allocator are a few hundred small kernels, which Python launches
more slowly than the GPU runs them.

What is captured is pure: `choose` makes relevance and footprints from a texture and an encoded question, batched, and
never waits for the host. A graph belongs to one image size; a few are kept, the oldest is dropped. Where nothing can be
captured (on a CPU, where a page is read by OCR, where an allocator searches on the CPU) a reason says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.allocator import Capture
from texturevlm.allocate.share import as_batch
from texturevlm.check import check_count, check_size
from texturevlm.cuda import KeptReplays, can_capture
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE, TURN
from texturevlm.ops import backend as backends
from texturevlm.ops import cover_limit, level_extents
from texturevlm.placement.config import Allocator, TokenConfig
from texturevlm.placement.picture import Picture, prepare
from texturevlm.placement.placement import place_together
from texturevlm.relevance import (
    SCORERS,
    Prepared,
    Relevance,
    Scorer,
    cell_level,
    declares,
    find_relevance,
    find_scorer,
    reads_question,
)
from texturevlm.sampling import sample
from texturevlm.scout import Question, encode
from texturevlm.text import terms
from texturevlm.types import COLOURS, COLUMNS, Allocation, Patches, Texture

MOST_GRAPHS = 8
MOST_CHOICES = 4  # of a model: each holds a copy of its image
MOST_ONCE = 64  # kinds of choices that came once
_MAPS = ("mass", "legible_scale", "ink", "photograph")


def choose(
    texture: Texture, question: str | Question, how: TokenConfig, scorer: Scorer | Prepared | None = None
) -> tuple[Relevance, Allocation]:
    """Relevance and footprints of a batch of images of one size, each with the whole budget; nothing waits for the
    host.

    scorer: instead of the one that `how` names; or what was prepared of these images
    """
    by = how.relevance if scorer is None else scorer
    balance = how.weighing(how.budget)
    relevance = find_relevance(texture, question, patch=how.patch, relevance=by, balance=balance)
    return relevance, how.chooser(texture, relevance, budget=how.budget, patch=how.patch, **how.options)


class Made(NamedTuple):
    """What a replay, or a plain call, made of images. pixels: (B, K, C, P, P), if they were asked for"""

    relevance: Relevance
    allocation: Allocation
    pixels: Tensor | None


class CapturedChoice:
    """Places tokens by graphs: one per image size, device and config.

    graphs:  how many are kept
    sampled: whether the pixels of the tokens are sampled, too
    second:  whether a graph is made when its size comes for the second time, not for the first
    reason:  why the last call was not a replay; None if it was
    """

    def __init__(self, graphs: int = MOST_GRAPHS, *, sampled: bool = False, second: bool = False) -> None:
        self.graphs, self.sampled, self.second = graphs, sampled, second
        self.reason: str | None = None
        self.kept = KeptReplays(graphs)
        self._once: OrderedDict[tuple[Any, ...], None] = OrderedDict()  # seen once
        self._device: torch.device | None = None  # of the graphs
        self._lock = Lock()  # a replay overwrites what the last one made

    def __reduce__(self) -> tuple[Any, ...]:  # graphs stay on their device
        return partial(CapturedChoice, self.graphs, sampled=self.sampled, second=self.second), ()

    def place(self, picture: Picture, question: str, how: TokenConfig) -> tuple[Allocation, Relevance] | None:
        """The tokens of one picture, as `place_together` takes them; None if they are not placed by a replay."""
        texture = picture.texture
        if texture.names != COLOURS:
            self.reason = f"the image has {len(texture.names)} channels, and graphs take red, green and blue"
        elif prod(texture.levels[0].shape[2:]) < prod(texture.size):
            self.reason = "the image is read by pages"
        elif picture.memo.readings:
            self.reason = "an earlier question paid for most of the work"
        else:
            made = self.replayed(texture.levels[0], question, how)
            return None if made is None else (made.allocation, made.relevance)
        return None

    def replayed(self, image: Tensor, question: str, how: TokenConfig) -> Made | None:
        """Images (B, C, H, W) by a graph; None with a reason if there is none for them."""
        if image.device != self._device:  # the model was moved
            self.release()
            self._device = image.device
        scorer = find_scorer("place", how.relevance, question)
        self.reason = no_graph_because(image, scorer, how) or (None if self.graphs else "graphs=0 was asked for")
        if self.reason is not None:
            return None
        scorer, asked = captured_question(scorer, question)
        key = (image.shape, image.dtype, image.device, scorer.name, bool(asked), _hashable(how))
        with self._lock:
            if self.second and key not in self.kept and key not in self._once:
                self._once[key] = None
                if len(self._once) > MOST_ONCE:
                    self._once.popitem(last=False)
                self.reason = "a size is captured when it comes for the second time"
                return None
            replay = self.kept.find(key, partial(self._parts, scorer, how), [image, *asked])
            self.reason = replay.reason
            if replay.reason is not None:
                return None
            made = [part.clone() for part in replay(image, *asked)]
        return self._whole(made, (image.shape[2], image.shape[3]), how, scorer.name)

    def plain(self, image: Tensor, question: str | Question, how: TokenConfig) -> Made:
        """The same without a graph."""
        texture = Texture((image,)).mipmapped()
        with torch.no_grad():
            relevance, allocation = choose(texture, question, how)
            return Made(relevance, allocation, sampled_pixels(texture, allocation) if self.sampled else None)

    def release(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self.kept.release()
            self._once.clear()

    def _parts(self, scorer: Scorer, how: TokenConfig, image: Tensor, *encoded: Tensor) -> tuple[Tensor, ...]:
        """What a graph captures: the pixels, the columns of the allocation, the maps of the relevance."""
        texture = Texture((image,)).mipmapped()
        relevance, allocation = choose(texture, Question(*encoded) if encoded else "", how, scorer)
        maps = [getattr(relevance, name) for name in _MAPS]
        columns = [getattr(allocation, name) for name in COLUMNS]
        pixels = [sampled_pixels(texture, allocation)] if self.sampled else []
        return *pixels, *columns, *(part for part in maps if part is not None)

    def _whole(self, made: list[Tensor], size: tuple[int, int], how: TokenConfig, scorer: str) -> Made:
        pixels = made.pop(0) if self.sampled else None
        columns: Any = dict(zip(COLUMNS, made))
        maps: Any = dict(zip(_MAPS, made[len(COLUMNS) :]))
        allocation = Allocation(**columns, size=size, patch=how.patch)
        return Made(Relevance(**maps, size=size, scorer=scorer), allocation, pixels)


def sampled_pixels(texture: Texture, allocation: Allocation) -> Tensor:
    """What the tokens show (B, K, C, P, P), sampled in a way that a graph can capture."""
    # The texture units, which sometimes pay, filter with 8 bits and cannot be set up inside a graph.
    kernels = backends.no_kernel_because(texture.levels[0]) is None
    return sample(texture, allocation, backend="cuda" if kernels else "auto").pixels


def _hashable(how: TokenConfig) -> tuple[Any, ...]:
    options = tuple((name, repr(value)) for name, value in sorted(how.options.items()))
    return how.budget, how.patch, how.allocator, how.weighing(how.budget), options


def captured_question(scorer: Scorer, question: str) -> tuple[Scorer, tuple[Tensor, ...]]:
    """The scorer that a graph for a question captures, and the question as tensors, if the scorer reads one."""
    if not reads_question(scorer):
        return scorer, ()
    if terms(question):
        return scorer, tuple(encode([question]))
    return (scorer if declares(scorer, "grades") else find_scorer("compile", "none")), ()


def no_graph_because(image: Tensor, scorer: Scorer, how: TokenConfig) -> str | None:
    """Why the choice of tokens for an image (B, C, H, W) cannot be captured; None if it can."""
    if not can_capture(image.device):
        return f"graphs are for a GPU, and the image is on {image.device.type}"
    if how.turn != 0:
        return "images are turned upright one by one"
    if not declares(scorer, "capturable"):
        others = ", ".join(name for name in SCORERS.built_in if declares(name, "capturable"))
        return f"relevance {scorer.name!r} is not made on the GPU alone; {others} are"
    size = image.shape[2], image.shape[3]
    if reason := no_capture_because(how.allocator, size, how.patch, how.budget, how.options):
        return reason
    if capture_of(how.allocator) == "kernels" and (reason := backends.no_kernel_because(image)):
        return f"allocator {how.allocator!r} searches on the CPU: {reason}"
    return None


def capture_of(allocator: str | Allocator) -> Capture:
    """Whether a CUDA graph can capture an allocator; one that says nothing of it searches on the CPU."""
    capture: Capture = getattr(ALLOCATORS.find("compile", allocator), "capture", "never")
    return capture


def no_capture_because(
    allocator: str | Allocator, size: tuple[int, int], patch: int, budget: int, options: Mapping[str, Any]
) -> str | None:
    """Why an allocator's choice for an image that the kernels take cannot be captured; None if it can."""
    capture = capture_of(allocator)
    if capture == "never":
        others = ", ".join(name for name in ALLOCATORS.built_in if capture_of(name) != "never")
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


def compile(
    size: tuple[int, int],
    budget: int = BUDGET,
    allocator: str | Allocator = ALLOCATOR,
    *,
    patch: int = PATCH,
    relevance: str | Scorer = RELEVANCE,
    turn: float | str = TURN,
    batch: int = 1,
    device: torch.device | str | None = None,
    graphs: int = MOST_GRAPHS,
    **options: Any,
) -> CompiledChooser:
    """Image → patches in one call; on a GPU by replaying a CUDA graph.

    size:      (height, width), captured at once; other sizes when they first come
    allocator: a name of `texturevlm.ALLOCATORS`, or a function like those; its `capture` says whether it can be
               captured
    relevance: auto, a name of `texturevlm.SCORERS`, or a scorer; its `capturable` says whether it can be captured
    turn:      as in TokenConfig; images that are turned upright are not captured
    batch:     how many images of `size` come at once
    device:    where they will be (default: a GPU if there is one)
    graphs:    how many graphs are kept
    options:   the allocator's own
    returns    a function of an image tensor ([B,] C, H, W) and a question, which gives Patches
    """
    height, width = check_size("compile", size)
    check_count("compile", "batch", batch, 1)
    check_count("compile", "graphs", graphs, 0)
    how = TokenConfig(budget, allocator, turn=turn, patch=patch, options=options)
    chooser = CompiledChooser(how.given(relevance=relevance).check("compile"), graphs)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if can_capture(device):
        asked = "anything" if declares(relevance, "capturable") else ""
        chooser(torch.zeros(batch, 3, height, width, device=device), asked)
    return chooser


class CompiledChooser:
    """Image → patches, see `compile`.

    reason: why the last call was not a replay; None if it was
    """

    def __init__(self, how: TokenConfig, graphs: int) -> None:
        self.how, self.choice = how, CapturedChoice(graphs, sampled=True)

    def __call__(self, image: Tensor, question: str = "") -> Patches:
        """image: ([B,] C, H, W), values 0 to 1; floats on a GPU are not checked for NaN, which would wait"""
        if not isinstance(image, Tensor):
            raise TypeError(f"compile: image must be a tensor ([B,] C, H, W), got {type(image).__name__}")
        if not (image.is_cuda and image.is_floating_point() and image.dim() in (3, 4)):
            image = Texture.open(image).levels[0]
        elif image.dim() == 3:
            image = image[None]
        made = self.choice.replayed(image, question, self.how)
        if made is None and self.how.turn == 0:
            made = self.choice.plain(image, question, self.how)
        if made is None:
            texture = Texture((image,)).mipmapped()
            with torch.no_grad():
                parts = [prepare(part, self.how) for part in texture.split()]
                placed = [place_together([part], question, self.how)[0].given for part in parts]
                return sample(texture, as_batch(placed))
        assert made.pixels is not None
        return Patches(made.pixels, made.allocation)

    @property
    def reason(self) -> str | None:
        return self.choice.reason

    @property
    def captured(self) -> list[tuple[int, ...]]:
        """The shapes that graphs are kept for, the oldest first."""
        return [tuple(key[0]) for key in self.choice.kept]
