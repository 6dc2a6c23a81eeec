"""The words that can be looked for in a photograph: a closed list, since a sight has no spelling.

A word of a page can be spelled and so be found unseen; what a "dog" looks like must have been learned. Entries are
words in the singular, and pairs of words that name one thing ("tennis racket"). What is not on the list is not found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from texturevlm.text.strings import STOP, terms

LEAST = 5  # images whose captions must hold a word
IRREGULAR = {"men": "man", "women": "woman", "children": "child", "feet": "foot", "teeth": "tooth", "geese": "goose"}
# Words of captions that name nothing to be seen in one place.
SILENT_WORDS = """
about above across after against ahead all almost along alongside also amid amidst among amongst another around away
back because before behind being below beneath beside besides between beyond both but day different doing down during
each either else every few five forth four front full get gets getting go goes going he her him himself inside just
like looking looks make makes making more most near nearby next no not off one onto other others out outside over past
several she some someone something still such them then they thing three through throughout together toward towards
two up upon use used uses using very via view we while without you your
"""
SILENT = STOP | frozenset(SILENT_WORDS.split())
ENDINGS = (("ies", "y"), ("ves", "fe"), ("ves", "f"), ("es", ""), ("s", ""))  # of plurals, and of their singulars


class Vocabulary:
    """Entries, each with its number, and how to find them in a text."""

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self.numbers = {entry: number for number, entry in enumerate(self.entries)}
        if len(self.numbers) != len(self.entries) or not self.entries:
            raise ValueError(f"Vocabulary: entries must be different and at least one, got {len(self.entries)}")

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, text: str) -> list[int]:
        """The numbers of the entries that a text names, in its order, each once; a pair before its parts."""
        words = [word for word, _ in terms(text)]
        found: list[int] = []
        place = 0
        while place < len(words):
            pair = [f"{words[place]} {word}" for word in singulars(words[place + 1])] if place + 1 < len(words) else []
            both = next((entry for entry in pair if entry in self.numbers), None)
            alone = next((entry for entry in singulars(words[place]) if entry in self.numbers), None)
            chosen = both or alone
            if chosen is not None:
                found.append(self.numbers[chosen])
            place += 2 if both else 1
        return list(dict.fromkeys(found))


def gathered(captions: Iterable[Sequence[str]], names: Iterable[str], *, least: int = LEAST) -> Vocabulary:
    """The words that the captions of at least so many images hold, stop words out, plurals with their singulars; and
    the names.

    captions: those of one image together
    """
    images = [{word for caption in together for word, _ in terms(caption)} for together in captions]
    counts = Counter(word for words in images for word in words if word not in SILENT and word.isalpha())
    merged = Counter(base for words in images for base in {_base(word, counts) for word in words if word in counts})
    kept = {word for word, count in merged.items() if count >= least and len(word) > 1}
    return Vocabulary(sorted(kept | {" ".join(word for word, _ in terms(name)) for name in names}))


def singulars(word: str) -> list[str]:
    """The word itself, and what it may be the plural of."""
    if word in IRREGULAR:
        return [word, IRREGULAR[word]]
    if word.endswith("ss") or len(word) < 4:
        return [word]
    return [word, *(word.removesuffix(end) + rest for end, rest in ENDINGS if word.endswith(end))]


def _base(word: str, counts: Mapping[str, int]) -> str:
    return next((other for other in singulars(word)[1:] if counts.get(other)), word)
