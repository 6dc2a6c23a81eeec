"""The scout: reads a page once, then answers any number of questions about where something is.

`read` reads the page coarsely (a fraction of a millisecond on a GPU, a quarter of a second on two CPU cores); `where`
gives the probability that each spot holds the answer. The weights come with the package. The scout is faster than
OCR, and reads less well.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.channels import colour_levels, luma, optional
from texturevlm.scout.fused import Fused
from texturevlm.scout.question import Question, encode
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.spotter import Spots, Spotter, folded, input_size
from texturevlm.types import Texture

_WEIGHTS = "scout.npz"
ENOUGH = 0.98  # of the input's pixels along a side


class Scout(nn.Module):
    """Spotter and ranker for inference; on a GPU by our kernels (`Fused`) where they can run."""

    def __init__(self, spotter: Spotter, ranker: Ranker, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spotter, self.ranker = folded(spotter).to(dtype), folded(ranker).to(dtype)
        self.fused = Fused(self.spotter, self.ranker)
        self.dtype = dtype

    @torch.inference_mode()
    def forward(self, texture: Texture, question: Question) -> Tensor:
        """`read` and `where` at once; on a GPU the question is prepared while the page is being read."""
        colours, size = _to_read(texture)
        if not self.fused.can_run(colours):
            return self.where(self.read(texture), question)
        with _tuned():
            # The words stay unnormalised: `where` normalises them.
            return self.fused.where(*self.fused.read_and_ask(colours, size, self._given(question, colours)))

    @torch.inference_mode()
    def read(self, texture: Texture, *, for_where: bool = False) -> Spots:
        """Read the images of a texture: the words, and whether there is text, at each spot.

        for_where: `where` alone gets the result. On a GPU it normalises the words itself, so they may have any length
        """
        colours, size = _to_read(texture)
        with _tuned():
            if not self.fused.can_run(colours):
                spots: Spots = self.spotter(_grey(colours, size).to(self.dtype))
                return spots
            spots = self.fused.read(colours, size)
        if for_where:
            return spots
        return spots._replace(words=functional.normalize(spots.words, dim=1))

    @torch.inference_mode()
    def where(self, spots: Spots, question: str | Question) -> Tensor:
        """The probability that the answer is in each spot: (B, h, w) float32; the rest to 1 is "not on this page".

        question: text, or an encoded one (`encode`) for all pages, or one per page
        """
        given = self._given(encode([question]) if isinstance(question, str) else question, spots.text)
        with _tuned():
            if self.fused.can_run(spots.text):
                return self.fused.where(spots, self.fused.question(given))
            traits, kinds = given.traits.to(self.dtype), given.asked.to(self.dtype)
            inputs = self.ranker.question(self.spotter.question(given.letters, traits), traits, kinds)
            scores = self.ranker.rank(spots, inputs)
        return scores.softmax(1)[:, :-1].view(spots.text.shape) * spots.text.sigmoid()  # no text, no answer

    @torch.inference_mode()
    def found(self, spots: Spots, question: Question) -> Tensor:
        """How alike the best spot of each page is to each word of a question: (B, WORDS) float32, cosines of text."""
        given = self._given(question, spots.text)
        words = self.spotter.question(given.letters, given.traits.to(self.dtype)).expand(len(spots.text), -1, -1)
        cosine = torch.bmm(words, spots.words.flatten(2).to(words)).float()
        return (cosine * spots.text.float().sigmoid().flatten(1)[:, None]).amax(2)

    def _given(self, question: Question, like: Tensor) -> Question:
        """The question's tensors on the device of the pages `like`, or in pinned memory that a captured graph reads."""
        count, pages = len(question.letters), len(like)
        if count not in (1, pages):
            raise ValueError(f"Scout.where: question must be one, or one for each of {pages} pages, got {count}")
        if self.fused.can_run(like) and _read_in_place(question):
            return question
        return Question(*(part.to(like.device, non_blocking=True) for part in question))


def _tuned() -> AbstractContextManager[None]:
    """Inside, cuDNN tries its algorithms once per shape and keeps the fastest, unless they are to be deterministic."""
    fixed = torch.backends.cudnn.deterministic
    tuned: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=not fixed, deterministic=fixed, allow_tf32=True
    )
    return tuned


def _read_in_place(question: Question) -> bool:
    """Whether a graph is being captured that reads the question from these pinned buffers at every replay.

    A plain call must copy them: its caller may refill them before the GPU has read them.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return False
    return question.traits.dtype == torch.float32 and all(
        part.is_pinned() and part.is_contiguous() for part in question
    )


def _to_read(texture: Texture) -> tuple[Tensor, tuple[int, int]]:
    """The coarsest level (B, 3, H, W) that is still as fine as the spotter's input, and the size of that input."""
    size = input_size(texture.size)
    levels = colour_levels(texture)
    fine = [level for level in levels if all(side >= ENOUGH * wanted for side, wanted in zip(level.shape[2:], size))]
    return (fine or levels[:1])[-1], size


def grey_input(texture: Texture) -> Tensor:
    """(B, 1, h, w): a texture as the spotter sees it."""
    return _grey(*_to_read(texture))


def _grey(colours: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 1, *size): the spotter's input."""
    return functional.interpolate(luma(colours).float(), size, mode="bilinear", antialias=True)


def load_scout(path: Path | str | None = None, *, device: torch.device | str = "cpu") -> Scout:
    """The scout that comes with the package, or one from another file that `texturevlm ship-scout` wrote.

    fp16 on a GPU, bfloat16 on a CPU that supports it, else float32.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _loaded(str(path or files("texturevlm.scout").joinpath(_WEIGHTS)), device)


def shipped_parts(path: Path | str | None = None) -> tuple[Spotter, Ranker]:
    """The spotter and the ranker of such a file, to be trained further: float32, on the CPU."""
    file = str(path or files("texturevlm.scout").joinpath(_WEIGHTS))
    return load_module(Spotter(), file, prefix="spotter."), load_ranker(file, prefix="ranker.")


@lru_cache(maxsize=None)  # never dropped: graphs read the weights at every replay
def _loaded(path: str, device: torch.device) -> Scout:
    on_cpu = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return Scout(*shipped_parts(path), torch.float16 if device.type == "cuda" else on_cpu).to(device)


_Module = TypeVar("_Module", bound=nn.Module)


def read_weights(path: Path | str, prefix: str = "", *, function: str = "load_module") -> dict[str, Tensor]:
    """Tensors by name, of a file that `texturevlm ship-scout` or a training run (weights.safetensors) wrote.

    prefix:   those whose names begin with it, without it
    function: for error messages
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{function}: {path} must be a file of weights, and {what}")
    try:
        if path.suffix != ".npz":
            found: dict[str, Tensor] = optional(function, "safetensors.torch").load_file(path)
            return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        with np.load(path) as file:
            own = [name for name in file.files if name.startswith(prefix)]
            return {name.removeprefix(prefix): torch.from_numpy(file[name].astype(np.float32)) for name in own}
    except OSError:
        raise
    except Exception as error:  # numpy and safetensors raise many kinds of error
        raise ValueError(f"{function}: {path} must be a file of weights, and cannot be read: {error}") from None


def load_module(module: _Module, path: Path | str, *, prefix: str = "") -> _Module:
    """Fill a module with the weights of a file; prefix: of the names of its weights there."""
    return _filled(module, read_weights(path, prefix), path)


def _filled(module: _Module, tensors: dict[str, Tensor], path: Path | str) -> _Module:
    must = f"load_module: {path} must hold the weights of {type(module).__name__}"
    wanted = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    if missing := sorted(set(wanted) - set(tensors)):
        raise ValueError(f"{must}, lacks {missing[0]}")
    if others := sorted(set(tensors) - set(module.state_dict())):  # such as those of a deeper network
        raise ValueError(f"{must} and no others, has {others[0]}")
    for name, value in wanted.items():
        if tensors[name].shape != value.shape:
            raise ValueError(f"{must}: {name} must be {tuple(value.shape)}, got {tuple(tensors[name].shape)}")
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return module


def load_ranker(path: Path | str, *, prefix: str = "") -> Ranker:
    """Load a ranker of the widths and depth that the file has."""
    tensors = read_weights(path, prefix)
    names = [f"{name}.weight" for name in ("last", "lift.0", "lift.1")]
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"load_module: {path} must hold the weights of Ranker, lacks {prefix}{missing[0]}")
    fine, middle, coarse = (tensors[name].shape[1] for name in names)
    blocks = {found[1] for name in tensors if (found := re.match(r"inner\.0\.(\d+)\.", name))}
    return _filled(Ranker((fine, middle, coarse), blocks=len(blocks)), tensors, path)
