"""Principal components of a stream of features: one pass, bounded memory, measured on held-out patches.

Mean and scatter are double precision and are merged batch by batch (Chan, Golub and LeVeque), so that neither a large
mean nor the order of the images matters. A tenth of the patches, at most `held_out` of them, is left out of the fit and
used for the report.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from texturevlm.channels.embedding import DIMENSIONS, Projection
from texturevlm.check import check_count, check_finite, check_floating, check_shapes

FEWEST = 10 * DIMENSIONS  # patches; fewer do not determine 16 directions
_SHARE = 0.1  # of the patches may be held out
TARGET = 0.95  # of the nearest neighbours should be kept
HEADROOM = 1.25  # the largest value of the held-out patches becomes 1 / HEADROOM
TIE = 1e-6  # similarities that differ by less are equal: a blank page has many nearest neighbours


@dataclass(frozen=True)
class PcaReport:
    """How well 16 numbers represent a feature, measured on patches that were left out of the fit.

    nearest:   how often the nearest neighbour in 16 numbers (distance) is the nearest in full features (cosine)
    among_ten: how often the nearest in full features is among the ten nearest in 16 numbers
    """

    images: int
    patches: int
    held_out: int
    variance: float
    nearest: float
    among_ten: float

    def __str__(self) -> str:
        verdict = "reached" if self.nearest >= TARGET else "NOT reached: 16 numbers are too few for these features"
        return (
            f"fitted on {self.patches - self.held_out} patches of {self.images} images, "
            f"measured on {self.held_out} other patches\n"
            f"{'variance kept':42} {self.variance:.1%}\n"
            f"{'nearest neighbour is the nearest in full':42} {self.nearest:.1%} (target {TARGET:.0%} {verdict})\n"
            f"{'nearest in full is among the ten nearest':42} {self.among_ten:.1%}"
        )


class Moments:
    """Count, mean (D,) and scatter (D, D) of all features added so far, in double precision."""

    def __init__(self) -> None:
        self.count, self.mean, self.scatter = 0, torch.tensor(0.0), torch.tensor(0.0)

    def add(self, features: Tensor) -> None:
        """Merge features (N, D)."""
        if len(features) == 0:
            return
        features = features.double()
        mean = features.mean(0)
        centred = features - mean
        total = self.count + len(features)
        step = mean - self.mean
        between = torch.outer(step, step) * (self.count * len(features) / total)
        self.scatter = self.scatter + (centred.T @ centred + between)
        self.mean = self.mean + step * (len(features) / total)
        self.count = total


class HeldOut:
    """A uniform sample of a stream, of bounded size.

    Each row draws a random number. Rows below SHARE are candidates; the `size` lowest of them are kept.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.random = np.random.default_rng(seed)
        self.draws = torch.empty(0, dtype=torch.float64)
        self.rows = torch.empty(0)

    def add(self, features: Tensor) -> Tensor:
        """Offer features (N, D); returns those that are not kept (any longer), to fit on, (M, D)."""
        draws = torch.from_numpy(self.random.random(len(features)))
        candidate = (draws < _SHARE).to(features.device)
        draws = torch.cat([self.draws, draws[draws < _SHARE]])
        chosen = features[candidate]
        rows = torch.cat([self.rows, chosen]) if self.rows.numel() else chosen
        stay = torch.zeros_like(draws, dtype=torch.bool)
        stay[draws.argsort()[: self.size]] = True
        keep = stay.to(rows.device)
        self.draws, self.rows = draws[stay], rows[keep]
        return torch.cat([features[~candidate], rows[~keep]])


def fit_pca(
    feature_batches: Iterable[Tensor], *, model: str = "", digest: str = "", held_out: int = 4096, seed: int = 0
) -> tuple[Projection, PcaReport]:
    """Fit a projection onto the 16 directions in which features vary most, in one pass.

    feature_batches: each (B, D, h, w), of unit length, from `DenseEncoder.encode`; D must be equal, h and w may differ
    model, digest:   of the encoder; `embed` refuses a projection of another one
    held_out:        the most patches to leave out of the fit and measure on
    returns          the projection, in float32 on the CPU, and the report
    """
    check_count("fit_pca", "held_out", held_out, 2)
    moments, sample = Moments(), HeldOut(held_out, seed)
    images = patches = width = 0
    for features in feature_batches:
        sizes = check_shapes("fit_pca", features=(features, "B D h w"))
        check_floating("fit_pca", features=features)
        check_finite("fit_pca", features=features)
        width = width or sizes["D"]
        if sizes["D"] != width or width < DIMENSIONS:
            wanted = f"{width} wide like the first" if sizes["D"] != width else f"at least {DIMENSIONS} wide"
            raise ValueError(f"fit_pca: features must be {wanted}, got {tuple(features.shape)}")
        rows = features.movedim(1, 3).flatten(0, 2)
        moments.add(sample.add(rows.cpu() if rows.device.type == "mps" else rows))  # MPS has no float64
        images, patches = images + sizes["B"], patches + len(rows)
    if patches < FEWEST:
        raise ValueError(f"fit_pca: feature_batches must hold at least {FEWEST} patches, got {patches}")
    basis, variance = principal(moments)
    mean, basis = moments.mean.float().cpu(), basis.float().cpu()
    largest = float(((sample.rows.cpu() - mean) @ basis.T).abs().max())
    projection = Projection(mean, basis, max(HEADROOM * largest, 1e-6), variance, model, digest)
    reduced = projection.apply(sample.rows.T[None, :, :, None])[0, :, :, 0].T  # (N, D) → (N, 16)
    nearest, among_ten = (neighbours_kept(sample.rows, reduced, among=count) for count in (1, 10))
    return projection, PcaReport(images, patches, len(sample.rows), variance, nearest, among_ten)


def principal(moments: Moments) -> tuple[Tensor, float]:
    """The 16 directions of greatest variance (16, D), greatest first, and the share of the variance they keep.

    A direction's sign is arbitrary: its largest entry is made positive, so that fits are reproducible.
    """
    values, vectors = torch.linalg.eigh(moments.scatter)
    total = float(values.clamp(min=0).sum())
    if not total > 1e-12 * moments.count:
        raise ValueError(f"fit_pca: feature_batches must vary, got the same feature {moments.count} times")
    basis = vectors[:, -DIMENSIONS:].flip(1).T
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    return basis * largest.sign(), float(values[-DIMENSIONS:].clamp(min=0).sum()) / total


def neighbours_kept(features: Tensor, reduced: Tensor, *, among: int = 1) -> float:
    """How often the nearest feature by cosine is among the `among` nearest reduced features by distance.

    features: (N, D); reduced: (N, R)
    """
    sizes = check_shapes("neighbours_kept", features=(features, "N D"), reduced=(reduced, "N R"))
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    among = min(among, sizes["N"] - 1)
    kept = 0
    for start in range(0, sizes["N"], 512):
        rows = slice(start, start + 512)
        similarity = unit[rows] @ unit.T
        distance = torch.cdist(reduced[rows].float(), reduced.float(), compute_mode="donot_use_mm_for_euclid_dist")
        own = torch.arange(len(similarity), device=unit.device)
        similarity[own, own + start] = -torch.inf
        distance[own, own + start] = torch.inf
        found = similarity.gather(1, distance.topk(among, largest=False).indices).amax(1)
        kept += int((found >= similarity.amax(1) - TIE).sum())
    return kept / sizes["N"]
