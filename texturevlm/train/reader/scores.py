"""How well a text was read: character error rate, and ANLS of an answer."""

from collections.abc import Iterable, Sequence


def edits(said: Sequence[object], true: Sequence[object]) -> int:
    """The Levenshtein distance."""
    row = list(range(len(true) + 1))
    for i, one in enumerate(said, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(true, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (one != other))
    return row[-1]


def error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Edits per true character, of (said, true) pairs."""
    listed = list(pairs)
    return sum(edits(said, true) for said, true in listed) / max(1, sum(len(true) for _, true in listed))


def anls(said: str, true: str) -> float:
    """Normalised Levenshtein similarity without regard to case; 0 if it is at most one half."""
    said, true = said.strip().lower(), true.strip().lower()
    close = 1 - edits(said, true) / max(len(said), len(true), 1)
    return close if close > 0.5 else 0.0
