"""A document as something to ask about: its pages are chosen per question, and the prompt says which page is which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from texturevlm.ask.config import AskConfig
from texturevlm.ask.messages import IMAGE, conversation_with
from texturevlm.ask.request import Request
from texturevlm.ask.session import ImageSession
from texturevlm.pages import PageTokens, choose_pages, open_pages
from texturevlm.pages.pictures import PagePictures
from texturevlm.placement import Placement
from texturevlm.vlm.hook import check_own_pixels
from texturevlm.vlm.prompts import worded

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM


class DocumentSession(ImageSession):
    """A document prepared for a model; made by `VLM.prepare`. What no question changes of its pages is kept.

    tokens_by_page: of the last question, by page number; a page that was only seen small, among others, has 1
    """

    def __init__(self, model: VLM, document: Any) -> None:
        super().__init__(model, [])
        pages = open_pages(document, function="ask")
        self.pages = pages if isinstance(pages, PagePictures) else PagePictures(pages)
        self.chosen: tuple[Any, list[PageTokens]] | None = None  # the last question, and its pages

    def about(self, question: str, how: AskConfig) -> list[PageTokens]:
        """The pages for a question, with their tokens."""
        check_document(how)
        key = self._key(question, how)
        if self.chosen is None or self.chosen[0] != key:
            device = self.model.device
            found = choose_pages(self.pages, question, how=how.tokens, fine_pages=how.fine_pages, device=device)
            self.chosen = key, found
        return self.chosen[1]

    def placements(self, question: str, how: AskConfig) -> list[Placement]:
        """The tokens of each page that gets some, and of the sheet of the others."""
        return [page.placement for page in self.about(question, how)]

    @property
    def tokens_by_page(self) -> dict[int, int]:
        pages = [] if self.chosen is None else self.chosen[1]
        return {number: page.tokens if len(page.numbers) == 1 else 1 for page in pages for number in page.numbers}

    def request(self, prompt: Any, question: str, how: AskConfig, *, apart: bool) -> Request:
        """A prompt with the pages that were chosen for its question, each after its number."""
        pages, marks = self.about(question, how), self.model.adapter.marks
        names = [_name(page, len(self.pages)) for page in pages] if _keeps_places(self.model.adapter) else []
        conversation = conversation_with(prompt, len(pages), marks, apart=apart, names=names)
        placements = self.kept(question, how, [page.placement for page in pages])
        return Request(conversation, placements, how.tokens.budget, how.hooks, pages=self.tokens_by_page)


def check_document(how: AskConfig) -> None:
    """Raise if a document cannot be asked so."""
    for name, got, wanted in (("looks", how.looks, 1), ("tokens", how.kind, "chosen")):
        if got != wanted:
            raise ValueError(f"ask: {name} must be {wanted} for a document, got {got}")
    check_own_pixels("document", how.hooks)
    if how.tokens.relevance == "model":
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
