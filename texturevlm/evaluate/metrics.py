"""The metrics that need no reader, by name: each judges what is delivered of a sample's image; higher is better.

Legibility, the main one, is not here: its crops are read many at once (run.py).
"""

from collections.abc import Callable, Iterable

from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.delivered import Delivered, original
from texturevlm.evaluate.fidelity import in_box, psnr, ssim
from texturevlm.evaluate.legibility import PLACES
from texturevlm.evaluate.objects import on_objects
from texturevlm.evaluate.recall import pixels, recall

LEGIBILITY = "legibility"


def readable_share(delivered: Delivered, sample: Sample) -> dict[str, float]:
    if not sample.boxes or not sample.answers:
        return {}
    scales = [delivered.scale(pixels(box, sample.size)) for box in sample.boxes[:PLACES]]
    return {"recall": recall(scales, sample.boxes, sample.answers)}


def likeness(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """PSNR and SSIM overall, and inside the first boxes (their mean)."""
    picture, image = delivered.picture(), original(delivered.texture)
    scores = {"psnr": psnr(picture, image), "ssim": ssim(picture, image)}
    inside = [in_box(picture, image, pixels(box, sample.size)) for box in sample.boxes[:PLACES]]
    if inside:
        scores["psnr_box"], scores["ssim_box"] = (sum(column) / len(inside) for column in zip(*inside))
    return scores


def fine_on_objects(delivered: Delivered, sample: Sample) -> dict[str, float]:
    """Of all objects of the image; the full image and the ideal resize prefer nothing, so they have no such score."""
    if not sample.objects or delivered.allocation is None:
        return {}
    return on_objects(delivered.allocation, sample.objects)


METRICS: dict[str, Callable[[Delivered, Sample], dict[str, float]]] = {
    "recall": readable_share,
    "fidelity": likeness,
    "objects": fine_on_objects,
}


def suited(samples: Iterable[Sample]) -> list[str]:
    """The metrics that samples allow: reading where answers have a place, objects where there are some."""
    chosen = []
    samples = list(samples)
    if any(sample.boxes and sample.answers for sample in samples):
        chosen += [LEGIBILITY, "recall"]
    if any(sample.objects for sample in samples):
        chosen.append("objects")
    return chosen or ["fidelity"]
