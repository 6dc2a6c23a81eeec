"""The scout on a GPU: the same networks, with our kernels for everything but the 3×3 convolutions.

Besides its convolutions a page takes about sixty small operations, each slower to launch than to run. Here they are a
dozen (scout_kernel.py). The weights are laid out for the kernels once, when a scout is made. Spotter and
Ranker are the specification.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.ops import backend
from texturevlm.scout import scout_kernel as kernels
from texturevlm.scout.layer import FoldedConv, widen
from texturevlm.scout.question import Question
from texturevlm.scout.ranker import INPUT_MAPS, RANKER_INPUTS, Ranker
from texturevlm.scout.scout_kernel import QUESTION_LAYERS, Laid
from texturevlm.scout.spotter import SPOT, STEM, Spots, Spotter, as_spots

ALIGNED = 8  # maps: libraries are fastest with multiples of it
# Pages whose convolutions run together. A layer of the finest maps has 7 MB per page, and the cache of an H200 50 MB:
# more pages at once go through memory between any two layers.
PAGES_AT_ONCE = 8


class Fused(nn.Module):
    """Spotter and ranker, folded and of one dtype; their layers are shared, not copied."""

    head: Tensor
    head_added: Tensor
    steps: Tensor
    seen: Tensor
    direct: Tensor
    last: Tensor
    last_added: Tensor

    def __init__(self, spotter: Spotter, ranker: Ranker) -> None:
        super().__init__()
        self.spotter, self.ranker, self.pages_at_once = spotter, ranker, PAGES_AT_ONCE
        self.widths = [len(_parts(layer)[1]) // 2 for layer in ranker.steer]
        for name, tensor in zip(QUESTION_LAYERS, _question_weights(spotter, ranker), strict=True):
            self._keep(f"question_{name}", tensor)
        for name, part in zip(("head", "head_added"), _parts(spotter.head)):
            self._keep(name, functional.pad(part, (0, -part.shape[-1] % ALIGNED)))
        self._keep("steps", ranker.steps.detach().float())
        seen, added = _parts(ranker.seen)
        self._keep("seen", torch.cat([seen, added[None]]).float())
        direct, added = _parts(ranker.direct)
        self._keep("direct", torch.cat([direct[:, 0], added]).float())
        for level, layer in enumerate(ranker.lift):
            for name, part in zip((f"lift_{level}", f"lift_{level}_added"), _parts(layer)):
                self._keep(name, part)
        last, added = _parts(ranker.last)
        self._keep("last", last.mT.float())
        self._keep("last_added", torch.cat([added, ranker.absent.detach()[None]]).float())
        self.enter = _entrance(ranker)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.clone(memory_format=torch.contiguous_format), persistent=False)

    def _kept(self, name: str) -> Tensor:
        return cast(Tensor, getattr(self, name))

    def can_run(self, tensor: Tensor) -> bool:
        """Whether the kernels can run on this tensor's device."""
        return backend.no_kernel_because(tensor) is None and not any(width % kernels.PACK for width in self.widths)

    def read(self, colours: Tensor, size: tuple[int, int]) -> Spots:
        """colours: (B, 3, H, W), resized to `size`; the returned words are not normalised"""
        return self._spots(kernels.prepare_cells(colours, size, self.head.dtype)())

    def read_and_ask(self, colours: Tensor, size: tuple[int, int], question: Question) -> tuple[Spots, Laid]:
        """`read` and `question` at the same time."""
        start = kernels.prepare_cells(colours, size, self.head.dtype)
        laid = self.question(question)
        return self._spots(start(early=True)), laid

    def _spots(self, cells: Tensor) -> Spots:
        batch, _, rows, columns = cells.shape
        spots = batch, rows * STEM // SPOT, columns * STEM // SPOT
        maps = self.head.new_empty(*spots, len(self.head_added))
        for some, to in zip(cells.split(self.pages_at_once), maps.split(self.pages_at_once)):
            values = self.spotter.features(some).permute(0, 2, 3, 1)
            # a 1×1 convolution with its bias
            torch.addmm(self.head_added, values.flatten(0, 2), self.head, out=to.flatten(0, 2))
        return as_spots(maps.permute(0, 3, 1, 2))

    def question(self, question: Question) -> Laid:
        """A question as the kernels take it."""
        return kernels.lay_question(*question, {name: self._kept(f"question_{name}") for name in QUESTION_LAYERS})

    def where(self, spots: Spots, laid: Laid) -> Tensor:
        """(B, h, w), the probability that the answer is in each spot; laid: one for all pages, or one per page."""
        like = Spots(*(part.to(self.head.dtype) for part in spots))
        weights = (self.steps, self.seen, self.direct)
        values, shown, scores = kernels.spot_inputs(like, laid, weights, pitch=self.enter.weight.shape[1])
        kept: list[Tensor] = []
        start = 0
        for level, (width, inner) in enumerate(zip(self.widths, self.ranker.inner)):
            enter = self.ranker.enter[level] if level else self.enter
            values = kernels.film_(_channels_last(enter(values)), laid.films, start)
            start += 2 * width
            for block in inner.children():
                values = block(values)
            kept.append(_channels_last(values))
        values = kept.pop()
        for level in (1, 0):
            lift = self._kept(f"lift_{level}"), self._kept(f"lift_{level}_added")
            values = _channels_last(self.ranker.merge[level](kernels.lift_(kept[level], values, *lift)))
        return kernels.chances(values, self.last, self.last_added, shown, scores)


def _question_weights(spotter: Spotter, ranker: Ranker) -> list[Tensor]:
    """In the order of QUESTION_LAYERS."""
    layers = (spotter.letters[0], spotter.letters[2], ranker.worth[0], ranker.worth[2], ranker.asked[0])
    laid = [part for layer in layers for part in _parts(layer)]
    steer = [_parts(layer) for layer in ranker.steer]
    film = torch.cat([weight for weight, _ in steer], 1)
    added = [part.float() + one for _, both in steer for part, one in zip(both.chunk(2), (1, 0))]  # factors are 1 + …
    return [part.float() for part in (*laid, film, torch.cat(added))]


def _entrance(ranker: Ranker) -> FoldedConv:
    """The ranker's first layer with zero weights for padding maps and for the inputs that the ranker leaves out."""
    first = ranker.enter[0]
    assert isinstance(first, FoldedConv)
    layer = widen(first, RANKER_INPUTS + -RANKER_INPUTS % ALIGNED)
    start = 0
    for name, count in INPUT_MAPS.items():
        if name in ranker.without:
            layer.weight[:, start : start + count] = 0
        start += count
    return layer


def _parts(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """The weights (inputs, outputs) and the bias (outputs,) of a linear layer or a 1×1 convolution."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.bias is not None
    return layer.weight.detach().flatten(1).mT, layer.bias.detach()


def _channels_last(values: Tensor) -> Tensor:
    """No copy after cuDNN, whose results are channels-last already."""
    return values.contiguous(memory_format=torch.channels_last)
