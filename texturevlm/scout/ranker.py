"""The ranker: what the spotter saw and the question → where the answer is likely to be.

The question's words become maps of hits; how much a word's hits count depends on how common it is and of what sort.
Next to them stand their running maxima along rows and columns (is a hit somewhere to the left, somewhere above), what
kind of text a spot is, and where it lies. A small network of three scales, steered by what is asked for, turns all of
it into one number a spot: the logarithm of how densely the answer is expected there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_choice
from texturevlm.relevance.strings import ASKED, KINDS
from texturevlm.scout.layer import Block, Layer
from texturevlm.scout.question import TRAITS
from texturevlm.scout.spotter import EMBEDDING, Spots

SURE, VAGUE = 8, 4  # maps of hits, and of what only resembles the words
SEEN = 24  # numbers of the spotter's embedding that are looked at as they are
WIDTHS = (48, 64, 96)
STEER = 64
PLACES = 4
# What the network is given, and how many maps each is; any but the hits can be left out, to see what it is worth.
PARTS = {"hits": SURE + VAGUE, "kinds": len(KINDS), "along": 2 * SURE, "seen": SEEN, "text": 3, "place": PLACES}
INPUTS = sum(PARTS.values())


class Ranker(nn.Module):
    """Spots, words and what is asked → scores of spots, and of "not on this page"."""

    def __init__(
        self, widths: tuple[int, int, int] = WIDTHS, *, drop: float = 0.0, without: Sequence[str] = ()
    ) -> None:
        super().__init__()
        for name in without:
            check_choice("Ranker", "without", name, tuple(PARTS))
        self.without = tuple(without)
        fine, middle, coarse = widths
        self.worth = nn.Sequential(nn.Linear(TRAITS, 32), nn.ReLU(), nn.Linear(32, SURE + VAGUE))
        self.steps = nn.Parameter(torch.tensor([[16.0, 8.0], [8.0, 3.0]]))  # sharpness and doubt of sure and vague hits
        self.seen = nn.Conv2d(EMBEDDING, SEEN, 1)
        self.asked = nn.Sequential(nn.Linear(len(ASKED) + EMBEDDING, STEER), nn.ReLU(), nn.Dropout(drop))
        self.steer = nn.ModuleList(nn.Linear(STEER, 2 * width) for width in widths)
        self.enter = nn.ModuleList(
            [Layer(INPUTS, fine), Layer(fine, middle, stride=2), Layer(middle, coarse, stride=2)]
        )
        self.inner = nn.ModuleList(nn.Sequential(Block(width, (1, 1)), Block(width, (1, 2))) for width in widths)
        self.lift = nn.ModuleList([nn.Conv2d(middle, fine, 1), nn.Conv2d(coarse, middle, 1)])
        self.merge = nn.ModuleList([Block(fine, (1, 1)), Block(middle, (1, 1))])
        self.last = nn.Conv2d(fine, 4, 1)
        self.direct = nn.Conv2d(2 + len(KINDS), 1, 1)
        self.absent = nn.Parameter(torch.tensor(2.0))
        self.drop = nn.Dropout2d(drop)

    def forward(
        self, spots: Spots, words: Tensor, traits: Tensor, asked: Tensor, extent: Tensor | None = None
    ) -> Tensor:
        """
        spots:  of pages, padded to one even extent
        words:  (B, K, EMBEDDING), traits: (B, K, TRAITS), asked: (B, len(ASKED))
        extent: (B, 2): rows and columns of spots that are the page (default: all); what lies beyond scores −∞
        returns (B, h · w + 1), the last "not on this page"
        """
        rows, columns = spots.text.shape[1:]
        high, wide = (rows, columns) if extent is None else (side.view(-1, 1, 1, 1) for side in extent.unbind(1))
        device = spots.text.device
        down = (torch.arange(rows, device=device).view(1, 1, -1, 1) + 0.5) / high
        across = (torch.arange(columns, device=device).view(1, 1, 1, -1) + 0.5) / wide
        page = (down < 1) & (across < 1)
        text = (spots.text[:, None].sigmoid() * page).to(spots.words.dtype)
        kinds = spots.kinds.sigmoid() * text
        cosine = torch.einsum("bke,behw->bkhw", words, spots.words)
        sure, vague = self._hits(cosine, traits, text)
        small = functional.max_pool2d(torch.cat([sure, vague, kinds, text], 1), 2)
        shrunk, shrunk_kinds, dense = small.split([SURE + VAGUE, len(KINDS), 1], 1)
        place = torch.cat([down.expand_as(page), across.expand_as(page)], 1)[:, :, ::2, ::2].to(small.dtype)
        place = place.expand(len(small), -1, -1, -1)
        parts = {
            "hits": shrunk,
            "kinds": shrunk_kinds,
            "along": torch.cat([shrunk[:, :SURE].cummax(3).values, shrunk[:, :SURE].cummax(2).values], 1),
            "seen": functional.avg_pool2d(self.seen(spots.words) * text, 2),
            "text": torch.cat(
                [dense, functional.avg_pool2d(torch.cat([text, (spots.height[:, None] - 2.5) * text], 1), 2)], 1
            ),
            "place": torch.cat([place, (place - 0.5).square()], 1),
        }
        inputs = torch.cat([part * 0 if name in self.without else part for name, part in parts.items()], 1)
        whole = functional.max_pool2d(page.to(inputs.dtype), 2)
        scores = self._scores(inputs * whole, self._question(words, traits, asked))
        own = self.direct(torch.cat([text, sure.amax(1, keepdim=True), kinds], 1))
        scores = functional.pixel_shuffle(scores, 2) + own
        scores = scores.masked_fill(~page, float("-inf")).flatten(1).float()
        return torch.cat([scores, self.absent.expand(len(scores), 1)], 1)

    def _hits(self, cosine: Tensor, traits: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Maps of what is sure and what is vague, each word counting by its traits."""
        worth = functional.softplus(self.worth(traits)) * traits[..., :1]
        (sharp, doubt), (blunt, trust) = self.steps.unbind()
        sure = (sharp * cosine - doubt).sigmoid() * text
        vague = (blunt * cosine - trust).sigmoid() * text
        return (
            torch.einsum("bkc,bkhw->bchw", worth[..., :SURE].to(sure), sure),
            torch.einsum("bkc,bkhw->bchw", worth[..., SURE:].to(sure), vague),
        )

    def _question(self, words: Tensor, traits: Tensor, asked: Tensor) -> Tensor:
        here = traits[..., :1].to(words)
        mean = (words * here).sum(1) / here.sum(1).clamp(min=1)
        steer: Tensor = self.asked(torch.cat([asked.to(words), mean], 1))
        return steer

    def _scores(self, inputs: Tensor, question: Tensor) -> Tensor:
        """Down to a quarter and up again."""
        values, kept = inputs.contiguous(memory_format=torch.channels_last), []
        for enter, steer, inner in zip(self.enter, self.steer, self.inner):
            scale, shift = steer(question)[..., None, None].chunk(2, 1)
            values = inner(self.drop(functional.relu(enter(values) * (1 + scale) + shift)))
            kept.append(values)
        for level in (1, 0):
            raised = functional.interpolate(self.lift[level](values), kept[level].shape[2:], mode="nearest")
            values = self.merge[level](kept[level] + raised)
        scores: Tensor = self.last(values)
        return scores
