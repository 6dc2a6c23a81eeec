"""Accuracy of the channels that find text, objects and structure, against plain baselines, on annotated images.

    python -m texturevlm_lab.studies.channels DATA --out DIR [--limit N]

DATA holds `funsd/` and `sroie/` (text_boxes.jsonl) and `coco/` (questions.jsonl). Thresholds and the baseline's blur
are chosen on `train` images; results are for `eval`.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.channels.structure import box_mean, centre_prior, centre_surround, enlarge, luma, opponents, saliency
from texturevlm.channels.text import text_map, text_map_ocr
from texturevlm.image import to_tensor
from texturevlm.ops.mip import mipmap
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.studies.study import boxes_by_image, each, provenance, study_main

TEXT_SETS = ("funsd", "sroie")
BLURS = (1, 5, 9, 13, 17, 25)  # pixels: the baseline may choose
BINS = 4096  # of a map's values: the thresholds that are tried
TOP = 0.2  # of the image's pixels, the most salient ones
FOUND = 0.25  # of an object's box must be among them
RESAMPLES = 10_000

Map = Callable[[Tensor, list[Tensor]], Tensor]  # image and levels → (1, H, W)


class AnnotatedImage(NamedTuple):
    """One image (1, 3, H, W), its pyramid, its boxes and which pixels (H, W) lie in some box."""

    image: Tensor
    levels: list[Tensor]
    boxes: list[list[float]]
    inside: np.ndarray


def samples(data: Path, name: str, split: str, limit: int | None) -> Iterator[AnnotatedImage]:
    """The images of one set and split, with all boxes of an image; reports progress on stderr."""
    folder = data / name
    listing = folder / ("text_boxes.jsonl" if name in TEXT_SETS else "questions.jsonl")
    boxes = boxes_by_image(listing, split, limit)
    for path, found in each(boxes.items(), f"images of {name}, {split}"):
        image = to_tensor(folder / path)
        inside = np.zeros(image.shape[-2:], dtype=bool)
        for x0, y0, x1, y1 in found:
            inside[_pixels(y0, y1), _pixels(x0, x1)] = True
        yield AnnotatedImage(image, mipmap(image), found, inside)


def _pixels(low: float, high: float) -> slice:
    return slice(max(0, math.floor(low)), max(0, math.ceil(high)))


def counts(method: Map, sample: AnnotatedImage) -> np.ndarray:
    """(2, BINS): how many pixels, and how many inside a box, have a value of at least each threshold."""
    values = (method(sample.image, sample.levels)[0] * (BINS - 1)).round().clamp(0, BINS - 1).long().numpy().ravel()
    every = np.bincount(values, minlength=BINS)
    inside = np.bincount(values[sample.inside.ravel()], minlength=BINS)
    return np.stack([every, inside])[:, ::-1].cumsum(1)[:, ::-1]


def f1(table: np.ndarray) -> np.ndarray:
    """(…, 2, BINS) → (…, BINS)."""
    marked, right = table[..., 0, :], table[..., 1, :]
    scores: np.ndarray = 2 * right / np.maximum(marked + right[..., :1], 1)
    return scores


def tables(methods: dict[str, Map], data: Path, split: str, limit: int | None) -> dict[str, dict[str, np.ndarray]]:
    """set → method → (images, 2, BINS)."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in TEXT_SETS:
        rows: dict[str, list[np.ndarray]] = {method: [] for method in methods}
        for sample in samples(data, name, split, limit):
            for method, function in methods.items():
                rows[method].append(counts(function, sample))
        found[name] = {method: np.stack(row) for method, row in rows.items()}
    return found


def measure_text(data: Path, limit: int | None) -> dict[str, Any]:
    """F1 of pixels inside text boxes; one threshold for both sets, chosen on train where the method has one."""
    candidates: dict[str, Map] = {"fast map": text_map}
    for blur in BLURS:
        candidates[f"edge density, {blur}×{blur}"] = partial(edge_density, blur=blur)
    train = tables(candidates, data, "train", limit)
    tuning = {}
    for method in candidates:
        curve = np.mean([f1(train[name][method]).mean(0) for name in TEXT_SETS], axis=0)
        best = int(curve[1:].argmax()) + 1
        tuning[method] = {"threshold": best / (BINS - 1), "train_f1": float(curve[best])}
    baseline = max((method for method in candidates if method != "fast map"), key=lambda m: tuning[m]["train_f1"])
    methods = {"fast map": candidates["fast map"], baseline: candidates[baseline]}
    thresholds = {method: tuning[method]["threshold"] for method in methods}
    if find_spec("rapidocr") is not None:
        methods["RapidOCR's detector"] = lambda image, levels: text_map_ocr(image)
        thresholds["RapidOCR's detector"] = 0.5
    found = tables(methods, data, "eval", limit)
    scores: dict[str, Any] = {}
    for method, threshold in thresholds.items():
        column = round(threshold * (BINS - 1))
        each = {name: f1(found[name][method])[:, column].tolist() for name in TEXT_SETS}
        pooled = {name: float(f1(found[name][method].sum(0))[column]) for name in TEXT_SETS}
        scores[method] = {"threshold": threshold, "f1": each, "pooled": pooled}
    marked: dict[str, list[float]] = {method: [] for method in methods}
    for sample in samples(data, "coco", "eval", limit):
        for method, function in methods.items():
            values = function(sample.image, sample.levels)
            marked[method].append(float((values >= thresholds[method] - 0.5 / (BINS - 1)).float().mean()))
    for method, score in scores.items():
        score["gain"] = difference(score["f1"], scores[baseline]["f1"])
        score["photographs"] = float(np.mean(marked[method]))
    return {"tuning": tuning, "baseline": baseline, "scores": scores, "photographs": len(marked["fast map"])}


def difference(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> list[float]:
    """The mean paired difference, sets counting the same, and its 95% interval by resampling each set's images."""
    generator = np.random.default_rng(0)
    means = np.zeros(RESAMPLES)
    centre = 0.0
    for name in ours:
        paired = np.array(ours[name]) - np.array(theirs[name])
        picked = generator.integers(0, len(paired), (RESAMPLES, len(paired)))
        means += paired[picked].mean(1) / len(ours)
        centre += paired.mean() / len(ours)
    return [float(centre), *np.quantile(means, [0.025, 0.975]).tolist()]


# ---- baselines: what a good engineer would write in an afternoon -----------------------------------------------------


def edge_density(image: Tensor, levels: list[Tensor], *, blur: int) -> Tensor:
    """The baseline: Sobel magnitude of the brightness, averaged over blur × blur pixels."""
    grey = torch.nn.functional.pad(luma(image), (1, 1, 1, 1), mode="replicate")
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
    both = torch.nn.functional.conv2d(grey, torch.stack([across, across.T])[:, None])
    return box_mean(both.square().sum(1, keepdim=True).sqrt() * 2**0.5, blur, blur)[:, 0]


def spectral_residual(image: Tensor, levels: list[Tensor]) -> Tensor:
    """Hou and Zhang 2007: what the spectrum of the 64×64 image has more than its neighbourhood. Not local."""
    grey = torch.nn.functional.interpolate(luma(image), size=(64, 64), mode="area")
    spectrum = torch.fft.fft2(grey)
    amplitude = (spectrum.abs() + 1e-8).log()
    residual = amplitude - box_mean(amplitude, 3, 3)
    energy = torch.fft.ifft2(torch.polar(residual.exp(), spectrum.angle())).abs().square()
    taps = torch.exp(-torch.arange(-7.0, 8.0).square() / (2 * 2.5**2))
    taps = taps / taps.sum()
    around = torch.nn.functional.pad(energy, (7, 7, 7, 7), mode="reflect")
    smooth = torch.nn.functional.conv2d(around, (taps[:, None] * taps)[None, None])
    return enlarge(smooth, image.shape[-2:])[:, 0]


def contrast_over_mips(image: Tensor, levels: list[Tensor]) -> Tensor:
    """Centre-surround over the mips: levels 2, 3, 4 against the ones above them, brightness and opponent colours."""
    total = torch.zeros_like(image[:, :1])
    for centre in (2, 3, 4):
        fine, coarse = (opponents(levels[min(level, len(levels) - 1)]) for level in (centre, centre + 1))
        difference = (fine - enlarge(coarse, fine.shape[-2:])).abs().sum(1, keepdim=True)
        total = total + enlarge(difference, image.shape[-2:])
    return total[:, 0]


def bias(image: Tensor, levels: list[Tensor]) -> Tensor:
    return centre_prior(image)[None]


def centred(method: Map) -> Map:
    return lambda image, levels: method(image, levels) * centre_prior(image)


# ---- saliency ------------------------------------------------------------------------------------------------------

SALIENCY: dict[str, Map] = {
    "saliency": saliency,
    "saliency × centre": centred(saliency),
    "centre bias": bias,
    "spectral residual": spectral_residual,
    "spectral residual × centre": centred(spectral_residual),
    "centre-surround over mips": contrast_over_mips,
    "centre-surround × centre": centred(contrast_over_mips),
}


def measure_saliency(data: Path, limit: int | None) -> dict[str, Any]:
    """How much of the objects' boxes the most salient TOP of the pixels cover."""
    covered: dict[str, list[float]] = {method: [] for method in SALIENCY}
    found: dict[str, list[bool]] = {method: [] for method in SALIENCY}
    share, best = [], []
    for sample in samples(data, "coco", "eval", limit):
        if not sample.inside.any():
            continue
        share.append(float(sample.inside.mean()))
        best.append(min(1.0, TOP / share[-1]))
        for method, function in SALIENCY.items():
            top = topmost(function(sample.image, sample.levels)[0].numpy())
            covered[method].append(float(top[sample.inside].mean()))
            for x0, y0, x1, y1 in sample.boxes:
                part = top[_pixels(y0, y1), _pixels(x0, x1)]
                found[method].append(bool(part.size and part.mean() >= FOUND))
    scores: dict[str, Any] = {}
    for method in SALIENCY:
        rival = "spectral residual × centre" if "× centre" in method else "spectral residual"
        scores[method] = {
            "covered": covered[method],
            "found": float(np.mean(found[method])),
            "rival": rival,
            "gain": difference({"coco": covered[method]}, {"coco": covered[rival]}),
        }
    return {
        "scores": scores,
        "images": len(share),
        "objects": len(found["saliency"]),
        "object_area": float(np.mean(share)),
        "best_possible": float(np.mean(best)),
    }


def topmost(values: np.ndarray) -> np.ndarray:
    """The TOP of the pixels with the greatest values; equal values in random order."""
    shuffled = np.random.default_rng(0).permutation(values.size)
    order = shuffled[np.argsort(values.ravel()[shuffled], kind="stable")]
    top = np.zeros(values.size, dtype=bool)
    top[order[values.size - round(TOP * values.size) :]] = True
    return top.reshape(values.shape)


# ---- polarity ------------------------------------------------------------------------------------------------------

INKS = {
    "black on white": (0, 255),
    "white on black": (255, 0),
    "white on grey": (255, 128),
    "140 on 128": (140, 128),
    "116 on 128": (116, 128),
    "190 on 200": (190, 200),
    "52 on 40": (52, 40),
}
HEIGHTS = (10, 16, 28, 48, 72)


def measure_polarity() -> dict[str, Any]:
    """On rendered text, with and without noise of 2 grey steps: means of the right and the wrong channel on ink."""
    scores: dict[str, Any] = {}
    for name, (ink, paper) in INKS.items():
        right, wrong, order, unsigned = [], [], [], []
        for height in HEIGHTS:
            for noise in (0.0, 2.0):
                image, strokes, blank = rendered(ink, paper, height, noise)
                darker = centre_surround(image)[0]
                pair = [part.clamp(min=0).numpy() for part in (darker, -darker)]
                if ink > paper:
                    pair.reverse()
                right.append(float(pair[0][strokes].mean()))
                wrong.append(float(pair[1][strokes].mean()))
                order.append(ranking(pair[0][strokes], pair[0][blank]))
                sobel = edge_density(image, [image], blur=1)[0].numpy()
                unsigned.append(ranking(sobel[strokes], sobel[blank]))
        values = {"right": right, "wrong": wrong, "auc": order, "auc_sobel": unsigned}
        scores[name] = {key: float(np.mean(value)) for key, value in values.items()}
    return scores


def rendered(ink: int, paper: int, height: int, noise: float) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Lines of text as an image (1, 3, H, W), with the pixels that are all ink and those that have none."""
    page, cover = Image.new("L", (600, 300), paper), Image.new("L", (600, 300), 0)
    font = ImageFont.load_default(height)
    for y in range(20, 260, height * 3 // 2):
        for canvas, fill in ((page, ink), (cover, 255)):
            ImageDraw.Draw(canvas).text((20, y), "The quick brown fox 1234", fill=fill, font=font)
    pixels = np.asarray(page) + np.random.default_rng(height).normal(0, 1, (300, 600)) * noise
    image = torch.from_numpy(np.clip(pixels, 0, 255).round() / 255).float().expand(1, 3, -1, -1)
    return image, np.asarray(cover) > 200, np.asarray(cover) == 0


def ranking(ink: np.ndarray, paper: np.ndarray) -> float:
    """How often a pixel of ink has the greater value than one of paper (area under the curve); ties count half."""
    values, where = np.unique(np.concatenate([ink, paper]), return_inverse=True)
    dark = np.bincount(where[: len(ink)], minlength=len(values))
    light = np.bincount(where[len(ink) :], minlength=len(values))
    below = light.cumsum() - light
    return float((dark * (below + light / 2)).sum() / (len(ink) * len(paper)))


# ---- report --------------------------------------------------------------------------------------------------------


def report(record: dict[str, Any]) -> str:
    text, salient = record["text"], record["saliency"]
    number = {name: len(text["scores"]["fast map"]["f1"][name]) for name in TEXT_SETS}
    texts, objects = [], []
    for method, score in text["scores"].items():
        means = [float(np.mean(score["f1"][name])) for name in TEXT_SETS]
        cells = [f"{mean:.3f} ({score['pooled'][name]:.3f})" for mean, name in zip(means, TEXT_SETS)]
        gain = "–" if method == text["baseline"] else format_interval(score["gain"])
        shares = (f"{np.mean(means):.3f}", gain, f"{100 * score['photographs']:.1f}%")
        texts.append((method, f"{score['threshold']:.3f}", *cells, *shares))
    for method, score in salient["scores"].items():
        mean = float(np.mean(score["covered"]))
        gain = "–" if method == score["rival"] else format_interval(score["gain"])
        objects.append((method, f"{mean:.3f}", f"{mean / TOP:.2f}", f"{100 * score['found']:.0f}%", gain))
    return markdown_page(
        "# Channels that find structure: how good they are",
        provenance(record),
        "## Text: pixels inside a box or not",
        f"FUNSD ({number['funsd']} `eval` images, words) and SROIE ({number['sroie']}, lines). F1 is the mean over "
        "images (in brackets: all pixels of the set pooled); both is the mean of the two sets. One threshold for both "
        "sets, and the baseline's blur, chosen on `train`. The gain over edge density is paired by image, with a 95% "
        f"bootstrap interval. Photographs: the share of the pixels of {text['photographs']} COCO `eval` images that "
        "is called text (most have none).",
        markdown_table(
            ("method", "threshold", "FUNSD", "SROIE", "both", "gain over edge density", "photographs"), texts
        ),
        "On `train`, from which thresholds and blur were chosen:",
        markdown_table(
            ("method", "threshold", "both"),
            [(name, f"{row['threshold']:.3f}", f"{row['train_f1']:.3f}") for name, row in text["tuning"].items()],
        ),
        "## Saliency: COCO objects",
        f"{salient['images']} `eval` images, {salient['objects']} objects, whose boxes cover "
        f"{100 * salient['object_area']:.0f}% of an image on average. Covered: the share of that area that the most "
        f"salient {100 * TOP:.0f}% of the pixels cover, mean over images ({TOP} by chance, "
        f"{salient['best_possible']:.3f} at best). Lift: covered over chance. Objects: the share of boxes of which at "
        f"least {100 * FOUND:.0f}% is covered. The gain in covered is over the spectral residual (with the same centre "
        "prior where it says × centre), paired by image, with a 95% bootstrap interval.",
        markdown_table(("method", "covered", "lift", "objects", "gain over spectral residual"), objects),
        "## Edges: polarity and contrast, on rendered text",
        f"Text {', '.join(map(str, HEIGHTS))} pixels high, with and without noise of 2 grey steps. The channel of the "
        "right and of the wrong polarity, mean over the ink; and how often a pixel of ink has a greater value than "
        "one of paper (0.5 is chance), beside a Sobel magnitude.",
        markdown_table(
            ("ink", "right channel", "wrong channel", "ink above paper", "by Sobel"),
            [
                (name, f"{row['right']:.3f}", f"{row['wrong']:.4f}", f"{row['auc']:.3f}", f"{row['auc_sobel']:.3f}")
                for name, row in record["polarity"].items()
            ],
        ),
    )


@torch.inference_mode()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "text": measure_text(options.data, options.limit),
        "saliency": measure_saliency(options.data, options.limit),
        "polarity": measure_polarity(),
    }


main = study_main(__name__, __doc__, measure, report)
