"""The relevance `prior`, the default without a question: what is usually asked; photographs keep their salience."""

import pytest
import torch

import texturevlm as tv
from tests.evaluate.folders import write_page
from texturevlm.relevance import Balance, PriorScorer, find_relevance, prepare


@pytest.fixture
def texture(tmp_path):
    """A page with a few words."""
    words = {"Invoice": (20, 20), "Total": (20, 100), "1975": (150, 100), "Date": (150, 20)}
    write_page(tmp_path / "page.png", words)
    return tv.Texture.open(tmp_path / "page.png")


def test_no_question_is_read_and_none_counts_as_asked(texture):
    found = find_relevance(texture, "What is the total?", relevance="prior")
    assert torch.equal(found.mass, find_relevance(texture, "", relevance="prior").mass)
    assert not torch.allclose(found.mass, find_relevance(texture, "", relevance="none").mass)
    assert found.scorer == "prior" and not found.asked and find_relevance(texture, "total", relevance="scout").asked
    assert tv.choose_tokens(texture, relevance="prior", budget=12, patch=16).valid.sum() <= 12


def test_a_photograph_keeps_its_salience(texture):
    maps, scorer = prepare(texture, "none").maps, PriorScorer()
    reading = scorer.prepare(texture)
    page, _ = scorer.score(reading, "", maps._replace(photograph=torch.tensor([False])))
    photograph, _ = scorer.score(reading, "", maps._replace(photograph=torch.tensor([True])))
    assert page.sum() > 0 and photograph.sum() == 0
    mass = Balance().weigh(photograph, maps, texture.size, "prior").mass
    assert torch.allclose(mass, maps.salience)


def test_without_a_question_it_is_the_default(texture):
    found = find_relevance(texture)
    assert found.scorer == "prior" and torch.equal(found.mass, find_relevance(texture, relevance="prior").mass)
    assert find_relevance(texture, "total", relevance="scout").scorer == "scout"


def test_photographs_alone_are_not_read(monkeypatch):
    """The scout takes a quarter of a second, and nothing would come of it."""
    images = torch.rand(2, 3, 60, 90).cumsum(3)
    photographs = tv.Texture.open(images / images.max())
    monkeypatch.setattr(PriorScorer, "prepare", lambda *given: pytest.fail("a photograph was read"))
    found, wanted = (find_relevance(photographs, relevance=name) for name in ("auto", "none"))
    assert wanted.photograph.all() and found.scorer == "prior" and torch.equal(found.mass, wanted.mass)
    mixed = tv.Texture.open(torch.cat([images[:1] / images.max(), torch.ones(1, 3, 60, 90)]))
    with pytest.raises(pytest.fail.Exception, match="a photograph was read"):
        find_relevance(mixed)
