"""How well texts were read: the character error rate."""

from collections.abc import Iterable

from texturevlm.text.edits import edit_distance


def error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Edits per true character, of (said, true) pairs."""
    listed = list(pairs)
    edits = sum(edit_distance(said, true) for said, true in listed)
    return edits / max(1, sum(len(true) for _, true in listed))
