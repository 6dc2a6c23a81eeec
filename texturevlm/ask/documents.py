"""A document as something to ask about: its pages are chosen per question, and the prompt says which page is which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from texturevlm.ask.asked import Asked
from texturevlm.ask.choose import Chosen, shown_by
from texturevlm.ask.messages import IMAGE, conversation_with
from texturevlm.ask.options import Choosing
from texturevlm.ask.prepared import PreparedImage
from texturevlm.ask.session import ImageSession
from texturevlm.pages import PageTokens, choose_pages, open_pages
from texturevlm.pages.kept import KeptPages
from texturevlm.vlm.prompts import worded

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM


class PagesSession(ImageSession):
    """The pages that were chosen for one question, of so many; made by `DocumentSession.about`."""

    def __init__(self, model: VLM, pages: Sequence[PageTokens], count: int) -> None:
        images = [PreparedImage(one.texture, patch=model.adapter.side, device=model.device) for one in pages]
        super().__init__(model, images)
        self.names = [_name(one, count) for one in pages] if _keeps_places(model.adapter) else []
        self.tokens_by_page = {
            number: one.tokens if len(one.numbers) == 1 else 1 for one in pages for number in one.numbers
        }
        self._tokens = [Chosen(one.allocation, one.relevance) for one in pages]

    def chosen(self, question: str, how: Choosing) -> list[Chosen]:
        """What was chosen with the pages."""
        return self._tokens

    def asked(self, prompt: Any, question: str, how: Choosing, *, apart: bool) -> Asked:
        """A prompt with its pages, each after its number."""
        marks, textures = self.model.adapter.marks, [image.texture for image in self.images]
        conversation = conversation_with(prompt, len(textures), marks, apart=apart, names=self.names)
        tokens = [shown_by(how.hooks, self.model.adapter, *one) for one in zip(textures, self._tokens, self._tokens)]
        return Asked(conversation, textures, tokens, how.budget, how.hooks, pages=self.tokens_by_page)


class DocumentSession(ImageSession):
    """A document prepared for a model; made by `VLM.prepare`. What no question changes of its pages is kept."""

    def __init__(self, model: VLM, document: Any) -> None:
        super().__init__(model, [])
        pages = open_pages(document, function="ask")
        self.pages = pages if isinstance(pages, KeptPages) else KeptPages(pages)
        self._known: tuple[Any, PagesSession] | None = None  # the last question, and its pages

    def check(self, how: Choosing) -> None:
        """Raise if a document cannot be asked so."""
        check_document(how.looks, how.tokens, how.relevance)

    def about(self, question: str, how: Choosing) -> PagesSession:
        """The pages for a question, with their tokens."""
        self.check(how)
        wanted_for = (question, how.of_tokens, self.model.device)
        if self._known is None or self._known[0] != wanted_for:
            found = choose_pages(
                self.pages,
                question,
                budget=how.budget,
                patch=self.model.adapter.side,
                allocator=how.allocator,
                relevance=how.relevance,
                turn=how.turn,
                fine_pages=how.fine_pages,
                device=self.model.device,
            )
            self._known = wanted_for, PagesSession(self.model, found, len(self.pages))
        return self._known[1]

    def look(
        self, question: str = "", *, answer: str = "", fine_pages: int | None = None, **options: Any
    ) -> Image.Image:
        """Draw the pages that the model sees when it is asked; fine_pages: as for `ask`, the others as for images."""
        how = self.model.choosing(fine_pages=fine_pages, **options)
        return self.about(question, how).look(question, answer=answer, **options)

    def choose(self, question: str = "", *, fine_pages: int | None = None, **options: Any) -> list[Chosen]:
        """The tokens of each page that gets some; arguments as for `look`."""
        how = self.model.choosing(fine_pages=fine_pages, **options)
        return self.about(question, how).choose(question, **options)

    def chosen(self, question: str, how: Choosing) -> list[Chosen]:
        """The tokens of each page that gets some."""
        return self.about(question, how).chosen(question, how)

    def asked(self, prompt: Any, question: str, how: Choosing, *, apart: bool) -> Asked:
        """A prompt with the pages that were chosen for its question."""
        return self.about(question, how).asked(prompt, question, how, apart=apart)


def check_document(looks: int | str, tokens: str, relevance: Any) -> None:
    """Raise if a document cannot be asked so."""
    for name, got, wanted in (("looks", looks, 1), ("tokens", tokens, "chosen")):
        if got != wanted:
            raise ValueError(f"ask: {name} must be {wanted} for a document, got {got}")
    if relevance == "model":
        raise ValueError("ask: relevance must be a scorer for a document, got 'model', which takes images")


def _name(page: PageTokens, count: int) -> str:
    """What stands before the page in a prompt."""
    if len(page.numbers) == 1:
        return f"Page {page.numbers[0]} of {count}:"
    return f"The other pages, small, row by row ({', '.join(map(str, page.numbers))}):"


def _keeps_places(adapter: Any) -> bool:
    """Whether the chat template writes text and images in the order of the blocks; the reader's writes text first."""
    blocks = [{"type": "text", "text": "before"}, IMAGE, {"type": "text", "text": "after"}]
    text = worded("ask", adapter.processor, [{"role": "user", "content": blocks}], [], adapter.marks)
    places = [text.find(mark) for mark in adapter.marks if mark in text]
    return bool(places) and text.find("before") < min(places) < text.find("after")
