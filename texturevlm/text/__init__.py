"""Strings, kinds of words and how common words are: what relevance and scout both need; no images.

strings.py cuts a question into terms and says what kind a word is; edits.py says how far two texts are apart.
"""

from texturevlm.text.edits import letters_and_digits, similarity
from texturevlm.text.strings import (
    ALIASES,
    ASKED,
    KINDS,
    STOP,
    asked_kinds,
    is_ideograph,
    kinds,
    load_commonness,
    plain,
    terms,
    word_similarity,
)

__all__ = [
    "ALIASES",
    "ASKED",
    "KINDS",
    "STOP",
    "asked_kinds",
    "is_ideograph",
    "kinds",
    "letters_and_digits",
    "load_commonness",
    "plain",
    "similarity",
    "terms",
    "word_similarity",
]
