"""The scout on a GPU: the same networks, with our kernels for all that is no 3×3 convolution.

A page takes some sixty small steps beside its convolutions, and a GPU takes longer to begin one than to do it. Here
they are a dozen (texturevlm/ops/cuda/scout.py). The weights are laid out for them once, when a scout is made; Spotter
and Ranker stay the definition of what comes out.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.ops import backend
from texturevlm.scout import scout_kernel as kernels
from texturevlm.scout.layer import FoldedLayer, widened
from texturevlm.scout.question import Question
from texturevlm.scout.ranker import PARTS, Ranker
from texturevlm.scout.scout_kernel import Laid, QuestionWeights
from texturevlm.scout.spotter import Spots, Spotter, as_spots

ALIGNED = 8  # maps: libraries are fastest with multiples of so many


class Fused(nn.Module):
    """Spotter and ranker, folded, of one dtype; their layers are shared, not copied."""

    head: Tensor
    head_added: Tensor
    steps: Tensor
    seen: Tensor
    direct: Tensor
    last: Tensor
    last_added: Tensor

    def __init__(self, spotter: Spotter, ranker: Ranker) -> None:
        super().__init__()
        self.spotter, self.ranker = spotter, ranker
        self.widths = [len(_parts(layer)[1]) // 2 for layer in ranker.steer]
        for name, tensor in _question_weights(spotter, ranker)._asdict().items():
            self._keep(f"question_{name}", tensor)
        head, added = _parts(spotter.head)
        self._keep("head", functional.pad(head, (0, -len(added) % ALIGNED)))
        self._keep("head_added", functional.pad(added, (0, -len(added) % ALIGNED)))
        self._keep("steps", ranker.steps.detach().float())
        seen, added = _parts(ranker.seen)
        self._keep("seen", torch.cat([seen, added[None]]).float())
        direct, added = _parts(ranker.direct)
        self._keep("direct", torch.cat([direct[:, 0], added]).float())
        for level, layer in enumerate(ranker.lift):
            lift, added = _parts(layer)
            self._keep(f"lift_{level}", lift)
            self._keep(f"lift_{level}_added", added)
        last, added = _parts(ranker.last)
        self._keep("last", last.mT.float())
        self._keep("last_added", torch.cat([added, ranker.absent.detach()[None]]).float())
        self.enter = _entrance(ranker)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.clone(memory_format=torch.contiguous_format), persistent=False)

    def takes(self, tensor: Tensor) -> bool:
        """Whether it can do pages that lie where this tensor does."""
        return backend.no_kernel_because(tensor) is None and not any(width % kernels.PACK for width in self.widths)

    def read(self, colours: Tensor, size: tuple[int, int]) -> Spots:
        """colours: (B, 3, H, W), read at `size`; the words of what it returns are of any length."""
        return self._spots(kernels.seen_cells(kernels.prepare_cells(colours, size, self.head.dtype)))

    def read_and_ask(self, colours: Tensor, size: tuple[int, int], question: Question) -> tuple[Spots, Laid]:
        """`read` and `question` beside one another."""
        cells = kernels.prepare_cells(colours, size, self.head.dtype)
        laid = self.question(question)
        return self._spots(kernels.seen_cells(cells, early=True)), laid

    def _spots(self, cells: Tensor) -> Spots:
        values = self.spotter.features(cells).permute(0, 2, 3, 1)
        said = torch.addmm(self.head_added, values.flatten(0, 2), self.head)  # a 1×1 convolution, its bias at no cost
        return as_spots(said.view(*values.shape[:3], -1).permute(0, 3, 1, 2))

    def question(self, question: Question) -> Laid:
        """A question that the GPU can read."""
        found = (cast(Tensor, getattr(self, f"question_{name}")) for name in QuestionWeights._fields)
        return kernels.lay_question(*question, QuestionWeights(*found))

    def where(self, spots: Spots, laid: Laid) -> Tensor:
        """(B, h, w), the chance that the answer is in each spot; laid: one for all pages, or one for each."""
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
            weight, added = (cast(Tensor, getattr(self, f"lift_{level}{part}")) for part in ("", "_added"))
            values = _channels_last(self.ranker.merge[level](kernels.lift_(kept[level], values, weight, added)))
        return kernels.chances(values, self.last, self.last_added, shown, scores)


def _question_weights(spotter: Spotter, ranker: Ranker) -> QuestionWeights:
    layers = (spotter.letters[0], spotter.letters[2], ranker.worth[0], ranker.worth[2], ranker.asked[0])
    laid = [part for layer in layers for part in _parts(layer)]
    steer = [_parts(layer) for layer in ranker.steer]
    film = torch.cat([weight for weight, _ in steer], 1)
    added = [part.float() + one for _, both in steer for part, one in zip(both.chunk(2), (1, 0))]  # factors are 1 + …
    return QuestionWeights(*(part.float() for part in (*laid, film, torch.cat(added))))


def _entrance(ranker: Ranker) -> FoldedLayer:
    """The ranker's first layer, which takes some maps more; what the ranker is to do without is not looked at."""
    first = ranker.enter[0]
    assert isinstance(first, FoldedLayer)
    layer = widened(first, kernels.INPUTS + -kernels.INPUTS % ALIGNED)
    start = 0
    for name, count in PARTS.items():
        if name in ranker.without:
            layer.weight[:, start : start + count] = 0
        start += count
    return layer


def _parts(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Of a linear layer or a 1×1 convolution: its weights, (inputs, outputs), and what it adds, (outputs,)."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.bias is not None
    return layer.weight.detach().flatten(1).mT, layer.bias.detach()


def _channels_last(values: Tensor) -> Tensor:
    """As cuDNN gives it already."""
    return values.contiguous(memory_format=torch.channels_last)
