"""Teach the gist which words fit a photograph, and where: captions of many, boxes of few, mosaics of both.

A word's target is the share of a photograph's captions that name it, so that what is learned is the chance that
somebody who describes it does. Where boxes are known, the word's share of each spot is compared with theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.train.captions import Photograph, load_photographs
from texturevlm.train.gist import WIDTHS, Gist
from texturevlm.train.mosaic import LAST, QUARTERS, Draw, drawn, moved, pictures, quarters
from texturevlm.train.schedule import generator_at
from texturevlm.train.vocabulary import Vocabulary, gathered

PLACES = 16  # boxes of a name are looked at
LEAST_IMAGES = 10  # that a word must be in to be judged
TOP = 0.2  # of the spots
HIGHEST = 30.0  # of a score, so that its exponential stays finite
SMALLEST_SHARE = 1e-4
STEP = 256  # photographs at a time are judged
# Captions say what somebody calls a thing; the names that boxes have must be learned from them too.
IMPLIED = {
    "person": """man woman boy girl child people kid guy lady adult player toddler baby men women skier snowboarder
    surfer climber skateboarder biker cyclist hiker swimmer runner""",
    "dog": "puppy",
    "bicycle": "bike",
    "motorcycle": "motorbike",
    "sports ball": "ball football basketball baseball volleyball",
    "couch": "sofa",
    "tv": "television",
    "cell phone": "phone cellphone",
    "handbag": "purse",
    "skis": "ski skier",
    "snowboard": "snowboarder",
    "skateboard": "skateboarder",
    "surfboard": "surfer",
    "tennis racket": "racket",
    "baseball bat": "bat",
    "potted plant": "plant",
    "dining table": "table",
    "car": "suv",
}


class Batch(NamedTuple):
    """A draw, and for its first pictures which pairs of photograph and name stand in the last quarter."""

    draw: Draw
    pairs: Tensor


class Matching:
    """The task."""

    @dataclass(frozen=True)
    class Settings:
        """photographs: a folder from `train.captions`; batch: pictures a step; boxed: how many of them hold a
        photograph with boxes; mosaics: the share of pictures that are of four photographs; drop: of the network's
        channels while it learns; evenly: how much more a rare word counts than a common one, 0 not, 1 as much more as
        it is rarer."""

        photographs: Path
        batch: int = 256
        boxed: int = 24
        mosaics: float = 0.6
        drop: float = 0.2
        evenly: float = 0.5
        widths: tuple[int, ...] = WIDTHS
        seed: int = 3
        limit: int | None = None

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_count("Matching", "batch", settings.batch, 1)
        check_count("Matching", "boxed", settings.boxed, 0, settings.batch)
        self.settings, self.device = settings, device
        read = load_photographs(settings.photographs)
        listed = read.listed
        learned = [number for number, one in enumerate(listed) if not one.held_out]
        self.captioned = torch.tensor([number for number in learned if listed[number].captions][: settings.limit])
        self.judged = [number for number, one in enumerate(listed) if one.held_out and one.captions]
        if not len(self.captioned) or not self.judged:
            raise ValueError(
                f"Matching: {settings.photographs} must hold captioned photographs to learn from and to be judged on, "
                f"got {len(self.captioned)} and {len(self.judged)}"
            )
        vocabulary = gathered(
            [listed[number].captions for number in self.captioned.tolist()],
            [name for number in learned for name, _ in listed[number].objects],
        )
        self.pairs = Pairs.of(listed, learned, vocabulary, device)
        self.kept = Pairs.of(listed, [n for n, one in enumerate(listed) if one.held_out], vocabulary, device)
        if not len(self.captioned) or (settings.boxed and not len(self.pairs.photograph)):
            raise ValueError("Matching: photographs must hold some with captions, and with boxes if boxed, got none")
        self.pixels = read.pixels.to(device)
        self.named = named(listed, vocabulary).to(device)
        self.boxed = torch.tensor([bool(one.objects) for one in listed], device=device)
        of_boxes = {vocabulary.numbers[name] for one in listed for name, _ in one.objects if name in vocabulary.numbers}
        self.boxable = torch.tensor([number in of_boxes for number in range(len(vocabulary))], device=device)
        prior = self._prior(learned)
        rarity = prior.mean().div(prior) ** settings.evenly
        self.weight = rarity / rarity.mean()
        # what guessing by commonness alone costs: the losses are told as shares of it
        self.guess = (functional.binary_cross_entropy(prior, prior, reduction="none") * self.weight).sum()
        fine, middle, wide = settings.widths
        with torch.random.fork_rng():  # the same start whatever was drawn before
            torch.manual_seed(settings.seed)
            self.module = Gist(vocabulary, (fine, middle, wide), drop=settings.drop)
        self.module.prior.copy_(prior.logit())
        self.module.bias.data.copy_(prior.logit())

    def _prior(self, learned: Sequence[int]) -> Tensor:
        """(V,): the mean target of each word over the photographs where it is known."""
        chosen = torch.tensor(learned, device=self.device)
        known = self._known(chosen).float()
        share = (self.named[chosen].float() * known).sum(0) / known.sum(0).clamp(min=1)
        return share.clamp(SMALLEST_SHARE, 0.5)

    def _known(self, photographs: Tensor) -> Tensor:
        """(…, V): whether a word's absence means anything; boxes are of their own names alone."""
        return ~self.boxed[photographs][..., None] | self.boxable

    def batch(self, step: int) -> Batch:
        generator = generator_at(self.settings.seed, step, "matching")
        count, boxed = self.settings.batch, self.settings.boxed
        picked = torch.randint(len(self.captioned), (count, QUARTERS), generator=generator)
        photographs = self.captioned[picked]
        pairs = torch.randint(max(1, len(self.pairs.photograph)), (boxed,), generator=generator)
        photographs[:boxed, LAST] = self.pairs.photograph[pairs]
        draw = drawn(photographs, self.settings.mosaics, generator)
        return Batch(draw.to(self.device), pairs.to(self.device, non_blocking=True))

    def losses(self, batch: Batch, step: int) -> dict[str, Tensor]:
        draw, pairs = batch
        spots = self.module(pictures(self.pixels, draw))
        side = spots.shape[-1]
        scores = (self.module.vectors @ spots.flatten(2)).float().clamp(max=HIGHEST)
        inside = quarters(draw.split, side)
        words = self._words(scores, inside, draw.photographs)
        return {"words": words, "place": self._place(scores, inside, draw, pairs)}

    def _words(self, scores: Tensor, inside: Tensor, photographs: Tensor) -> Tensor:
        """Each quarter by itself: the chance of every word against the share of captions that name it."""
        area = inside.sum(2)
        mean = (scores.exp() @ inside.mT) / area[:, None].clamp(min=1)  # (B, V, 4)
        logits = mean.mT.float().clamp(min=1e-12).log() + self.module.bias
        target = self.named[photographs].float()
        cost = functional.binary_cross_entropy_with_logits(logits, target, reduction="none") * self.weight
        there = (area > 0)[..., None] & self._known(photographs)
        return (cost * there).sum() / (area > 0).sum() / self.guess

    def _place(self, scores: Tensor, inside: Tensor, draw: Draw, pairs: Tensor) -> Tensor:
        """Where boxes are known: how far a name's shares of its quarter's spots are from theirs; 0 if alike."""
        count = len(pairs)
        if not count:
            return scores.new_zeros(())
        first = Draw(*(part[:count] for part in draw))
        boxes, here = moved(self.pairs.boxes[pairs], first), self.pairs.here[pairs]
        quarter = inside[:count, LAST]
        wanted = box_shares(boxes, here, round(quarter.shape[1] ** 0.5)) * quarter
        total = wanted.sum(1)
        found = scores[torch.arange(count, device=scores.device), self.pairs.name[pairs]]
        said = found.masked_fill(quarter == 0, -torch.inf).log_softmax(1).masked_fill(quarter == 0, 0.0)
        wanted = wanted / total.clamp(min=1e-6)[:, None]
        cost = (torch.xlogy(wanted, wanted) - wanted * said).sum(1)
        return (cost * (total > 0)).sum() / (total > 0).sum().clamp(min=1)

    def evaluate(self) -> dict[str, float]:
        """Of photographs that nothing was learned from: mean average precision of words, and the share of boxes that
        lies in the top fifth of the spots; each beside chance."""
        seen = torch.cat([self._fits(chunk) for chunk in torch.tensor(self.judged).split(STEP)])
        truth = self.named[self.judged] > 0
        enough = truth.sum(0) >= LEAST_IMAGES
        found = average_precision(seen[:, enough], truth[:, enough]).mean()
        share, chance = self._boxes_found()
        common = truth[:, enough].float().mean()
        return {"precision": float(found), "by_chance": float(common), "boxes": share, "boxes_by_chance": chance}

    def _fits(self, photographs: Tensor) -> Tensor:
        """(N, V): the logit of each word."""
        spots = self.module(self.pixels[photographs].float() / 255).flatten(2)
        return (self.module.vectors @ spots).float().logsumexp(2) + self.module.bias

    def _boxes_found(self) -> tuple[float, float]:
        if not len(self.kept.photograph):
            return 0.0, 0.0
        spots = self.module(self.pixels[self.kept.photograph].float() / 255)
        scores = (self.module.vectors[self.kept.name][:, None] @ spots.flatten(2))[:, 0]
        areas = box_shares(self.kept.boxes, self.kept.here, spots.shape[-1])
        count = round(TOP * scores.shape[1])
        inside = areas.gather(1, scores.topk(count, 1).indices).sum(1) / areas.sum(1).clamp(min=1e-6)
        return float(inside.mean()), count / scores.shape[1]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Photographs and the names of objects in them: photograph (N,), on the host; name (N,), boxes (N, PLACES, 4) as
    shares of the photograph, and here (N, PLACES), which of them there are."""

    photograph: Tensor
    name: Tensor
    boxes: Tensor
    here: Tensor

    @classmethod
    def of(cls, listed: Sequence[Photograph], chosen: Sequence[int], vocabulary: Vocabulary, device: str) -> Pairs:
        rows = [
            (number, vocabulary.numbers[name], found)
            for number in chosen
            for name, found in listed[number].objects
            if name in vocabulary.numbers
        ]
        boxes = torch.zeros(len(rows), PLACES, 4)
        here = torch.zeros(len(rows), PLACES, dtype=torch.bool)
        for row, (_, _, found) in enumerate(rows):
            for slot, box in enumerate(found[:PLACES]):
                boxes[row, slot], here[row, slot] = torch.tensor(box), True
        photograph, name = (torch.tensor([row[part] for row in rows], dtype=torch.int64) for part in (0, 1))
        return cls(photograph, name.to(device), boxes.to(device), here.to(device))


def named(listed: Sequence[Photograph], vocabulary: Vocabulary) -> Tensor:
    """(M, V) half: the share of each photograph's captions that name each word; 1 for the names of its boxes."""
    implied: dict[int, list[int]] = {}
    for name, words in IMPLIED.items():
        for word in words.split():
            if name in vocabulary.numbers and word in vocabulary.numbers:
                implied.setdefault(vocabulary.numbers[word], []).append(vocabulary.numbers[name])
    table = torch.zeros(len(listed), len(vocabulary))
    for row, one in enumerate(listed):
        for caption in one.captions:
            found = vocabulary.find(caption)
            every = {*found, *(name for word in found for name in implied.get(word, ()))}
            table[row, list(every)] += 1 / len(one.captions)
        for name, _ in one.objects:
            if name in vocabulary.numbers:
                table[row, vocabulary.numbers[name]] = 1
    return table.clamp(max=1).half()


def box_shares(boxes: Tensor, here: Tensor, side: int) -> Tensor:
    """Boxes (N, P, 4) as shares of the picture, here (N, P) → (N, side · side): how much of each spot lies in them; a
    spot that lies in several counts as often, up to once in all."""
    edges = torch.arange(side + 1, device=boxes.device) / side

    def between(low: Tensor, high: Tensor) -> Tensor:
        part = torch.minimum(edges[1:], high[..., None]) - torch.maximum(edges[:-1], low[..., None])
        return part.clamp(min=0) * side

    down, across = between(boxes[..., 1], boxes[..., 3]), between(boxes[..., 0], boxes[..., 2])
    shares = down[..., :, None] * across[..., None, :] * here[..., None, None]
    return shares.sum(1).clamp(max=1).flatten(1)


def average_precision(scores: Tensor, truth: Tensor) -> Tensor:
    """Scores and truth (M, V), M things ranked for each of V words → (V,): the mean of the precision at each hit."""
    order = scores.argsort(0, descending=True)
    hits = truth.gather(0, order).float()
    ranks = torch.arange(1, len(hits) + 1, device=hits.device)[:, None]
    return (hits.cumsum(0) / ranks * hits).sum(0) / hits.sum(0).clamp(min=1)
