"""The words on rendered pages: given words, common English, and made-up numbers, dates, names and codes.

A network that only sees real words learns to guess them, so some words are nonsense, drawn letter by letter from the
bigrams of the real ones. Lists of words and forms are in english.toml.
"""

import random
import string
import tomllib
from collections.abc import Callable, Iterable
from importlib.resources import files

_ENGLISH = tomllib.loads(files(__package__).joinpath("english.toml").read_text(encoding="utf-8"))
COMMON_WORDS, MONTHS, PERSON_NAMES = (_ENGLISH[name].split() for name in ("common", "months", "names"))
_FORMS: dict[str, list[str]] = _ENGLISH["forms"]
_PRINTABLE = frozenset(map(chr, range(33, 127)))
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\u00a0": " "})
_LONGEST = 24


class Vocabulary:
    """Words to write.

    texts:    strings to take words from, of any length; none gives the common English words alone
    given:    the share of words that come from `texts`
    nonsense: the share that is made up letter by letter
    """

    def __init__(self, texts: Iterable[str] = (), *, given: float = 0.65, nonsense: float = 0.1) -> None:
        for name, share in (("given", given), ("nonsense", nonsense)):
            if not 0 <= share <= 1:
                raise ValueError(f"Vocabulary: {name} must be between 0 and 1, got {share}")
        words = (word for text in texts for word in text.translate(_PLAIN).split())
        self._often = [word for word in words if len(word) <= _LONGEST and _PRINTABLE.issuperset(word)]
        self._once = sorted(set(self._often))  # the rare ones as often as the common ones
        self._given = given if self._often else 0.0
        self._nonsense = nonsense
        self._next = _successors(self._once) or _successors(COMMON_WORDS)

    def word(self, rng: random.Random) -> str:
        """One word of running text."""
        if rng.random() < self._nonsense:
            return self.nonsense(rng)
        if rng.random() < self._given:
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
                words += self.fact(rng).split()
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

    def fact(self, rng: random.Random) -> str:
        """Something that a question may ask for: a number, an amount, a date, a name, a code, …"""
        return rng.choice(FACTS)(rng)

    def value(self, rng: random.Random) -> str:
        """The content of a form's field: a fact, or a few words."""
        return self.fact(rng) if rng.random() < 0.7 else self.phrase(rng, longest=3)


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


def number(rng: random.Random) -> str:
    """A whole or decimal number, small or large."""
    form = rng.choice(_FORMS["number"])
    size = 10 ** rng.uniform(0, 5.5)
    return form.format(int(size) if "d" in form else size)


def amount(rng: random.Random) -> str:
    """Money."""
    return rng.choice(_FORMS["amount"]).format(10 ** rng.uniform(0, 5.5))


def percentage(rng: random.Random) -> str:
    return rng.choice(_FORMS["percentage"]).format(rng.uniform(0, 100))


def date(rng: random.Random) -> str:
    """A date in one of many spellings."""
    month, day, year = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1940, 2022)
    name = MONTHS[month - 1]
    form = rng.choice(_FORMS["date"])
    return form.format(month=month, day=day, year=year, short=year % 100, name=name, capitals=name.upper())


def clock(rng: random.Random) -> str:
    """A time of day."""
    hour, minute = rng.randint(1, 12), rng.randint(0, 59)
    return rng.choice(_FORMS["clock"]).format(hour=hour, later=hour + 10, minute=minute)


def phone(rng: random.Random) -> str:
    return filled(rng, rng.choice(_FORMS["phone"]))


def code(rng: random.Random) -> str:
    """A reference, invoice or account number."""
    return filled(rng, rng.choice(_FORMS["code"]))


def filled(rng: random.Random, form: str) -> str:
    """The form with a capital for every @ and a digit for every #."""
    for sign, choices in (("@", string.ascii_uppercase), ("#", string.digits)):
        form = "".join(rng.choice(choices) if one == sign else one for one in form)
    return form


def person(rng: random.Random) -> str:
    """A person's name."""
    first, last, initial = rng.choice(PERSON_NAMES), rng.choice(PERSON_NAMES), rng.choice("ABCDEFGHJKLMNPRSTW")
    name = rng.choice(_FORMS["person"]).format(first, initial, last)
    return name.upper() if rng.random() < 0.15 else name


def company(rng: random.Random) -> str:
    """The name of a firm or an institution."""
    name = f"{rng.choice(PERSON_NAMES)} {rng.choice(COMMON_WORDS).title()} {rng.choice(_ENGLISH['companies'])}"
    return name.upper() if rng.random() < 0.3 else name


def abbreviation(rng: random.Random) -> str:
    """A few capitals, with or without stops."""
    letters = [rng.choice("ABCDEFGHIJKLMNOPRSTUVW") for _ in range(rng.randint(2, 4))]
    return rng.choice(("", ".")).join(letters)


def web_address(rng: random.Random) -> str:
    """A web or mail address."""
    host = f"{rng.choice(COMMON_WORDS)}.{rng.choice(('com', 'org', 'edu', 'gov'))}"
    name = rng.choice(PERSON_NAMES).lower()
    return rng.choice(_FORMS["web"]).format(host=host, name=name)


def quantity(rng: random.Random) -> str:
    """A number with its unit."""
    return f"{number(rng)} {rng.choice(_ENGLISH['units'])}"


_COMMON_FACTS = (number, number, amount, amount, date, date)  # twice as likely as the others, like persons
_RARER_FACTS = (clock, phone, code, percentage, person, person, company, abbreviation, web_address, quantity)
FACTS: tuple[Callable[[random.Random], str], ...] = _COMMON_FACTS + _RARER_FACTS
