"""The protocol of scorers. A scorer finds where in an image the answer to a question is expected.

To add one, write a file in this folder with a class like `Scorer`, and add a line to SCORERS in `scorers.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from texturevlm.relevance.maps import ImageMaps
from texturevlm.scout.question import Question
from texturevlm.types import Texture


class Scorer(Protocol):
    """Makes relevance from a question.

    name:        what Relevance.scorer says
    description: for pictures: "relevance, by ..."
    capturable:  whether `prepare` and `score` run on a GPU alone, so that a CUDA graph can capture them
    calibrated:  whether the sum of a query is the chance that the question is about the image; False if missing
    """

    name: str
    description: str
    capturable: bool

    def prepare(self, texture: Texture) -> Any:
        """Compute what does not depend on the question, once per texture; `score` gets the result as `prepared`."""

    def score(self, prepared: Any, question: str | Question, maps: ImageMaps) -> tuple[Tensor | None, ImageMaps]:
        """Find where the answer is expected.

        returns the query (B, h, w) on the grid of `maps`: at least 0, its sum (at most 1) is the confidence; None if
                nothing was asked. And the maps, refined if the scorer knows more than they say
        """


class SalienceScorer:
    """No question: relevance is salience alone."""

    name, description, capturable = "none", "salience alone", True

    def prepare(self, texture: Texture) -> None:
        """Nothing."""

    def score(self, prepared: None, question: str | Question, maps: ImageMaps) -> tuple[None, ImageMaps]:
        """No query, whatever the question."""
        return None, maps


def question_text(scorer: str, question: str | Question) -> str:
    """The question, which must be text for this scorer."""
    if not isinstance(question, str):
        raise ValueError(f"choose_tokens: question must be text for relevance {scorer!r}, got an encoded one")
    return question
