"""The pages that a question is about get the tokens."""

import pytest
import torch

from tests.pages.papers import WORDS, paper, pdf_of
from texturevlm.pages import choose, choose_pages, open_pages, pictures
from texturevlm.pages.pictures import PagePictures
from texturevlm.pages.scouting import page_worth
from texturevlm.placement import TokenConfig, picture
from texturevlm.scout import encode, load_scout


@pytest.fixture(scope="module")
def file():
    return pdf_of([paper(word) for word in WORDS])


@pytest.fixture(scope="module")
def document(file):
    """Pages that the scout reads once for all tests."""
    return PagePictures(open_pages(file))


@pytest.mark.parametrize("number", [2, 6])
def test_the_page_that_names_the_word_wins(document, number):
    found = choose_pages(document, f"Where is the {WORDS[number - 1]}?", budget=48, fine_pages=3, relevance="scout")
    assert max(found, key=lambda one: one.worth).numbers == (number,)
    assert len(found) <= 3 and [one.numbers for one in found] == sorted(one.numbers for one in found)
    assert sum(one.tokens for one in found) <= 48


def test_only_pages_that_win_are_rendered_finely(file):
    asked = []

    class Watched:
        def __init__(self):
            self.pages = open_pages(file)

        def __len__(self):
            return len(self.pages)

        def texture(self, index, pixels, device):
            asked.append((index, pixels))
            return self.pages.texture(index, pixels, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "open_pages", lambda document: Watched())
        found = choose_pages(file, "umbrella", budget=32, fine_pages=2, relevance="none")
    fine = [index for index, pixels in asked if pixels == choose.FINE_PIXELS]
    assert len(fine) <= 2 and {one.numbers[0] - 1 for one in found} <= set(fine)
    assert len(asked) - len(fine) == len(WORDS)


def test_pages_that_lie_on_their_side_are_turned_upright(monkeypatch):
    """The same tokens as for the upright page, in its upright frame; the scout reads no page twice."""
    images = [paper(word) for word in WORDS[:3]]
    how = {"budget": 20, "fine_pages": 1, "relevance": "scout"}
    (wanted,) = choose_pages(images, "zeppelin", **how)
    turned = [image.rotate(-90, expand=True) for image in images]
    (found,) = choose_pages(turned, "zeppelin", turn=90, **how)
    assert found.numbers == wanted.numbers == (3,) and found.texture.size == wanted.texture.size
    assert torch.equal(found.allocation.boxes, wanted.allocation.boxes)
    spots, read = load_scout().read(found.texture), []
    monkeypatch.setattr(pictures, "find_turn_and_read", lambda texture: read.append(texture.size) or (90.0, spots))
    monkeypatch.setattr(picture, "find_turn_and_read", None)  # a fine page lies as its coarse look did
    monkeypatch.setattr(picture, "find_regions", lambda texture: [])
    known = PagePictures(open_pages(turned))
    assert known.sight(0, TokenConfig(turn="auto"), torch.device("cpu"))[0] is spots and len(read) == 1
    assert choose_pages(turned, "zeppelin", turn="auto", **how)[0].texture.size == wanted.texture.size
    with pytest.raises(ValueError, match="choose_pages: turn must be 'auto' or the angle"):
        choose_pages(turned, turn="left")


def test_a_list_of_images_is_a_document_too():
    found = choose_pages([paper(word) for word in WORDS[:3]], "zeppelin", budget=20, fine_pages=1, relevance="scout")
    assert [one.numbers for one in found] == [(3,)]


def test_the_other_pages_are_shown_small_if_a_tenth_of_the_budget_holds_them(document):
    *fine, sheet = choose_pages(document, "broccoli", budget=90, fine_pages=1, relevance="scout")
    assert [one.numbers for one in fine] == [(5,)] and sheet.numbers == (1, 2, 3, 4, 6, 7)
    assert 6 <= sheet.tokens <= 9 and fine[0].tokens + sheet.tokens <= 90
    assert sheet.texture.levels[0].mean() < 0.999  # there is something on it
    assert len(choose_pages(document, "broccoli", budget=60, fine_pages=1, relevance="scout")) == 1


def test_a_relevance_that_reads_no_question_chooses_pages_without_it(document):
    options = {"budget": 32, "fine_pages": 2, "relevance": "prior"}
    one, other = (choose_pages(document, word, **options) for word in ("umbrella", "broccoli"))
    assert [page.numbers for page in one] == [page.numbers for page in other]


def test_a_word_on_every_page_says_nothing():
    question = encode(["umbrella invoice"])
    found = torch.zeros(4, question.traits.shape[1])
    found[:, 0] = 1.0
    assert page_worth(found, question).tolist() == pytest.approx([0.25] * 4)
    found[2, 1] = 1.0
    assert int(page_worth(found, question).argmax()) == 2


def test_bad_options_are_refused_before_pages_are_read():
    class Unread(list):
        def __len__(self):
            raise AssertionError("read")

    for options, message in [
        ({"budget": 0}, "choose_pages: budget must be at least 1, got 0"),
        ({"fine_pages": 0}, "choose_pages: fine_pages must be between 1 and 20, got 0"),
        ({"fine_pages": 10_000}, "choose_pages: fine_pages must be between 1 and 20, got 10000"),
        ({"allocator": "best"}, "choose_pages: allocator must be one of"),
        ({"relevance": "best"}, "choose_pages: relevance must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            choose_pages(Unread(), "?", **options)
    with pytest.raises(TypeError, match="choose_pages: document must be a PDF or a list of images, got Tensor"):
        choose_pages(torch.rand(3, 8, 8), "?")
