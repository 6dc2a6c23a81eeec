"""Choose the tokens of one image by replaying a CUDA graph.

Scout and allocator are a few hundred small kernels, which Python launches more slowly than the GPU runs them. A graph
belongs to one image size, so it is captured when a size comes for the second time; a few are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from math import prod
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask.choose import Chosen
from texturevlm.ask.prepared import PreparedImage
from texturevlm.capture import captured_question, no_graph_because
from texturevlm.cuda.graph import KeptReplays, Replay
from texturevlm.ops import backend as backends
from texturevlm.pipeline import Allocator, choose_tokens
from texturevlm.relevance import Balance, Relevance, Scorer, find_relevance, find_scorer
from texturevlm.scout import Question
from texturevlm.types import COLOURS, COLUMNS, Allocation, Texture

MOST_CHOICES = 4  # each holds a copy of its image
MOST_ONCE = 64  # kinds of choices that came once
_MAPS = ("mass", "legible_scale", "ink", "photograph")


class CapturedChoice:
    """Called with an image and a question; None if this choice is not captured (yet)."""

    def __init__(self) -> None:
        self._kept = KeptReplays(MOST_CHOICES)
        self._once: OrderedDict[tuple[Any, ...], None] = OrderedDict()  # seen once
        self._device: torch.device | None = None  # of the graphs
        self._lock = Lock()  # a replay overwrites what the last one made

    def __reduce__(self) -> tuple[type[CapturedChoice], tuple[()]]:
        return CapturedChoice, ()  # graphs stay on their device

    def __call__(
        self, image: PreparedImage, question: str, *, budget: int, allocator: str | Allocator, relevance: str
    ) -> Chosen | None:
        texture, patch = image.texture, image.patch
        if texture.device != self._device:  # the model was moved
            self.release()
            self._device = texture.device
        scorer = find_scorer("ask", relevance, question)
        if not isinstance(allocator, str) or texture.names != COLOURS:
            return None
        if prod(texture.levels[0].shape[2:]) < prod(texture.size):  # a coarser base, which `choose` refuses
            return None
        if image.prepared.readings:  # an earlier question paid for most of the work
            return None
        level = texture.levels[0]
        if no_graph_because(level, scorer, allocator, patch, budget, {}) or backends.no_kernel_because(level):
            return None
        scorer, asked = captured_question(scorer, question)
        balance = image.balance(budget)
        key = (texture.size, texture.device, patch, budget, allocator, scorer.name, bool(asked), balance)
        options: Any = {"budget": budget, "patch": patch, "allocator": allocator}
        with self._lock:
            replay = self._replay(key, partial(_made, scorer, balance, options), [texture.levels[0], *asked])
            if replay is None:
                return None
            made = [part.clone() for part in replay(texture.levels[0], *asked)]
        columns: Any = dict(zip(COLUMNS, made))
        maps: Any = dict(zip(_MAPS, made[len(COLUMNS) :]))
        relevance_made = Relevance(**maps, size=texture.size, scorer=scorer.name)
        return Chosen(Allocation(**columns, size=texture.size, patch=patch), relevance_made)

    def release(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._kept.release()
            self._once.clear()

    def _replay(self, key: tuple[Any, ...], function: Any, inputs: list[Tensor]) -> Replay | None:
        """The graph of a key: captured at the second call with it."""
        if key not in self._kept and key not in self._once:
            self._once[key] = None
            if len(self._once) > MOST_ONCE:
                self._once.popitem(last=False)
            return None
        found = self._kept.find(key, function, inputs)
        return found if found.reason is None else None


def _made(
    scorer: Scorer, balance: Balance, options: dict[str, Any], image: Tensor, *encoded: Tensor
) -> tuple[Tensor, ...]:
    """The columns of the allocation, then the maps of the relevance."""
    texture = Texture((image,)).mipmapped()
    question = Question(*encoded) if encoded else ""
    relevance = find_relevance(texture, question, patch=options["patch"], relevance=scorer, balance=balance)
    allocation = choose_tokens(texture, relevance=relevance, **options)
    maps = [getattr(relevance, name) for name in _MAPS]
    return *(getattr(allocation, name) for name in COLUMNS), *(one for one in maps if one is not None)
