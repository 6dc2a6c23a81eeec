"""The metrics that need no OCR engine, by name: each judges what is delivered of a sample's image; higher is better.

Legibility, the main metric, is not here: its crops are read in batches (run.py).
"""

from collections.abc import Callable, Iterable

from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.delivered import Delivered
from texturevlm.evaluate.fidelity import in_box, psnr, ssim
from texturevlm.evaluate.legibility import MOST_BOXES, pixel_box
from texturevlm.evaluate.objects import on_objects
from texturevlm.evaluate.recall import recall

LEGIBILITY = "legibility"


def recall_scores(delivered: Delivered, sample: Sample) -> dict[str, float]:
    if not sample.boxes or not sample.answers:
        return {}
    scales = [delivered.scale(pixel_box(box, sample.size)) for box in sample.boxes[:MOST_BOXES]]
    return {"recall": recall(scales, sample.boxes, sample.answers)}


def fidelity_scores(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """PSNR and SSIM overall, and inside the first boxes (their mean)."""
    picture, image = delivered.picture(), delivered.texture.levels[0][0]
    scores = {"psnr": psnr(picture, image), "ssim": ssim(picture, image)}
    inside = [in_box(picture, image, pixel_box(box, sample.size)) for box in sample.boxes[:MOST_BOXES]]
    if inside:
        scores["psnr_box"], scores["ssim_box"] = (sum(column) / len(inside) for column in zip(*inside))
    return scores


def object_scores(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """For all objects of the image; the full image and the ideal resize have no fine tokens, so no such score."""
    if not sample.objects or delivered.allocation is None:
        return {}
    return on_objects(delivered.allocation, sample.objects)


METRICS: dict[str, Callable[[Delivered, Sample], dict[str, float]]] = {
    "recall": recall_scores,
    "fidelity": fidelity_scores,
    "objects": object_scores,
}


def suited(samples: Iterable[Sample]) -> list[str]:
    """The metrics that samples allow: reading where answers have boxes, objects where there are some."""
    chosen = []
    samples = list(samples)
    if any(sample.boxes and sample.answers for sample in samples):
        chosen += [LEGIBILITY, "recall"]
    if any(sample.objects for sample in samples):
        chosen.append("objects")
    return chosen or ["fidelity"]
