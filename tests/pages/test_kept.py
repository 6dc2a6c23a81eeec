"""Pages that are kept: the second question opens none again, and gets what it gets without."""

import pytest
import torch

from tests.pages.papers import WORDS, paper, pdf_of
from texturevlm.pages import choose_pages, open_pages, pictures
from texturevlm.placement import TokenConfig


class Counted:
    """Pages that count how often they are opened."""

    def __init__(self, document):
        self.pages, self.opened = open_pages(document), 0

    def __len__(self):
        return len(self.pages)

    def texture(self, index, pixels, device):
        self.opened += 1
        return self.pages.texture(index, pixels, device)


@pytest.fixture(scope="module")
def content():
    return pdf_of([paper(word) for word in WORDS[:3]])


@pytest.mark.parametrize("turn", [0.0, "auto"])
def test_a_page_that_was_seen_is_not_opened_again(content, turn):
    counted = Counted(content)
    pages = pictures.PagePictures(counted)
    opened = []
    for question in (f"the {WORDS[0]}", f"where is the {WORDS[0]}"):
        before, found = counted.opened, choose_pages(pages, question, budget=30, relevance="scout", turn=turn)
        opened.append(counted.opened - before)
    assert opened[0] > 3 and opened[1] == 0  # each coarsely, one at least finely; then nothing
    plain = choose_pages(content, question, budget=30, relevance="scout", turn=turn)
    for one, other in zip(found, plain, strict=True):
        assert one.numbers == other.numbers and one.worth == pytest.approx(other.worth)
        assert torch.equal(one.allocation.centre, other.allocation.centre)
    assert len(pages.held()) >= 5  # three sights, a fine page and what was read there


def test_no_more_than_a_few_are_kept(content, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_SIGHTS", 1)
    monkeypatch.setattr(pictures, "MOST_FINE", 1)
    monkeypatch.setattr(pictures, "MOST_READ", 2)
    counted, device, how = Counted(content), torch.device("cpu"), TokenConfig()
    pages = pictures.PagePictures(counted)
    for index in range(3):
        pages.sight(index, how, device)
        pages.picture(index, 90_000, how, device)
    assert len(pages._sights) == 1 and [index for index, *_ in pages._fine] == [2] and len(pages._read) == 2
    opened, again = counted.opened, pages.picture(0, 90_000, how, device)
    assert (
        again.memo.maps is next(read for (index, *_), read in pages._read.items() if index == 0)[0]
        and counted.opened == opened + 1
    )  # only drawn again
