"""Strata of questions: by the length of the answer and by the kind of document, where a data set names it.

An answer of one to three characters is contained in a misread line by luck; a long one is not.
"""

from texturevlm.text.edits import letters_and_digits
from texturevlm_lab.evaluate.data import Sample

LENGTH, KIND = "answer length", "kind"
_LENGTHS = ((3, "1–3"), (8, "4–8"))  # letters and digits
_LONGER = "9+"


def strata_of(sample: Sample) -> dict[str, str]:
    """The name of each stratum that the sample belongs to; the shortest accepted answer counts."""
    found = {}
    if sample.answers:
        letters = min(len(letters_and_digits(answer)) for answer in sample.answers)
        found[LENGTH] = next((name for most, name in _LENGTHS if letters <= most), _LONGER)
    if sample.kind:
        found[KIND] = sample.kind
    return found
