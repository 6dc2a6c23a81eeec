"""What was made of recent images, kept by a budget of bytes: mip levels, maps, what scorers read, layers.

The page and the chat share it, so the second question about an image costs only the question.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.channels import CHANNELS
from texturevlm.channels import build as build_channels
from texturevlm.ops.mip import level_extents
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Prepared, Relevance
from texturevlm.serve.uploads import Upload, tensors_in
from texturevlm.types import Texture

if TYPE_CHECKING:
    from texturevlm.ask import VLM, ImageSession

LAYER_TEXELS = 1 << 19  # of a layer that is drawn, at most
MOST_QUESTIONS = 16  # whose relevance is kept per picture


class Picture:
    """One image, page or moment. lock: held while something is made of it, so that nothing is made twice"""

    def __init__(self, texture: Texture) -> None:
        self.texture = texture.mipmapped()
        self.lock = RLock()
        self._prepared: dict[int, Prepared] = {}
        self._relevance: OrderedDict[tuple[int, str, str], Relevance] = OrderedDict()
        self._sessions: dict[int, ImageSession] = {}
        self._layers: dict[str, Tensor] = {}

    @cached_property
    def grey(self) -> Tensor:
        """(1,), where there is no token."""
        return median_grey(self.texture)

    def relevance(self, question: str, scorer: str, patch: int) -> Relevance:
        """How much each cell matters for a question."""
        key = patch, scorer, question
        with self.lock:
            if key not in self._relevance:
                self._relevance[key] = self.prepared(patch).find(question, scorer=scorer)
                while len(self._relevance) > MOST_QUESTIONS:
                    self._relevance.popitem(last=False)
            self._relevance.move_to_end(key)
            return self._relevance[key]

    def prepared(self, patch: int) -> Prepared:
        """What does not depend on a question, for tokens of `patch` samples."""
        return self._prepared.setdefault(patch, Prepared(self.texture, patch=patch))

    def session(self, model: VLM) -> ImageSession:
        """The picture as a model is asked about it; what scorers read is shared with the page."""
        with self.lock:
            if id(model) not in self._sessions:
                session = model.prepare(self.texture)
                session.images[0].prepared = self.prepared(session.images[0].patch)
                self._sessions[id(model)] = session
            return self._sessions[id(model)]

    def layer(self, name: str) -> Tensor:
        """(H, W): a channel, at a level that is small enough to draw."""
        with self.lock:
            if name not in self._layers:
                extents = level_extents(*self.texture.size)
                base = next(level for level, (h, w) in enumerate(extents) if h * w <= LAYER_TEXELS)
                self._layers[name] = build_channels(self.texture, [name], base=base).levels[0][0, 0]
            return self._layers[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are held."""
        held: list[Any] = [self.texture.levels, list(self._layers.values())]
        held += [reading for one in self._prepared.values() for _, reading in one.readings.values()]
        held += [(one.mass, one.legible_scale, one.ink) for one in self._relevance.values()]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors_in(held)}.values())


def drawable(name: str) -> bool:
    """Whether an image alone gives this layer."""
    return CHANNELS[name].cost != "model" and not CHANNELS[name].needs


class Pictures:
    """Pictures by the content of their file and their page, the least recently used leave.

    nbytes: the budget; the picture in use stays even if it alone is larger
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes, self.device = nbytes, device
        self.opened = 0  # pictures that were made, for the tests and /api/about
        self._kept: OrderedDict[tuple[str, int], Picture] = OrderedDict()
        self._making: dict[tuple[str, int], Lock] = {}
        self._lock = Lock()

    def get(self, upload: Upload, page: int = 0) -> Picture:
        """A page of an upload; made once, also if two ask at once."""
        key = upload.key, page
        with self._lock:
            making = self._making.setdefault(key, Lock())
        with making:
            try:
                found = self._kept.get(key) or Picture(upload.open(page, self.device))
                with self._lock:
                    self.opened += key not in self._kept
                    self._kept[key] = found
                    self._kept.move_to_end(key)
            finally:
                self._making.pop(key, None)
        self.trim()  # also of a picture that was there: more may have been made of others
        return found

    def trim(self) -> None:
        """Let the oldest leave until the rest fits."""
        with self._lock:
            sizes = {key: one.nbytes for key, one in self._kept.items()}
            while len(self._kept) > 1 and sum(sizes.values()) > self.nbytes:
                key, _ = self._kept.popitem(last=False)
                sizes.pop(key)

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        with self._lock:
            return sum(one.nbytes for one in self._kept.values())
