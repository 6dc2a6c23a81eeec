"""The image–text network of region_words.py: every cell of a photograph and every word has an embedding.

A word fits a region as the mean, in the exponential, of its products with the region's cells. Learned by InfoNCE over
regions: which region of the batch, or of the same mosaic, does a word name; which words name a region.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm_lab.studies.region_canvases import (
    PLANES,
    Source,
    background_boxes,
    by_tile,
    canvases,
    cell_shares,
    draw_windows,
    moved_boxes,
)
from texturevlm_lab.studies.region_data import Boxed

WIDTHS, BLOCKS = (40, 80, 160, 224), (0, 2, 3, 3)
EMBEDDING = 128
SHARPEST = 3.4  # of the logarithm of what cosines are multiplied by
NEVER = -1e4
RAREST = 2e-3  # share of photographs that a word names


class Block(nn.Module):
    """Two convolutions, added to what came in; left out at random while learning."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.first, self.second = Layer(width, width), Layer(width, width, active=False)
        self.drop = drop
        nn.init.zeros_(self.second.norm.weight)

    def forward(self, values: Tensor) -> Tensor:
        added = self.second(self.first(values))
        if self.training and self.drop:
            kept = torch.rand(len(values), 1, 1, 1, device=values.device) > self.drop
            added = added * kept.to(added.dtype) / (1 - self.drop)
        return functional.relu(values + added)


class Layer(nn.Module):
    def __init__(self, before: int, after: int, *, size: int = 3, stride: int = 1, active: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.active = active

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.norm(self.conv(values))
        return functional.relu(found) if self.active else found


class RegionNetwork(nn.Module):
    """prior: (V,), the share of photographs that each word names."""

    def __init__(self, prior: Tensor, *, drop: float = 0.1) -> None:
        super().__init__()
        stages, before = [], PLANES
        for width, blocks in zip(WIDTHS, BLOCKS):
            stages.append(nn.Sequential(Layer(before, width, stride=2), *(Block(width, drop) for _ in range(blocks))))
            before = width
        self.stages = nn.ModuleList(stages)
        self.fine, self.wide = nn.Conv2d(WIDTHS[2], WIDTHS[3], 1), nn.Conv2d(WIDTHS[3], WIDTHS[3], 1)
        self.last = Layer(WIDTHS[3], WIDTHS[3])
        self.head = nn.Conv2d(WIDTHS[3], EMBEDDING, 1)
        self.drop = nn.Dropout2d(2 * drop)
        self.words = nn.Parameter(functional.normalize(torch.randn(len(prior), EMBEDDING), dim=1))
        self.bias = nn.Parameter(prior.clamp(min=RAREST).log())
        self.sharpness = nn.Parameter(torch.tensor(2.0))

    def forward(self, planes: Tensor) -> Tensor:
        """(B, PLANES, CANVAS, CANVAS) → (B, EMBEDDING, SIDE, SIDE), of length 1."""
        values = (2 * planes - 1).contiguous(memory_format=torch.channels_last)
        for stage in self.stages[:3]:
            values = stage(values)
        wide = self.wide(self.stages[3](values))
        values = self.fine(values) + functional.interpolate(wide, scale_factor=2.0, mode="bilinear")
        return functional.normalize(self.head(self.drop(self.last(functional.relu(values)))).float(), dim=1)

    def fits(self, cells: Tensor, words: Tensor | None = None) -> Tensor:
        """(B, EMBEDDING, …) → (B, V, …): how well each word fits each cell. words: numbers, all if None"""
        table = self.words if words is None else self.words[words]
        table = functional.normalize(table, dim=1) * self.sharpness.clamp(max=SHARPEST).exp()
        found: Tensor = (table @ cells.flatten(2)).unflatten(2, cells.shape[2:])
        return found


def mean_exp(fits: Tensor) -> Tensor:
    """(R, V, y, x) → (R, V): the logarithm of the mean exponential over the cells."""
    return fits.flatten(2).float().logsumexp(2) - math.log(fits.shape[2] * fits.shape[3])


def soft_choice(logits: Tensor, target: Tensor, dim: int) -> Tensor:
    """The cross-entropy of a softmax along `dim` with a target that is scaled to sum to 1; rows by √ of the target."""
    total = target.sum(dim, keepdim=True)
    cost = -(target / total.clamp(min=1e-6) * logits.log_softmax(dim)).sum(dim)
    weight = total.squeeze(dim).sqrt()
    return (cost * weight).sum() / weight.sum().clamp(min=1e-6)


def caption_losses(network: RegionNetwork, cells: Sequence[Tensor], named: Sequence[Tensor]) -> dict[str, Tensor]:
    """cells: per size of mosaic, embeddings (B, EMBEDDING, SIDE, SIDE); named: (B · tiles², V), its photographs'."""
    fits, mosaics = [], []
    for part, words in zip(cells, named):
        tiles = round((len(words) / len(part)) ** 0.5)
        fit = mean_exp(by_tile(network.fits(part), tiles))
        fits.append(fit)
        if tiles > 1:  # hard negatives: the other tiles of the same mosaic
            shape = (len(part), tiles * tiles)
            mosaics.append(soft_choice(fit.unflatten(0, shape), words.unflatten(0, shape), 1))
    fit, target = torch.cat(fits), torch.cat(list(named))
    found = {"regions": soft_choice(fit, target, 0), "words": soft_choice(fit + network.bias, target, 1)}
    return {**found, "mosaic": torch.stack(mosaics).mean()} if mosaics else found


class BoxDraw:
    """Photographs with boxes on canvases of tiles × tiles, and their regions: objects, then background."""

    def __init__(self, source: Source, boxed: Boxed, photographs: Tensor, tiles: int) -> None:
        device = str(photographs.device)
        windows = draw_windows(len(photographs), tiles, device)
        self.tiles = tiles
        self.planes = canvases(source, photographs, tiles, windows)
        label = boxed.label[photographs]
        boxes, there = moved_boxes(boxed.boxes[photographs], label >= 0, windows)
        others, empty = background_boxes(boxes, there)
        self.label = torch.cat([label.masked_fill(~there, -1), torch.full_like(empty, -1, dtype=label.dtype)], 1)
        self.there = torch.cat([there, empty], 1)
        self.shares = cell_shares(torch.cat([boxes, others], 1), tiles)


def box_losses(network: RegionNetwork, draw: BoxDraw, cells: Tensor, names: Tensor) -> dict[str, Tensor]:
    """cells: embeddings of the draw's canvases; names: the numbers of the words that boxes have."""
    fits = by_tile(network.fits(cells, names), draw.tiles).float()  # photograph, name, y, x
    shares = draw.shares.flatten(2)  # photograph, region, cell
    flat = fits.flatten(2)
    top = flat.amax(2, keepdim=True)
    inside = ((flat - top).exp() @ shares.mT).clamp(min=1e-12).log() + top  # photograph, name, region
    region = (inside - shares.sum(2).clamp(min=1e-6).log()[:, None]).mT  # photograph, region, name
    truth = ((draw.label[..., None] == names) & draw.there[..., None]).float()
    named = (region + network.bias[names]).log_softmax(2)
    classify = -(named * truth).sum() / truth.sum().clamp(min=1)
    # A name chooses among the regions of the photograph that holds it: other objects and background are negatives.
    choice = region.masked_fill(~draw.there[..., None], NEVER)
    locate = soft_choice(choice, truth, 1)
    covered = (truth.mT @ shares).clamp(max=1)  # photograph, name, cell
    place = soft_choice(flat, covered, 2)
    return {"classify": classify, "locate": locate, "place": place}
