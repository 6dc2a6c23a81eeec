"""The scout itself: a page is looked at once, and asked any number of questions.

`look` reads the page coarsely (a fraction of a millisecond on a GPU, a quarter of a second on two cores), `where` says
how likely each spot holds the answer. Weights come with the package; nothing is downloaded. A page that an OCR engine
would take seconds for costs milliseconds, at the price of reading less well.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.channels.structure import luma
from texturevlm.relevance.salience import colour_levels
from texturevlm.scout.layer import folded
from texturevlm.scout.question import Question, encode
from texturevlm.scout.ranker import Ranker, Sought
from texturevlm.scout.spotter import Spots, Spotter, seen_size
from texturevlm.scout.weights import load_module, ranker_widths
from texturevlm.types import Texture

WEIGHTS = "scout.npz"


class Scout(nn.Module):
    """Spotter and ranker, ready for use."""

    def __init__(self, spotter: Spotter, ranker: Ranker, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spotter, self.ranker = folded(spotter).to(dtype), folded(ranker).to(dtype)
        self.dtype = dtype

    def forward(self, texture: Texture, question: Question) -> Tensor:
        """`look` and `where` at once; on a GPU the question is prepared while the page is being read."""
        device = texture.device
        if device.type != "cuda":
            return self.where(self.look(texture), question)
        here, beside = torch.cuda.current_stream(device), _beside(device)
        beside.wait_stream(here)
        with torch.inference_mode(), torch.cuda.stream(beside):
            sought = self._sought(question, device)
        spots = self.look(texture)
        here.wait_stream(beside)
        if not torch.cuda.is_current_stream_capturing():  # a graph has its memory for itself
            for part in (*sought[:3], *chain.from_iterable(sought.films)):
                part.record_stream(here)  # not to be written again by another thread's question before it was used
        return self._where(spots, sought)

    @torch.inference_mode()
    def look(self, texture: Texture) -> Spots:
        """What stands where on the images of a texture."""
        with _tuned():
            spots: Spots = self.spotter(seen(texture).to(self.dtype))
        return spots

    @torch.inference_mode()
    def where(self, spots: Spots, question: str | Question) -> Tensor:
        """The chance that the answer is in each spot: (B, h, w) float32; what is missing to 1 is "not on this page".

        question: one for all pages, as text or from `encode`; or from `encode` one for each
        """
        asked = encode([question]) if isinstance(question, str) else question
        count, pages = len(asked.letters), len(spots.text)
        if count not in (1, pages):
            raise ValueError(f"Scout.where: question must be one, or one for each of {pages} pages, got {count}")
        return self._where(spots, self._sought(asked, spots.text.device))

    def _sought(self, question: Question, device: torch.device) -> Sought:
        letters, traits, kinds = (part.to(device, non_blocking=True) for part in question)
        traits = traits.to(self.dtype)
        return self.ranker.question(self.spotter.question(letters, traits), traits, kinds.to(self.dtype))

    @torch.inference_mode()
    def _where(self, spots: Spots, sought: Sought) -> Tensor:
        batch, rows, columns = spots.text.shape
        if batch > 1:
            words, doubts, worth, films = sought
            sought = Sought(words.expand(batch, -1, -1), doubts, worth.expand(batch, -1, -1), films)
        with _tuned():
            scores = self.ranker.rank(spots, sought)
        chance = scores.softmax(1)[:, :-1].view(batch, rows, columns)
        return chance * spots.text.sigmoid()  # where there is no text at all there is no answer to read


def _tuned() -> AbstractContextManager[None]:
    """Inside, cuDNN tries its algorithms once for each shape and keeps the fastest."""
    tuned: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, deterministic=False, allow_tf32=True
    )
    return tuned


@lru_cache(maxsize=None)
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def seen(texture: Texture) -> Tensor:
    """(B, 1, H, W): the images of a texture in grey, at the size at which the spotter sees them."""
    size = seen_size(texture.size)
    levels = colour_levels(texture)
    fine = [level for level in levels if level.shape[2] >= size[0] and level.shape[3] >= size[1]]
    grey = luma((fine or levels[:1])[-1])
    return functional.interpolate(grey.float(), size, mode="bilinear", antialias=True)


def load_scout(path: Path | str | None = None, *, device: torch.device | str = "cpu") -> Scout:
    """The scout that comes with the package, or one of another file that `train.ship` wrote.

    Half precision on a GPU, bfloat16 on a CPU that multiplies it.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _loaded(str(path or files("texturevlm.scout").joinpath(WEIGHTS)), device)


@lru_cache(maxsize=None)  # never given up: graphs read the weights whenever they are replayed
def _loaded(path: str, device: torch.device) -> Scout:
    spotter = load_module(Spotter(), path, prefix="spotter.")
    ranker = load_module(Ranker(ranker_widths(path, prefix="ranker.")), path, prefix="ranker.")
    if device.type == "cuda":
        dtype = torch.float16
    else:
        dtype = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return Scout(spotter, ranker, dtype).to(device)
