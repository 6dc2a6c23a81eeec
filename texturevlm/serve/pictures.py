"""What was made of recent images, kept by a budget of bytes: mip levels, maps, what scorers read, layers.

The page and the chat share it, so the second question about an image costs only the question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from threading import Lock, RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.channels import CHANNELS
from texturevlm.channels import build as build_channels
from texturevlm.ops import level_extents
from texturevlm.pages.pictures import PagePictures, Sight
from texturevlm.placement import TokenConfig
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Prepared, Relevance
from texturevlm.serve.lanes import Stop
from texturevlm.serve.uploads import Document, Upload, tensors_in
from texturevlm.types import Texture

if TYPE_CHECKING:
    from texturevlm.ask import VLM, ImageSession
    from texturevlm.ask.config import AskConfig
    from texturevlm.ask.videos import VideoSession

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
                self._sessions[id(model)] = model.prepare(self.texture)
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
        return held_bytes(held)


def drawable(name: str) -> bool:
    """Whether an image alone gives this layer."""
    return CHANNELS[name].cost != "model" and not CHANNELS[name].needs


class WholeDocument:
    """The pages of a document, with what no question changes of them."""

    def __init__(self, upload: Document) -> None:
        self.pages = PagePictures(upload.pdf)

    @property
    def nbytes(self) -> int:
        return held_bytes(self.pages.held())


class WholeVideo:
    """A video as a model is asked about it."""

    def __init__(self, upload: Upload, model: VLM, stop: Stop) -> None:
        self.session: VideoSession = model.prepare(upload.source(stop))

    @property
    def nbytes(self) -> int:
        return held_bytes([one.frames for one in self.session.moments])


class Pictures:
    """What was made of files, by their content: pages, moments, whole documents and videos.

    nbytes: the budget; the least recently used leave, and what is in use stays even if it alone is larger
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes, self.device = nbytes, device
        self.opened = 0  # things that were made, for the tests and /api/about
        self._kept: OrderedDict[tuple[str, int | str], Any] = OrderedDict()
        self._making: dict[tuple[str, int | str], Lock] = {}
        self._lock = Lock()

    def get(self, upload: Upload, page: int = 0) -> Picture:
        """A page of an upload."""
        found: Picture = self._find((upload.key, page), lambda: Picture(upload.open(page, self.device)))
        return found

    def document(self, upload: Document) -> PagePictures:
        """All pages of a document."""
        found: WholeDocument = self._find((upload.key, "document"), lambda: WholeDocument(upload))
        return found.pages

    def whole(self, upload: Upload, model: VLM, question: str, how: AskConfig, stop: Stop) -> tuple[Any, float]:
        """A whole document or video, as `VLM.ask` takes it; and the seconds that this took. The pages of a document are
        read and chosen here, so that the thread that asks the model does not wait for them."""
        began = perf_counter()
        if isinstance(upload, Document):
            pages = self.document(upload)
            read_pages(pages, how.tokens, model.device, stop)
            session = model.prepare(pages)
            session.about(question, how)
            return session, perf_counter() - began
        found: WholeVideo = self._find((upload.key, "video"), lambda: WholeVideo(upload, model, stop))
        return found.session, perf_counter() - began

    def _find(self, key: tuple[str, int | str], make: Callable[[], Any]) -> Any:
        """Made once, also if two ask at once."""
        with self._lock:
            making = self._making.setdefault(key, Lock())
        with making:
            try:
                found = self._kept.get(key) or make()
                with self._lock:
                    self.opened += key not in self._kept
                    self._kept[key] = found
                    self._kept.move_to_end(key)
            finally:
                self._making.pop(key, None)
        self.trim()  # also of what was there: more may have been made of others
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


def held_bytes(held: Any) -> int:
    """Bytes of all tensors, each counted once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors_in(held)}.values())


def read_pages(pages: PagePictures, how: TokenConfig, device: torch.device, stop: Stop) -> list[Sight]:
    """A coarse look at every page, while somebody waits for it."""
    found = []
    for index in range(len(pages)):
        stop.check()
        found.append(pages.sight(index, how, device))
    return found
