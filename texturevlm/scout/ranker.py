"""The ranker: what the spotter saw and the question → where the answer is likely to be.

The question's words become maps of hits; how much a word's hits count depends on how common it is and of what sort.
Next to them stand their running maxima along rows and columns (is a hit somewhere to the left, somewhere above), what
kind of text a spot is, and where it lies. A small network of three scales, steered by what is asked for, turns all of
it into one number a spot: the logarithm of how densely the answer is expected there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.check import check_choice, check_count
from texturevlm.scout.layer import Block, Layer, within
from texturevlm.scout.question import TRAITS
from texturevlm.scout.spotter import EMBEDDING, Spots
from texturevlm.text.strings import ASKED, KINDS

SURE, VAGUE = 8, 4  # maps of hits, and of what only resembles the words
SEEN = 24  # numbers of the spotter's embedding that are looked at as they are
WIDTHS = (64, 96, 128)
REACHES = ((1, 1), (1, 2))  # of the layers of a scale's blocks, the last of them last
STEER = 64
PLACES = 4
# What the network is given, and how many maps each is; any but the hits can be left out, to see what it is worth.
PARTS = {"hits": SURE + VAGUE, "kinds": len(KINDS), "along": 2 * SURE, "seen": SEEN, "text": 3, "place": PLACES}
INPUTS = sum(PARTS.values())


class Sought(NamedTuple):
    """A question, as it is laid over a page; K words, each looked for twice, surely and vaguely.

    words:  (B, 2 K, EMBEDDING), as long as a hit is sharp; doubts: (1, 2 K, 1), what a hit must exceed
    worth:  (B, SURE + VAGUE, 2 K), how much each counts in each map
    films:  for each scale of the network, what its maps are multiplied by and shifted by
    """

    words: Tensor
    doubts: Tensor
    worth: Tensor
    films: tuple[tuple[Tensor, Tensor], ...]


class Ranker(nn.Module):
    """Spots, words and what is asked → scores of spots, and of "not on this page"."""

    def __init__(
        self,
        widths: tuple[int, int, int] = WIDTHS,
        *,
        blocks: int = 1,
        drop: float = 0.0,
        without: Sequence[str] = (),
    ) -> None:
        """widths: maps of each scale; blocks: how many each has, the ones of the furthest reach; drop: of the maps
        while it learns; without: what it is not to look at"""
        super().__init__()
        reaches = REACHES[-check_count("Ranker", "blocks", blocks, 1, len(REACHES)) :]
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
        self.inner = nn.ModuleList(nn.ModuleList(Block(width, reach) for reach in reaches) for width in widths)
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
        return self.rank(spots, self.question(words, traits, asked), extent)

    def question(self, words: Tensor, traits: Tensor, asked: Tensor) -> Sought:
        """What does not depend on the page, so that a GPU can do it while the page is still being read."""
        here = traits[..., :1]
        worth = functional.softplus(self.worth(traits)) * here
        nothing = torch.zeros_like(worth)
        (sharp, doubt), (blunt, trust) = self.steps.to(words).unbind()
        sure, vague = worth[..., :SURE], worth[..., SURE:]
        weights = torch.cat(
            [torch.cat([sure, nothing[..., SURE:]], 2), torch.cat([nothing[..., :SURE], vague], 2)], 1
        ).mT
        mean = (words * here).sum(1) / here.sum(1).clamp(min=1)
        steer = self.asked(torch.cat([asked, mean], 1))
        films = []
        for layer in self.steer:
            scale, shift = layer(steer)[..., None, None].chunk(2, 1)
            films.append((1 + scale, shift))
        count = words.shape[1]
        doubts = torch.cat([doubt.expand(count), trust.expand(count)])[None, :, None]
        return Sought(torch.cat([sharp * words, blunt * words], 1), doubts, weights, tuple(films))

    def rank(self, spots: Spots, sought: Sought, extent: Tensor | None = None) -> Tensor:
        """The rest of `forward`."""
        rows, columns = spots.text.shape[1:]
        text = spots.text[:, None].sigmoid()
        page = None
        if extent is None:
            place = _places(rows, columns, text.device, text.dtype).expand(len(text), -1, -1, -1)
        else:
            down, across = _along(rows, columns, text.device)
            sides = extent.view(-1, 2, 1, 1)
            down, across = down / sides[:, :1], across / sides[:, 1:]
            page = (down < 1) & (across < 1)
            text = text * page
            place = _with_squares(down, across, page.shape)
        kinds = spots.kinds.sigmoid() * text
        # (B, 2 K, h · w): how surely, and how vaguely, each word stands at each spot; then by what words are worth
        found = torch.baddbmm(-sought.doubts, sought.words, spots.words.flatten(2)).sigmoid()
        hits = torch.bmm(sought.worth.to(found), found).unflatten(2, (rows, columns)) * text
        small = functional.max_pool2d(torch.cat([hits, kinds, text], 1), 2)
        sure = small[:, :SURE]
        seen = torch.cat([self.seen(spots.words), torch.ones_like(text), spots.height[:, None] - 2.5], 1) * text
        pooled = functional.avg_pool2d(seen, 2)
        parts = {
            "hits": small[:, : SURE + VAGUE],
            "kinds": small[:, SURE + VAGUE : -1],
            "along": torch.cat([sure.cummax(3).values, sure.cummax(2).values], 1),
            "seen": pooled[:, :SEEN],
            "text": torch.cat([small[:, -1:], pooled[:, SEEN:]], 1),
            "place": place.to(small.dtype),
        }
        inputs = torch.cat([part * 0 if name in self.without else part for name, part in parts.items()], 1)
        pages = [None if page is None else page[..., ::step, ::step] for step in (2, 4, 8)]
        scores = functional.pixel_shuffle(self._scores(within(inputs, pages[0]), sought.films, pages), 2)
        scores = scores + self.direct(torch.cat([text, hits[:, :SURE].amax(1, keepdim=True), kinds], 1))
        if page is not None:
            scores = scores.masked_fill(~page, float("-inf"))
        return torch.cat([scores.flatten(1).float(), self.absent.float().expand(len(scores), 1)], 1)

    def _scores(self, inputs: Tensor, films: Sequence[tuple[Tensor, Tensor]], pages: Sequence[Tensor | None]) -> Tensor:
        """Down to a quarter and up again; pages: what is page, at each of the three scales."""
        values, kept = inputs.contiguous(memory_format=torch.channels_last), []
        for enter, (scale, shift), inner, page in zip(self.enter, films, self.inner, pages):
            steered = functional.relu(torch.addcmul(shift, enter(values), scale))
            values = self.drop(within(steered, page))
            for block in inner.children():
                values = block(values, page)
            kept.append(values)
        for level in (1, 0):
            raised = functional.interpolate(self.lift[level](values), kept[level].shape[2:], mode="nearest")
            values = self.merge[level](within(kept[level] + raised, pages[level]), pages[level])
        scores: Tensor = self.last(values)
        return scores


def _along(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The middles of spots, counted in spots: (1, 1, rows, 1) and (1, 1, 1, columns)."""
    down = torch.arange(rows, device=device).view(1, 1, -1, 1) + 0.5
    return down, torch.arange(columns, device=device).view(1, 1, 1, -1) + 0.5


def _with_squares(down: Tensor, across: Tensor, shape: Sequence[int]) -> Tensor:
    """(B, PLACES, h / 2, w / 2): where on the page, and how far from its middle."""
    place = torch.cat([down.expand(*shape), across.expand(*shape)], 1)[:, :, ::2, ::2]
    return torch.cat([place, (place - 0.5).square()], 1)


_read_by_graphs: dict[tuple[int, int, torch.device, torch.dtype], Tensor] = {}


def _places(rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Of a page that fills its extent; kept, since it depends on nothing else."""
    key = (rows, columns, device, dtype)
    made = _made_places(*key)
    if made.is_cuda and torch.cuda.is_current_stream_capturing():
        _read_by_graphs[key] = made  # a graph reads this memory whenever it is replayed, so it must never be freed
    return made


@lru_cache(maxsize=64)
def _made_places(rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        down, across = _along(rows, columns, device)
        return _with_squares(down / rows, across / columns, (1, 1, rows, columns)).to(dtype)
