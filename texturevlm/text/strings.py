"""Words as strings: normalising, comparing despite OCR errors, and classifying them by kind.

Strings are Unicode-normalised, so any script passes. The patterns and the lists of question words are English, with a
few common words of other languages; in other languages they match nothing.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

import numpy as np

MOST_LETTERS = 4000  # of a question; the rest is ignored
MOST_TERMS = 64  # of a question; the rest is ignored
LEAST_SHARED = 0.5  # share of equal letter pairs: with fewer, two words are unrelated
MOST_OF_A_WORD = 80  # letters; the rest does not affect its kind
GLUED = 0.7  # the similarity of a word that is part of another

STOP_WORDS = """
a an the of in on at to for from by with and or as is are was were be been do does did has have had this that these
those it its their his her what which who whom whose when where why how many much there any per under if into than can
could would should will shall may s t le la les de du des el los las der die das den und et y e o il lo di da que qui
quel quelle wer wo wie est es ist cual quien como cuando donde en un une una ein eine
"""
STOP = frozenset(STOP_WORDS.split())
# Abbreviations and synonyms that a page may use for a word of a question.
ALIASES = {
    "number": ("no", "nos", "num", "nr", "#"),
    "telephone": ("tel", "phone"),
    "phone": ("tel", "telephone", "ph"),
    "amount": ("amt",),
    "address": ("addr",),
    "company": ("co",),
    "percentage": ("%", "percent", "pct"),
    "percent": ("%", "pct"),
    "year": ("yr",),
    "quantity": ("qty",),
    "department": ("dept",),
    "subject": ("re", "subj"),
    "total": ("tot",),
    "date": ("dated", "dt"),
    "reference": ("ref",),
    "account": ("acct", "a/c"),
}

MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
NUMBER = r"\d[\d,.]*"
# The kind of a part of a line; matched against the whole line, so that it may span several words.
KINDS: dict[str, str] = {
    "date": rf"\b\d{{1,4}}[/.-]\d{{1,2}}[/.-]\d{{2,4}}\b|\b{MONTH}\s*\d{{1,2}}(?:st|nd|rd|th)?(?:\s*[-–,]\s*\d{{1,2}})?"
    rf"(?:[\s,.]*(?:19|20)\d\d)?\b|\b\d{{1,2}}(?:st|nd|rd|th)?[\s-]*(?:of\s)?{MONTH}[\s,-]*(?:\d{{2,4}})?\b"
    rf"|\b{MONTH}[\s,']*(?:19|20)?\d\d\b|\d+[年月日]",
    "year": r"\b(?:18|19|20)\d\d(?:\s*[-–/]\s*(?:\d\d){1,2})?\b",
    "time": r"\b\d{1,2}[:.]\d\d\s*(?:[ap]\.?m\b\.?)?|\b\d{1,2}\s*[ap]\.?m\b\.?",
    "money": rf"(?:[$£€¥₹]|\b(?:rs|usd|rm|eur)\b\.?)\s*{NUMBER}|\b\d{{1,3}}(?:,\d\d\d)*\.\d\d\b"
    r"|\b\d{1,3}(?:,\d{2,3})+\b",
    "percent": rf"{NUMBER}\s*(?:%|percent\b|per\s*cent\b)",
    "number": rf"(?<![a-z]){NUMBER}(?![a-z])",
    "code": r"\b(?=\S*\d)(?=\S*[a-z])[a-z0-9/._-]{3,}|\b\d+(?:-\d+)+\b|\b\d{5,}\b",
    "phone": r"\(?\b\d{3}\)?[\s./-]{0,2}\d{3}[\s.-]\d{4}\b|\+\d[\d\s()-]{7,}\d",
    "link": r"\S+@\S+|https?:\S*|\bwww\.\S+|\S+\.(?:com|edu|org|net|gov)\b\S*",
    "street": r"\bp\.?\s?o\.?\s*box\s*\d*"
    r"|\b\d+\s+\S+(?:\s\S+)?\s+(?:street|st|avenue|ave|road|rd|boulevard|blvd|drive|lane|jalan)\b"
    r"|\b(?:street|avenue|road|boulevard|jalan|taman|suite|floor)\b|[a-z]+,?\s+[a-z.]{2,14}\s+\d{5}(?:-\d{4})?\b",
    "firm": r"\b(?:inc|corp|corporation|company|co|ltd|limited|llc|gmbh|plc|sdn|bhd|institute|university|association|"
    r"foundation|department|bank|laborator(?:y|ies)|council|committee|society|agency|industries|enterprise|group)\b",
    "honour": r"\b(?:mr|mrs|ms|dr|prof|professor|jr|sr|m\.?d|ph\.?\s?d|president|chairman|director|manager|"
    r"secretary)\b\.?",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in KINDS.items()}

# What a question asks for, by the words that it uses.
ASKED: dict[str, str] = {
    "date": r"\b(?:dates?|dated|when|day|month|deadline|fecha|datum|wann|quand|cuando)\b|日期|何时",
    "year": r"\byears?\b|\baño\b|\bjahr\b|\bannée\b",
    "time": r"\b(?:time|hour|a\.?m|p\.?m|o'?clock|uhr|heure|hora)\b|时间",
    "money": r"\b(?:how much|amount|cost|price|total|dollars?|paid|pay|salary|budget|expenses?|revenue|profit|fee|"
    r"value|balance|credit|sales|income|betrag|summe|montant|importe)\b|[$£€¥]|金额|总",
    "percent": r"\b(?:percent(?:age)?|per cent|rate|share|prozent)\b|%",
    "count": r"\b(?:how many|number of|count|quantity|score|ratio|maximum|minimum|average|highest|lowest|range|"
    r"population|size|weight|dose|temperature|combien|cuantos|wie viele)\b",
    "code": r"\b(?:no|number|nos|num|code|id|#|zip|ref|reference|serial|nummer|numero)\b\.?|号",
    "phone": r"\b(?:tele)?phone|\bfax\b|\btel\b|\bmobile\b|电话",
    "link": r"\b(?:e-?mail|website|url|web ?site|link|source)\b",
    "person": r"\b(?:who|whom|whose|person|author|signed|signature|sender|president|chairman|director|manager|"
    r"secretary|doctor|dr|mr|mrs|professor|member|speaker|name|from|addressed|written|wer|qui|quien|nom|nombre)\b|谁|姓名|名",
    "firm": r"\b(?:company|organi[sz]ation|institut\w+|university|firm|brand|manufacturer|department|agency|"
    r"association|committee|college|school|hospital|bank|publisher|employer|firma|société|empresa)\b|公司",
    "place": r"\b(?:where|address|city|state|country|location|located|place|street|venue|box|county|region|ort|lieu|"
    r"lugar|adresse|direccion)\b|地址",
    "title": r"\b(?:title|heading|headline|subject|topic|about|header|name of the (?:document|form|report|table|chart|"
    r"graph|figure|exhibit)|what (?:type|kind) of|(?:what|which) (?:document|form|report)|titre|titel|titulo)\b|标题",
    "page": r"\bpage\b|\bpg\b",
    "axis": r"\b(?:axis|graph|plot|chart|figure|diagram|curve|bar|legend)\b",
    "yes": r"^\s*(?:is|are|was|were|does|do|did|has|have|can|will)\b",
    "top": r"\b(?:top|first|header|heading|beginning|logo|letterhead)\b",
    "bottom": r"\b(?:bottom|last|footer|end|footnote)\b",
    "right": r"\bright\b",
    "left": r"\bleft\b",
    "text": r"\b(?:what|which|how|why|purpose|reason|objective|type|kind|role|designation|position)\b",
}
_ASKING = [re.compile(pattern, re.IGNORECASE) for pattern in ASKED.values()]
_OVER_WORDS = [place for place, pattern in enumerate(ASKED.values()) if " " in pattern or r"\s" in pattern]


@lru_cache(maxsize=1 << 15)
def plain(text: str) -> str:
    """Letters and digits alone, in one case, without accents: "Éclair's" → "eclairs"; "%" and "#" stay."""
    spread = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in spread if letter.isalnum() or letter in "%#")


def terms(question: str) -> list[tuple[str, float]]:
    """The question's words in order, normalised, each with its emphasis: higher in quotes and with a capital."""
    text = unicodedata.normalize("NFKC", question[:MOST_LETTERS])
    found = []
    quoted = [match.span() for match in re.finditer(r"[\"“‘'`«][^\"”’'`»]{2,80}[\"”’'`»]", text)]
    for match in re.finditer(r"\S+", text):
        emphasis = 1.5 if any(low <= match.start() < high for low, high in quoted) else 1.0
        for word in _parts(match.group()):
            if normal := plain(word):
                capital = match.start() > 0 and word[:1].isupper()
                found.append((normal, emphasis * (1.25 if capital else 1.0)))
    return found[:MOST_TERMS]


@lru_cache(maxsize=1 << 15)
def _parts(word: str) -> tuple[str, ...]:
    """A word cut at slashes and dashes, and around each ideograph."""
    cut = "".join(f" {letter} " if is_ideograph(letter) else letter for letter in word)
    return tuple(re.split(r"[\s/–—-]+", cut))


def asked_kinds(question: str) -> np.ndarray:
    """(len(ASKED),) of 0 and 1: the kinds of answer that the question asks for."""
    text = unicodedata.normalize("NFKC", question[:MOST_LETTERS])
    found = {place for place in _OVER_WORDS if _ASKING[place].search(text)}
    found.update(*map(_kinds_of_word, text.split()))
    kinds = np.zeros(len(ASKED), dtype=np.float32)
    kinds[list(found)] = 1
    return kinds


@lru_cache(maxsize=1 << 15)
def _kinds_of_word(word: str) -> tuple[int, ...]:
    """The places in ASKED of the patterns without spaces that a word matches; kept, as questions use the same words."""
    return tuple(place for place, pattern in enumerate(_ASKING) if place not in _OVER_WORDS and pattern.search(word))


def kinds(line: Sequence[str]) -> np.ndarray:
    """(words of the line, len(KINDS)) of 0 and 1: the kinds that each word is part of."""
    cut = [word[:MOST_OF_A_WORD] for word in line]
    sizes = np.array([len(word) for word in cut])
    end = np.cumsum(sizes + 1) - 1
    begin, text = end - sizes, " ".join(cut)
    found = np.zeros((len(line), len(KINDS)), dtype=np.float32)
    for column, pattern in enumerate(_PATTERNS.values()):
        for match in pattern.finditer(text):
            found[(begin < match.end()) & (end > match.start()), column] = 1
    return found


def word_similarity(asked_words: Sequence[str], page_words: Sequence[str]) -> np.ndarray:
    """(asked, page) from 0 to 1: 1 for the same word, .95 for the same stem, else by shared pairs of letters.

    Both lists hold words as `plain` makes them. Numbers must be equal.
    """
    grams = [_pairs(word) for word in asked_words]
    known = {pair: index for index, pair in enumerate(sorted({pair for row in grams for pair in row}))}
    ours = np.zeros((len(asked_words), len(known)), dtype=np.float32)
    for row, pairs in enumerate(grams):
        ours[row, [known[pair] for pair in pairs]] = 1
    theirs = np.zeros((len(page_words), len(known)), dtype=np.float32)
    sizes = np.array([len(_pairs(word)) for word in page_words], dtype=np.float32)
    for row, word in enumerate(page_words):
        theirs[row, [known[pair] for pair in _pairs(word) if pair in known]] = 1
    shared = 2 * ours @ theirs.T / np.maximum(ours.sum(1)[:, None] + sizes, 1)
    alike: np.ndarray = np.clip((shared - LEAST_SHARED) / (1 - LEAST_SHARED), 0, 1) * 0.9
    stems = [_stem(word) for word in page_words]
    for row, word in enumerate(asked_words):
        stem, aliases = _stem(word), ALIASES.get(word, ())
        number = word.isdigit()
        for column, other in enumerate(page_words):
            if word == other:
                alike[row, column] = 1
            elif number or other.isdigit():
                alike[row, column] = 0
            elif stem == stems[column]:
                alike[row, column] = 0.95
            elif other in aliases:
                alike[row, column] = 0.8
            elif len(word) >= 4 and word in other:
                alike[row, column] = max(alike[row, column], GLUED)
    return alike


@lru_cache(maxsize=1 << 15)
def _pairs(word: str) -> frozenset[str]:
    padded = f" {word[:40]} "
    return frozenset(padded[index : index + 2] for index in range(len(padded) - 1))


@lru_cache(maxsize=1 << 15)
def _stem(word: str) -> str:
    for ending, rest in (("ies", "y"), ("es", ""), ("s", ""), ("ing", ""), ("ed", ""), ("e", ""), ("ly", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + rest
    return word


def is_ideograph(letter: str) -> bool:
    """A character of a script that is written without spaces: Chinese, Japanese (Korean has spaces)."""
    return "\u3040" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or "\uf900" <= letter <= "\ufaff"


@lru_cache(maxsize=1)
def load_commonness() -> dict[str, float]:
    """The commonness of words in questions, 0 to 1; words that are not listed are rare. A common word hardly helps.

    The file is written by `texturevlm fit-words`. Words are as `plain` makes them.
    """
    text = files("texturevlm.text").joinpath("commonness.json").read_text(encoding="utf-8")
    found: dict[str, float] = json.loads(text)
    return found
