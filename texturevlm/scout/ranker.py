"""The ranker: spots and a question → where the answer is likely to be.

Each word of the question gives maps of hits, weighted by the word's traits (how common it is, its kind). Further inputs
are running maxima of the hits along rows and columns (is a hit to the left, is one above), the kind of text of a spot,
and its place. A small U-Net of three scales, modulated by the kind of answer asked for (FiLM), turns them into one
number per spot: the logarithm of the density of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_choice, check_count
from texturevlm.scout.question import TRAITS
from texturevlm.scout.spotter import EMBEDDING, ConvLayer, ResidualBlock, Spots, keep_page
from texturevlm.text import ASKED, KINDS

SURE, VAGUE = 8, 4  # maps of sharp hits, and of words that only resemble the question's
SEEN_MAPS = 24  # maps that are a projection of the spotter's embedding
WIDTHS = (64, 96, 128)
BLOCK_DILATIONS = ((1, 1), (1, 2))  # of the layers of a scale's blocks; fewer blocks use the last ones
STEER = 64
# The inputs and how many maps each has; any but the hits can be left out for an ablation.
INPUT_MAPS = {
    "hits": SURE + VAGUE, "kinds": len(KINDS), "along": 2 * SURE, "seen": SEEN_MAPS, "text": 3, "place": 4,
}  # fmt: skip
RANKER_INPUTS = sum(INPUT_MAPS.values())


class QuestionInputs(NamedTuple):
    """What the ranker computes from a question alone; K words, each searched twice: sharply and vaguely.

    words:  (B, 2 K, EMBEDDING), scaled by the sharpness of a hit
    doubts: (1, 2 K, 1), the threshold of a hit
    worth:  (B, SURE + VAGUE, 2 K), the weight of each word in each map
    films:  (factor, shift) of the maps, one per scale of the network
    """

    words: Tensor
    doubts: Tensor
    worth: Tensor
    films: tuple[tuple[Tensor, Tensor], ...]


class Ranker(nn.Module):
    """Spots, words and the kinds asked for → scores of the spots, and of "not on this page"."""

    def __init__(
        self, widths: tuple[int, int, int] = WIDTHS, *, blocks: int = 1, drop: float = 0.0, without: Sequence[str] = ()
    ) -> None:
        """widths: maps per scale; blocks: residual blocks per scale, those of the largest dilation; drop: dropout rate
        of the maps in training; without: names of INPUT_MAPS to leave out."""
        super().__init__()
        dilations = BLOCK_DILATIONS[-check_count("Ranker", "blocks", blocks, 1, len(BLOCK_DILATIONS)) :]
        for name in without:
            check_choice("Ranker", "without", name, tuple(INPUT_MAPS))
        self.without = tuple(without)
        fine, middle, coarse = widths
        self.worth = nn.Sequential(nn.Linear(TRAITS, 32), nn.ReLU(), nn.Linear(32, SURE + VAGUE))
        # sharpness and doubt, of sharp and of vague hits
        self.steps = nn.Parameter(torch.tensor([[16.0, 8.0], [8.0, 3.0]]))
        self.seen = nn.Conv2d(EMBEDDING, SEEN_MAPS, 1)
        self.asked = nn.Sequential(nn.Linear(len(ASKED) + EMBEDDING, STEER), nn.ReLU(), nn.Dropout(drop))
        self.steer = nn.ModuleList(nn.Linear(STEER, 2 * width) for width in widths)
        self.enter = nn.ModuleList(
            [ConvLayer(RANKER_INPUTS, fine), ConvLayer(fine, middle, stride=2), ConvLayer(middle, coarse, stride=2)]
        )
        self.inner = nn.ModuleList(
            nn.ModuleList(ResidualBlock(width, dilation) for dilation in dilations) for width in widths
        )
        self.lift = nn.ModuleList([nn.Conv2d(middle, fine, 1), nn.Conv2d(coarse, middle, 1)])
        self.merge = nn.ModuleList([ResidualBlock(fine, (1, 1)), ResidualBlock(middle, (1, 1))])
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
        extent: (B, 2), rows and columns of spots that are page (default: all); padding scores −∞
        returns (B, h · w + 1), the last "not on this page"
        """
        return self.rank(spots, self.question(words, traits, asked), extent)

    def question(self, words: Tensor, traits: Tensor, asked: Tensor) -> QuestionInputs:
        """What does not depend on the page, so that a GPU can compute it while the page is being read."""
        here = traits[..., :1]
        worth = functional.softplus(self.worth(traits)) * here
        sure, vague = functional.pad(worth[..., :SURE], (0, VAGUE)), functional.pad(worth[..., SURE:], (SURE, 0))
        (sharp, doubt), (blunt, trust) = self.steps.to(words).unbind()
        mean = (words * here).sum(1) / here.sum(1).clamp(min=1)
        steer = self.asked(torch.cat([asked, mean], 1))
        films = []
        for layer in self.steer:
            scale, shift = layer(steer)[..., None, None].chunk(2, 1)
            films.append((1 + scale, shift))
        count = words.shape[1]
        doubts = torch.cat([doubt.expand(count), trust.expand(count)])[None, :, None]
        weights = torch.cat([sure, vague], 1).mT
        return QuestionInputs(torch.cat([sharp * words, blunt * words], 1), doubts, weights, tuple(films))

    def rank(self, spots: Spots, question: QuestionInputs, extent: Tensor | None = None) -> Tensor:
        """The rest of `forward`."""
        batch, rows, columns = spots.text.shape
        text = spots.text[:, None].sigmoid()
        page = None
        down = torch.arange(rows, device=text.device).view(1, 1, -1, 1) + 0.5
        across = torch.arange(columns, device=text.device).view(1, 1, 1, -1) + 0.5
        if extent is None:
            down, across = down / rows, across / columns
        else:
            sides = extent.view(-1, 2, 1, 1)
            down, across = down / sides[:, :1], across / sides[:, 1:]
            page = (down < 1) & (across < 1)
            text = text * page
        place = torch.cat([part.expand(batch, 1, rows, columns)[..., ::2, ::2] for part in (down, across)], 1)
        kinds = spots.kinds.sigmoid() * text
        # (B, 2 K, h · w): the probability of each word at each spot, sharp and vague; then weighted
        words, worth = (part.expand(batch, -1, -1) for part in (question.words, question.worth))
        found = torch.baddbmm(-question.doubts, words, spots.words.flatten(2)).sigmoid()
        hits = torch.bmm(worth.to(found), found).view(batch, -1, rows, columns) * text
        small = functional.max_pool2d(torch.cat([hits, kinds, text], 1), 2)
        sure = small[:, :SURE]
        seen = torch.cat([self.seen(spots.words), torch.ones_like(text), spots.height[:, None] - 2.5], 1) * text
        pooled = functional.avg_pool2d(seen, 2)
        parts = {
            "hits": small[:, : SURE + VAGUE],
            "kinds": small[:, SURE + VAGUE : -1],
            "along": torch.cat([sure.cummax(3).values, sure.cummax(2).values], 1),
            "seen": pooled[:, :SEEN_MAPS],
            "text": torch.cat([small[:, -1:], pooled[:, SEEN_MAPS:]], 1),
            "place": torch.cat([place, (place - 0.5).square()], 1).to(small.dtype),
        }
        inputs = torch.cat([part * 0 if name in self.without else part for name, part in parts.items()], 1)
        pages = [None if page is None else page[..., ::step, ::step] for step in (2, 4, 8)]
        scores = functional.pixel_shuffle(self._scores(keep_page(inputs, pages[0]), question.films, pages), 2)
        scores = scores + self.direct(torch.cat([text, hits[:, :SURE].amax(1, keepdim=True), kinds], 1))
        if page is not None:
            scores = scores.masked_fill(~page, float("-inf"))
        return torch.cat([scores.flatten(1).float(), self.absent.float().expand(len(scores), 1)], 1)

    def _scores(self, inputs: Tensor, films: Sequence[tuple[Tensor, Tensor]], pages: Sequence[Tensor | None]) -> Tensor:
        """The U-Net: down to a quarter and up again; pages: the mask of the page at each of the three scales."""
        values, kept = inputs.contiguous(memory_format=torch.channels_last), []
        for enter, (scale, shift), inner, page in zip(self.enter, films, self.inner, pages):
            steered = functional.relu(torch.addcmul(shift, enter(values), scale))
            values = self.drop(keep_page(steered, page))
            for block in inner.children():
                values = block(values, page)
            kept.append(values)
        for level in (1, 0):
            raised = functional.interpolate(self.lift[level](values), kept[level].shape[2:], mode="nearest")
            values = self.merge[level](keep_page(kept[level] + raised, pages[level]), pages[level])
        scores: Tensor = self.last(values)
        return scores
