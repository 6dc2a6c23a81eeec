"""What a configuration delivers of an image, and METRICS: all that judge it, by name; higher is better.

A metric adds scores to the cases of one image, all together, so that crops can be read in batches. To add one, write
its function and add one line to METRICS.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from texturevlm.check import check_shapes
from texturevlm.rebuilding import PixelBox, pixel_box, rebuild, resized
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.legibility import MOST_BOXES, as_bytes, crop_boxes, legibility_score
from texturevlm_lab.evaluate.objects import on_objects
from texturevlm_lab.evaluate.ocr import LineCrop, OcrEngine
from texturevlm_lab.evaluate.recall import box_scale, recall, resize_scale

_WINDOW, _SIGMA = 11, 1.5  # of SSIM, Wang et al. 2004
_C1, _C2 = 0.01**2, 0.03**2
_MARGIN = _WINDOW // 2
_IDENTICAL = 100.0  # dB, reported where nothing differs, since infinity has no mean


@dataclass(frozen=True, eq=False)
class Delivered:
    """A texture and its median grey; with an allocation, or with budget and patch (the ideal resize), or the image."""

    texture: Texture
    grey: Tensor
    allocation: Allocation | None = None
    budget: int | None = None
    patch: int = 32

    def picture(self, box: PixelBox | None = None) -> Tensor:
        """(C, H, W), or a part of it."""
        if self.allocation is not None:
            return rebuild(self.texture, self.allocation, box=box, grey=self.grey)[0]
        if self.budget is not None:
            return resized(self.texture, budget=self.budget, patch=self.patch, box=box)[0]
        image = self.texture.levels[0][0]
        return image if box is None else image[:, box[1] : box[3], box[0] : box[2]]

    def crops(self, sample: Sample) -> list[LineCrop]:
        """The answer's boxes with some margin, as an OCR engine takes them; at the size that the data set's page has,
        if the file holds a smaller copy of it."""
        parts = [self.picture(box) for box in crop_boxes(sample.boxes, sample.size)]
        if (times := round(sample.reduced)) > 1:
            parts = [interpolate(part[None], scale_factor=times, mode="bicubic")[0] for part in parts]
        return [as_bytes(part) for part in parts]

    def scale(self, box: PixelBox) -> Tensor:
        """(h, w): image pixels per token pixel."""
        if self.allocation is not None:
            return box_scale(self.allocation, box)
        side = 1.0 if self.budget is None else resize_scale(self.texture.size, self.budget, self.patch)
        return torch.full((box[3] - box[1], box[2] - box[0]), side)


@dataclass
class Case:
    """What is delivered for one sample, the scores that metrics gave it, and the texts that each OCR engine read."""

    sample: Sample
    delivered: Delivered
    scores: dict[str, float] = field(default_factory=dict)
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Metric(NamedTuple):
    """Which samples it can judge, and how it judges cases of such samples (with OCR engines if it needs them)."""

    suits: Callable[[Sample], bool]
    judge: Callable[[Sequence[Case], Mapping[str, OcrEngine]], None]


def _legibility(cases: Sequence[Case], engines: Mapping[str, OcrEngine]) -> None:
    """One score per engine, all from the same crops."""
    crops = [case.delivered.crops(case.sample) for case in cases]
    for name, engine in engines.items():
        texts = iter(engine.read([crop for own in crops for crop in own]))
        for case, own in zip(cases, crops):
            case.read[name] = tuple(next(texts) for _ in own)
            case.scores[by_engine("legibility", name)] = legibility_score(case.read[name], case.sample.answers)


def by_engine(score: str, engine: str) -> str:
    """The name of a score that an OCR engine gave."""
    return f"{score}/{engine}"


def _recall(delivered: Delivered, sample: Sample) -> dict[str, float]:
    scales = [delivered.scale(pixel_box(box, sample.size)) for box in sample.boxes[:MOST_BOXES]]
    return {"recall": recall(scales, sample.boxes, sample.answers)}


def _fidelity(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """PSNR and SSIM overall, and inside the first boxes (their mean)."""
    picture, image = delivered.picture(), delivered.texture.levels[0][0]
    scores = {"psnr": psnr(picture, image), "ssim": ssim(picture, image)}
    inside = [in_box(picture, image, pixel_box(box, sample.size)) for box in sample.boxes[:MOST_BOXES]]
    if inside:
        scores["psnr_box"], scores["ssim_box"] = (sum(column) / len(inside) for column in zip(*inside))
    return scores


def _objects(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """For all objects of the image; the full image and the ideal resize have no fine tokens, so no such score."""
    return {} if delivered.allocation is None else on_objects(delivered.allocation, sample.objects)


def _each(score: Callable[[Delivered, Sample], dict[str, float]]) -> Callable[[Sequence[Case], object], None]:
    """Judge the cases one by one."""

    def judge(cases: Sequence[Case], engines: object) -> None:
        for case in cases:
            case.scores.update(score(case.delivered, case.sample))

    return judge


def _has_answer(sample: Sample) -> bool:
    return bool(sample.boxes and sample.answers)


METRICS = {
    "legibility": Metric(_has_answer, _legibility),
    "recall": Metric(_has_answer, _each(_recall)),
    "fidelity": Metric(lambda sample: True, _each(_fidelity)),
    "objects": Metric(lambda sample: bool(sample.objects), _each(_objects)),
}


def suited(samples: Iterable[Sample]) -> list[str]:
    """The metrics that samples allow; fidelity, which judges anything, only where there is no other."""
    samples = list(samples)
    found = [name for name, metric in METRICS.items() if name != "fidelity" and any(map(metric.suits, samples))]
    return found or ["fidelity"]


def psnr(picture: Tensor, image: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of (C, H, W) against (C, H, W), at most 100."""
    first, second = _grey("psnr", picture, image)[:, 0]
    error = float((first - second).square().mean())
    return min(_IDENTICAL, -10 * math.log10(error)) if error > 0 else _IDENTICAL


def ssim(picture: Tensor, image: Tensor) -> float:
    """Structural similarity (Gaussian window of 11 pixels, σ 1.5), mean over all windows that lie inside.

    An image smaller than a window is first padded by its edge.
    """
    both = _grey("ssim", picture, image)
    down, across = (max(0, _WINDOW - side) for side in both.shape[2:])
    both = pad(both, (across // 2, across - across // 2, down // 2, down - down // 2), mode="replicate")
    first, second = _smooth(both)[:, 0]
    squares = _smooth(both.square())[:, 0]
    variances = squares - torch.stack([first, second]).square()
    covariance = _smooth(both[:1] * both[1:])[0, 0] - first * second
    above = (2 * first * second + _C1) * (2 * covariance + _C2)
    below = (first.square() + second.square() + _C1) * (variances.sum(0) + _C2)
    return float((above / below).mean())


def in_box(picture: Tensor, image: Tensor, box: PixelBox) -> tuple[float, float]:
    """PSNR of the pixels of a box, xyxy, and SSIM of the windows centred on them."""
    left, top, right, bottom = box
    inside = [one[:, top:bottom, left:right] for one in (picture, image)]
    around = [
        pad(one[None], (_MARGIN,) * 4, mode="replicate")[0, :, top : bottom + 2 * _MARGIN, left : right + 2 * _MARGIN]
        for one in (picture, image)
    ]
    return psnr(inside[0], inside[1]), ssim(around[0], around[1])


def _grey(function: str, picture: Tensor, image: Tensor) -> Tensor:
    """(2, 1, H, W): both, in double precision."""
    check_shapes(function, picture=(picture, "C H W"), image=(image, "C H W"))
    return torch.stack([one.detach().double().mean(0, keepdim=True) for one in (picture, image)])


def _smooth(images: Tensor) -> Tensor:
    offsets = torch.arange(_WINDOW, dtype=images.dtype, device=images.device) - _MARGIN
    taps = torch.exp(-offsets.square() / 2 / _SIGMA**2)
    taps = taps / taps.sum()
    return conv2d(conv2d(images, taps[None, None, :, None]), taps[None, None, None, :])
