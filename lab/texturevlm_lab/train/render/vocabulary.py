"""The words on rendered pages: given words, common English, and made-up numbers, dates, names and codes.

A network that only sees real words learns to guess them, so some words are nonsense, drawn letter by letter from the
bigrams of the real ones. Lists of words and forms are in english.toml.
"""

import random
import string
import tomllib
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

_ENGLISH = tomllib.loads(files(__package__).joinpath("english.toml").read_text(encoding="utf-8"))
_FACTS, _FORMS, _RANGES = _ENGLISH["facts"].split(), _ENGLISH["forms"], _ENGLISH["ranges"]
_LISTS = {name: items.split() if isinstance(items, str) else items for name, items in _ENGLISH["lists"].items()}
COMMON_WORDS: list[str] = _LISTS["word"]
_PRINTABLE = frozenset(map(chr, range(33, 127)))
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\u00a0": " "})
_LONGEST = 24  # letters of a word
_LABELLED = 0.4  # share of the fields of forms that have a given label
GIVEN, NONSENSE = 0.65, 0.1  # shares of words: of those given, and made up letter by letter


class Vocabulary:
    """Words to write: those of `texts`, strings of any length, or the common English words alone.

    labels: what fields of forms are called, in _LABELLED of them; the others have a phrase
    """

    def __init__(self, texts: Iterable[str] = (), labels: Iterable[str] = ()) -> None:
        self._labels = list(labels)
        words = (word for text in texts for word in text.translate(_PLAIN).split())
        self._often = [word for word in words if len(word) <= _LONGEST and _PRINTABLE.issuperset(word)]
        self._once = sorted(set(self._often))  # the rare ones as often as the common ones
        self._next = _successors(self._once) or _successors(COMMON_WORDS)

    def word(self, rng: random.Random) -> str:
        """One word of running text."""
        if rng.random() < NONSENSE:
            return self.nonsense(rng)
        if self._often and rng.random() < GIVEN:
            return rng.choice(self._often if rng.random() < 0.5 else self._once)
        return rng.choice(COMMON_WORDS)

    def nonsense(self, rng: random.Random) -> str:
        """A made-up word, its letters in a likely order."""
        word = rng.choice(self._next[""])
        length = rng.randint(2, 11)
        while len(word) < length and word[-1] in self._next:
            word += rng.choice(self._next[word[-1]])
        return word

    def sentence(self, rng: random.Random) -> list[str]:
        """Words with a capital at the start, a stop at the end, and now and then a number, a name or a comma."""
        words = []
        for _ in range(rng.randint(4, 18)):
            roll = rng.random()
            if roll < 0.1:
                words += fact(rng).split()
            else:
                word = self.word(rng)
                words.append(word + "," if roll > 0.94 and word[-1].isalnum() else word)
        words[0] = _capitalised(words[0])
        words[-1] = words[-1].rstrip(",") + rng.choice("....?:;")
        return words

    def phrase(self, rng: random.Random, *, longest: int = 4) -> str:
        """A few words for a heading or a label, all in one casing."""
        words = [self.word(rng) for _ in range(rng.randint(1, longest))]
        return rng.choice(_CASINGS)(" ".join(words))

    def label(self, rng: random.Random) -> str:
        """What a field of a form is called."""
        if self._labels and rng.random() < _LABELLED:
            return rng.choice(self._labels)
        return self.phrase(rng, longest=3)


def _successors(words: Iterable[str]) -> dict[str, str]:
    """What follows each letter, as often as it does; "" is the start of a word. Empty if there are no letters."""
    follows: dict[str, list[str]] = {}
    for word in words:
        letters = list(filter(str.isalpha, word))
        for before, after in zip(["", *letters], letters):
            follows.setdefault(before, []).append(after)
    return {before: "".join(after) for before, after in follows.items()}


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _titled(text: str) -> str:
    return " ".join(map(_capitalised, text.split()))


_CASINGS: tuple[Callable[[str], str], ...] = (_titled, _titled, str.upper, str.upper, str.lower, _capitalised)


def fact(rng: random.Random, kind: str | None = None) -> str:
    """A number, a date, a name, … by a form of this kind; if it is not given, of a kind that a question may ask for."""
    kind = kind or rng.choice(_FACTS)
    text = fill_form(rng, rng.choice(_FORMS[kind])).format_map(_Fields(rng))
    return text.upper() if rng.random() < _ENGLISH["capitals"].get(kind, 0) else text


def fill_form(rng: random.Random, form: str) -> str:
    """The form with a digit for every # and a capital for every ~."""
    signs = {"#": string.digits, "~": string.ascii_uppercase}
    return "".join(rng.choice(signs[sign]) if sign in signs else sign for sign in form)


class _Fields(dict[str, Any]):
    """The fields of a form; each use is another draw."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __missing__(self, field: str) -> Any:
        rng = self.rng
        if field in ("size", "whole"):
            size = 10 ** rng.uniform(0, 5.5)
            return int(size) if field == "whole" else size
        if field in _RANGES:
            low, high = _RANGES[field]
            return rng.randint(low, high) if isinstance(low, int) else rng.uniform(low, high)
        if field in _FORMS:
            return fact(rng, field)
        text = rng.choice(_LISTS[field.lower()])
        return text.upper() if field.isupper() else text.title() if field[0].isupper() else text
