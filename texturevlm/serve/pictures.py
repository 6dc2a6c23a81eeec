"""What was made of recent images, kept by a budget of bytes: mip levels, maps, what scorers read, layers, sessions.

The page and the chat share it, so the second question about an image costs only the question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from threading import Lock, RLock
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask import VLM, AskConfig, ImageSession
from texturevlm.channels import CHANNELS
from texturevlm.channels import build as build_channels
from texturevlm.ops import level_extents
from texturevlm.pages.pictures import PagePictures, Sight
from texturevlm.placement import Picture, TokenConfig, prepare
from texturevlm.rebuilding import median_grey
from texturevlm.serve.lanes import Stop
from texturevlm.serve.uploads import Document, Upload, Video, held_bytes
from texturevlm.types import Texture

LAYER_TEXELS = 1 << 19  # of a layer that is drawn, at most


class KeptImage:
    """One image, page or moment, with all that was made of it.

    lock: held while something is made of it, so that nothing is made twice
    """

    def __init__(self, texture: Texture) -> None:
        self.lock = RLock()
        self._picture = prepare(texture)
        self._session: ImageSession | None = None
        self._layers: dict[str, Tensor] = {}

    @property
    def texture(self) -> Texture:
        """The image as it was given."""
        return self._picture.original

    @cached_property
    def grey(self) -> Tensor:
        """(1,), where there is no token."""
        return median_grey(self.texture)

    def picture(self, how: TokenConfig) -> Picture:
        """The image as tokens are placed in it; what was found in it is shared with the session."""
        with self.lock:
            self._picture = prepare(self._picture, how)
            return self._picture

    def session(self, model: VLM) -> ImageSession:
        """The image as the model of the server is asked about it."""
        with self.lock:
            if self._session is None:
                self._session = ImageSession(model, [self._picture])
            return self._session

    def layer(self, name: str) -> Tensor:
        """(H, W): a channel, at a level that is small enough to draw."""
        with self.lock:
            if name not in self._layers:
                extents = level_extents(*self.texture.size)
                base = next(level for level, (h, w) in enumerate(extents) if h * w <= LAYER_TEXELS)
                self._layers[name] = build_channels(self.texture, [name], base=base).levels[0][0, 0]
            return self._layers[name]

    def held(self) -> list[Any]:
        """All tensors that are kept, nested."""
        pictures = [self._picture, *list(self._picture.findings.pictures.values())]
        found: list[Any] = [list(self._layers.values())]
        if self._session is not None:
            pictures += self._session.pictures
            for own in self._session.read[1] if self._session.read else []:
                pictures.append(own.picture)
                found += [own.relevance, own.upright, own.weight, own.pixels]
        return [*found, *(picture.held for picture in pictures)]


def drawable(name: str) -> bool:
    """Whether an image alone gives this layer."""
    return CHANNELS[name].cost != "model" and not CHANNELS[name].needs


class Entry:
    """Something that is made when it is first wanted. held: all tensors in it, nested"""

    def __init__(self, held: Callable[[Any], Any]) -> None:
        self.held, self.lock, self.value = held, Lock(), None  # the lock: made once, also if two ask at once

    @property
    def nbytes(self) -> int:
        return 0 if self.value is None else held_bytes(self.held(self.value))


class Pictures:
    """What was made of files, by their content: pages, moments, whole documents and videos.

    nbytes: the budget; the least recently used leave, and what is in use stays even if it alone is larger
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes, self.device = nbytes, device
        self.opened = 0  # things that were made, for the tests and /api/about
        self._kept: OrderedDict[tuple[str, int | str], Entry] = OrderedDict()
        self._lock = Lock()

    def get(self, upload: Upload, page: int = 0) -> KeptImage:
        """A page of an upload."""
        found: KeptImage = self._find(
            (upload.key, page), lambda: KeptImage(upload.open(page, self.device)), KeptImage.held
        )
        return found

    def document(self, upload: Document) -> PagePictures:
        """All pages of a document."""
        key = upload.key, "document"
        found: PagePictures = self._find(key, lambda: PagePictures(upload.pdf), PagePictures.held)
        return found

    def whole(
        self, upload: Document | Video, model: VLM, question: str, how: AskConfig, stop: Stop
    ) -> tuple[Any, float]:
        """A whole document or video, as `VLM.ask` takes it; and the seconds that this took. The pages of a document are
        read and chosen here, so that the thread that asks the model does not wait for them."""
        began = perf_counter()
        if isinstance(upload, Document):
            pages = self.document(upload)
            read_pages(pages, how.tokens, model.device, stop)
            session = model.prepare(pages)
            session.about(question, how)
            return session, perf_counter() - began
        video = self._find((upload.key, "video"), lambda: model.prepare(upload.source(stop)), vars)
        return video, perf_counter() - began

    def _find(self, key: tuple[str, int | str], make: Callable[[], Any], held: Callable[[Any], Any]) -> Any:
        with self._lock:
            kept = self._kept.setdefault(key, Entry(held))
            self._kept.move_to_end(key)
        with kept.lock:
            if kept.value is None:
                kept.value = make()
                self.opened += 1
        self.trim()  # also of what was there: more may have been made of others
        return kept.value

    def trim(self) -> None:
        """Let the oldest leave until the rest fits."""
        with self._lock:
            sizes = {key: kept.nbytes for key, kept in self._kept.items()}
            while len(self._kept) > 1 and sum(sizes.values()) > self.nbytes:
                key, _ = self._kept.popitem(last=False)
                sizes.pop(key)

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        with self._lock:
            return sum(kept.nbytes for kept in self._kept.values())


def read_pages(pages: PagePictures, how: TokenConfig, device: torch.device, stop: Stop) -> list[Sight]:
    """A coarse look at every page, while somebody waits for it."""
    found = []
    for index in range(len(pages)):
        stop.check()
        found.append(pages.sight(index, how, device))
    return found
