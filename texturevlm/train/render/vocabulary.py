"""The words on rendered pages: given words, common English, and made-up numbers, dates, names and codes.

A network that only sees real words learns to guess them, so some words are nonsense, drawn letter by letter from the
bigrams of the real ones. Everything is plain lists, so a vocabulary can be sent to other processes.
"""

import random
from collections.abc import Callable, Iterable

from texturevlm.train.render.english import COMMON_WORDS, MONTHS, PERSON_NAMES

_PRINTABLE = frozenset(map(chr, range(33, 127)))
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\u00a0": " "})
_LONGEST = 24
COMPANY_ENDS = ("Inc.", "Co.", "Company", "Ltd.", "Corp.", "& Sons", "Association", "Institute", "Foundation")


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
        often = [word for text in texts for word in text.translate(_PLAIN).split() if _is_printable(word)]
        self._often = often  # as often as the caller has them
        self._once = sorted(set(often))  # the rare ones as often as the common ones
        self._given = given if often else 0.0
        self._nonsense = nonsense
        self._next = _successors(self._once or list(COMMON_WORDS))

    def word(self, rng: random.Random) -> str:
        """One word of running text."""
        roll = rng.random()
        if roll < self._nonsense:
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
        words[0] = words[0][0].upper() + words[0][1:]
        words[-1] = words[-1].rstrip(",") + rng.choice("....?:;")
        return words

    def phrase(self, rng: random.Random, *, shortest: int = 1, longest: int = 4) -> str:
        """A few words for a heading or a label, all in one casing."""
        words = [self.word(rng) for _ in range(rng.randint(shortest, longest))]
        return CASINGS[rng.choice(("title", "title", "upper", "upper", "lower", "sentence"))](" ".join(words))

    def fact(self, rng: random.Random) -> str:
        """Something that a question may ask for: a number, an amount, a date, a name, a code, …"""
        return rng.choice(FACTS)(rng)

    def value(self, rng: random.Random) -> str:
        """The content of a form's field: a fact, or a few words."""
        return self.fact(rng) if rng.random() < 0.7 else self.phrase(rng, longest=3)


def _is_printable(word: str) -> bool:
    return 0 < len(word) <= _LONGEST and _PRINTABLE.issuperset(word)


def _successors(words: Iterable[str]) -> dict[str, str]:
    """What follows each letter, as often as it does; "" is the start of a word."""
    follows: dict[str, list[str]] = {"": []}
    for word in words:
        letters = "".join(sign for sign in word if sign.isalpha())
        for before, after in zip(["", *letters], letters):
            follows.setdefault(before, []).append(after)
    if not follows[""]:
        return _successors(COMMON_WORDS)
    return {before: "".join(after) for before, after in follows.items()}


CASINGS: dict[str, Callable[[str], str]] = {
    "title": lambda text: " ".join(word[0].upper() + word[1:] for word in text.split()),
    "upper": str.upper,
    "lower": str.lower,
    "sentence": lambda text: text[0].upper() + text[1:],
}


def number(rng: random.Random) -> str:
    """A whole or decimal number, small or large."""
    form = rng.choice(("{:d}", "{:d}", "{:,d}", "{:.1f}", "{:.2f}", "{:,.2f}", "({:,d})"))
    size = 10 ** rng.uniform(0, 5.5)
    return form.format(int(size) if "d" in form else size)


def amount(rng: random.Random) -> str:
    """Money."""
    form = rng.choice(("${:,.2f}", "${:,.0f}", "$ {:,.2f}", "{:,.2f}", "RM{:.2f}", "${:.1f} million", "{:,.0f}/-"))
    return form.format(10 ** rng.uniform(0, 5.5))


def date(rng: random.Random) -> str:
    """A date in one of many spellings."""
    month, day, year = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1940, 2022)
    name = MONTHS[month - 1]
    return rng.choice(
        (
            f"{month}/{day}/{year % 100:02d}",
            f"{month:02d}/{day:02d}/{year}",
            f"{day:02d}-{month:02d}-{year}",
            f"{day:02d}.{month:02d}.{year}",
            f"{year}-{month:02d}-{day:02d}",
            f"{name} {day}, {year}",
            f"{name} {day}, {year}",
            f"{name[:3]}. {day}, {year}",
            f"{day} {name} {year}",
            f"{day}-{name[:3].upper()}-{year % 100:02d}",
            f"{name} {year}",
            f"{name} {day}",
            str(year),
        )
    )


def clock(rng: random.Random) -> str:
    """A time of day."""
    hour, minute = rng.randint(1, 12), rng.randint(0, 59)
    return rng.choice((f"{hour}:{minute:02d}", f"{hour}:{minute:02d} A.M.", f"{hour + 10}:{minute:02d}:00"))


def phone(rng: random.Random) -> str:
    """A telephone number."""
    form = rng.choice(("(###) ###-####", "###-###-####", "###/###-####", "###-####", "##-########", "+## ### #### ###"))
    return digits(rng, form)


def code(rng: random.Random) -> str:
    """A reference, invoice or account number."""
    form = rng.choice(
        ("#####", "########", "@@-####", "@#####", "@@@ ####", "#-###-##", "No. ####", "##-@-###", "@#-@#")
    )
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return digits(rng, "".join(rng.choice(letters) if sign == "@" else sign for sign in form))


def digits(rng: random.Random, form: str) -> str:
    """The form with a digit for every #."""
    return "".join(rng.choice("0123456789") if sign == "#" else sign for sign in form)


def percentage(rng: random.Random) -> str:
    """A share in per cent."""
    return rng.choice(("{:.0f}%", "{:.1f}%", "{:.2f}%", "{:.0f} %", "{:.1f} per cent")).format(rng.uniform(0, 100))


def person(rng: random.Random) -> str:
    """A person's name."""
    first, last, initial = rng.choice(PERSON_NAMES), rng.choice(PERSON_NAMES), rng.choice("ABCDEFGHJKLMNPRSTW")
    form = rng.choice(("{0} {2}", "{0} {1}. {2}", "{1}. {2}", "Dr. {0} {2}", "Mr. {2}", "{2}, {0}", "{0} {2}, Jr."))
    name: str = form.format(first, initial, last)
    return name.upper() if rng.random() < 0.15 else name


def company(rng: random.Random) -> str:
    """The name of a firm or an institution."""
    name = f"{rng.choice(PERSON_NAMES)} {rng.choice(COMMON_WORDS).title()} {rng.choice(COMPANY_ENDS)}"
    return name.upper() if rng.random() < 0.3 else name


def abbreviation(rng: random.Random) -> str:
    """A few capitals, with or without stops."""
    letters = [rng.choice("ABCDEFGHIJKLMNOPRSTUVW") for _ in range(rng.randint(2, 4))]
    return rng.choice(("", ".")).join(letters)


def web_address(rng: random.Random) -> str:
    """A web or mail address."""
    host = f"{rng.choice(COMMON_WORDS)}.{rng.choice(('com', 'org', 'edu', 'gov'))}"
    return rng.choice((f"www.{host}", f"{rng.choice(PERSON_NAMES).lower()}@{host}", f"http://www.{host}"))


def quantity(rng: random.Random) -> str:
    """A quantity with its unit."""
    return f"{number(rng)} {rng.choice(('mg', 'kg', 'ml', 'g', 'lbs.', 'ft.', 'mm', 'cm', 'hrs', 'tons', 'oz.'))}"


FACTS: tuple[Callable[[random.Random], str], ...] = (
    (number,) * 2
    + (amount,) * 2
    + (date,) * 2
    + (clock, phone, code, percentage)
    + (person,) * 2
    + (company, abbreviation, web_address, quantity)
)
