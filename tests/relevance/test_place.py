"""Phrases of place move relevance there, on pages and photographs, whatever the scorer."""

import pytest
import torch

import texturevlm as tv
from texturevlm.relevance import find_relevance
from texturevlm.relevance.prepared import OUTSIDE, place_prior, places_in


@pytest.mark.parametrize(
    ("question", "places"),
    [
        ("What is written in the top left corner?", ("top", "left")),
        ("What number is at the bottom of the page?", ("bottom",)),
        ("What is on the lower right-hand side?", ("bottom", "right")),
        ("Who is standing in the background?", ("background",)),
        ("What does the bottom line say?", ("last line",)),
        ("Which date is in the first line?", ("first line",)),
        ("What is in the middle?", ("middle",)),
        ("What is printed at the top center?", ("top", "centre")),
        ("How much money is left?", ()),
        ("Who holds the right to vote?", ()),
        ("What is the top speed?", ()),
        ("How many phones were sold in the Middle East?", ()),
        ("What runs from the top to the bottom?", ()),
    ],
)
def test_places_are_found_in_questions(question, places):
    assert places_in(question) == places


def test_the_prior_is_one_in_the_place_and_low_far_from_it():
    ink = torch.ones(1, 40, 60, dtype=torch.bool)
    prior = place_prior("What is in the bottom right corner?", ink)[0]
    assert prior[-1, -1] == 1 and prior[0, 0] == prior[-1, 0] == prior[0, -1] == pytest.approx(OUTSIDE)
    assert place_prior("What is the total?", ink) is None
    ink[:, :10], ink[:, 30:] = False, False
    line = place_prior("Read the last line.", ink)[0]
    assert line[29].min() == 1 and line[12].max() == pytest.approx(OUTSIDE)


@pytest.mark.parametrize("scorer", ["scout", "channels"])
@pytest.mark.parametrize("photograph", [True, False])
def test_any_scorer_is_steered_and_salience_alone_is_not(scorer, photograph):
    torch.manual_seed(0)
    image = torch.rand(1, 3, 192, 256) if photograph else (torch.rand(1, 1, 192, 256) > 0.1).float()
    texture = tv.Texture.open(image)
    found = find_relevance(texture, "What is on the left side?", relevance=scorer)
    other = find_relevance(texture, "What is on the right side?", relevance=scorer)
    third = found.grid[1] // 3
    assert found.mass[..., :third].sum() > 2 * other.mass[..., :third].sum()
    assert found.mass.sum() == pytest.approx(1, abs=1e-4)
    alone = [find_relevance(texture, f"on the {side} side", relevance="none").mass for side in ("left", "right")]
    assert torch.equal(*alone)
