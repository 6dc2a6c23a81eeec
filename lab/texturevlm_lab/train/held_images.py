"""Which questions of a data set a task learns from, and which ones it is evaluated on: those about other images."""

from collections.abc import Sequence

from texturevlm_lab.evaluate.data import Sample

HELD = 4  # one image in so many is evaluated on
TOGETHER = 32  # questions that are answered together


def held_images(function: str, samples: Sequence[Sample]) -> list[bool]:
    """For each sample whether it is evaluated on; ValueError in the name of `function` if there are too few images."""
    numbers = {image: number for number, image in enumerate(dict.fromkeys(sample.image for sample in samples))}
    if len(numbers) < HELD:
        raise ValueError(f"{function}: data must have questions about {HELD} images, got {len(numbers)}")
    return [numbers[sample.image] % HELD == HELD - 1 for sample in samples]
