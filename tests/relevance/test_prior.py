"""The relevance `prior`: what is usually asked, whatever is asked; photographs keep their salience."""

import pytest
import torch

import texturevlm as tv
from tests.evaluate.folders import write_page
from texturevlm.relevance import PriorScorer, find_relevance, prepare


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
    mass = tv.Balance().weigh(photograph, maps, texture.size, "prior").mass
    assert torch.allclose(mass, maps.salience)
