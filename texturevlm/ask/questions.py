"""Which question a prompt asks: known from the messages that it was rendered from, never read out of its text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

REMEMBERED = 4096  # rendered prompts whose questions are known
_RENDERING: ContextVar[list[str] | None] = ContextVar("rendering", default=None)


class Questions:
    """The questions of prompts that one processor has rendered."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, tuple[str, Any]] = OrderedDict()  # rendered prompt → its question, its template

    @contextmanager
    def rendering(self, questions: list[str]) -> Iterator[None]:
        """Inside, prompts are rendered from messages with these questions, and may be processed at once."""
        token = _RENDERING.set(questions)
        try:
            yield
        finally:
            _RENDERING.reset(token)

    def remember(self, rendered: Any, questions: Sequence[str], template: Any = None) -> None:
        """Keep the questions of what a chat template gave, if that is text. template: None: the processor's own"""
        texts = [rendered] if isinstance(rendered, str) else rendered
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            return
        for text, question in zip(texts, questions):
            self._asked[text] = question, template
            self._asked.move_to_end(text)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)

    def of(
        self, texts: Sequence[str], given: str | Sequence[str] | None, user_begins: Callable[[Any], str]
    ) -> list[str | None]:
        """The question of each text; None where it is not known.

        given:       by the caller, one per text
        user_begins: what a template writes before the words of a user
        """
        if given is not None:
            return list(_checked(texts, given))
        if (known := _RENDERING.get()) is not None and len(known) == len(texts):
            return list(known)
        return [self._known(text, user_begins) for text in texts]

    def _known(self, text: str, user_begins: Callable[[Any], str]) -> str | None:
        """Of a text that was rendered, also if an answer was appended, as for training; not if a user goes on."""
        begins = [text] if text in self._asked else [known for known in list(self._asked) if text.startswith(known)]
        if not begins:
            return None
        longest = max(begins, key=len)
        question, template = self._asked[longest]
        more = text[len(longest) :]
        return None if more and (mark := user_begins(template)) and mark in more else question


def _checked(texts: Sequence[str], question: str | Sequence[str]) -> list[str]:
    given = [question] if isinstance(question, str) else list(question)
    if len(given) != len(texts):
        raise ValueError(f"processor: question must be one per text ({len(texts)}), got {len(given)}")
    if wrong := [one for one in given if not isinstance(one, str)]:
        raise TypeError(f"processor: question must be a text or a list of texts, got {type(wrong[0]).__name__}")
    return given
