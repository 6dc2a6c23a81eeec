"""The scorers by name, and which one a name, an object or `auto` stands for."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from texturevlm.check import check_choice
from texturevlm.relevance.attention import AttentionScorer
from texturevlm.relevance.embedding import EmbeddingScorer
from texturevlm.relevance.scorer import SalienceScorer, Scorer
from texturevlm.relevance.scout import ScoutScorer
from texturevlm.relevance.words import WordsScorer
from texturevlm.scout.question import Question

SCORERS: dict[str, type[Scorer]] = {
    "words": WordsScorer,
    "scout": ScoutScorer,
    "embedding": EmbeddingScorer,
    "attention": AttentionScorer,
    "none": SalienceScorer,
}


def find_scorer(function: str, relevance: str | Scorer, question: str | Question = "") -> Scorer:
    """The scorer that `relevance` stands for.

    function:  for error messages
    relevance: a name of SCORERS, a scorer, or `auto`: none without a question, words where RapidOCR is installed, else
               scout; scout for an encoded question
    """
    if not isinstance(question, (str, Question)):
        raise TypeError(f"{function}: question must be text, got {type(question).__name__}")
    if isinstance(relevance, type):
        name = relevance.__name__
        raise TypeError(f"{function}: relevance must be a scorer, got the class {name}; {name}(…) makes a scorer")
    if not isinstance(relevance, str):
        missing = [name for name in ("name", "prepare", "score") if not hasattr(relevance, name)]
        if missing:
            raise TypeError(
                f"{function}: relevance must be a scorer's name, a scorer, a Relevance or what prepare returns, got "
                f"{type(relevance).__name__}, which has no {missing[0]}"
            )
        return relevance
    check_choice(function, "relevance", relevance, ("auto", *SCORERS))
    if relevance == "auto":
        if isinstance(question, Question):
            relevance = "scout"
        elif not question.strip():
            relevance = "none"
        else:
            relevance = "words" if find_spec("rapidocr") is not None else "scout"
    return _made(relevance)


@lru_cache(maxsize=None)
def _made(name: str) -> Scorer:
    """Scorers keep no state, so one of each is enough."""
    return SCORERS[name]()
